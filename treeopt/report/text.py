"""Numbers and words as tables and sentences have them."""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treeopt.records.latency import Estimate


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, three digits, or all before the point.

    >>> milliseconds(0.0012345), milliseconds(0.9997), milliseconds(12.345)
    ('1.23', '1000', '12345')
    """
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")


def counted(number: int, noun: str) -> str:
    """Return a number of things.

    >>> counted(1, "thread"), counted(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def range_text(ends: tuple[int, int], to: str = " to ") -> str:
    """Return a range of whole numbers, both ends included.

    >>> range_text((1, 4)), range_text((1, 4), "-"), range_text((2, 2))
    ('1 to 4', '1-4', '2')
    """
    first, last = ends
    return str(first) if first == last else f"{first}{to}{last}"


def number_or_absent(value: float | None, form: str) -> str:
    """Return a number in a format, or a dash where there is none.

    >>> number_or_absent(1.234, ".1f"), number_or_absent(None, ".1f")
    ('1.2', '-')
    """
    return "-" if value is None else format(value, form)


def quoted(path: Path | str) -> str:
    """Return a path as a shell takes it, in a command that is printed.

    >>> quoted("my folder/tree.json")
    "'my folder/tree.json'"
    """
    return shlex.quote(str(path))


def spread(estimate: "Estimate", scale: float = 1.0) -> str:
    """Return a number with its 95 % interval.

    >>> from treeopt.records.latency import Estimate
    >>> spread(Estimate(1.5, 1.4, 1.62))
    '1.50 (1.40-1.62)'
    """
    value, low, high = (scale * number for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def rule_name(rule: str, *, lossy: bool) -> str:
    """Return a rule's name as tables show it.

    >>> rule_name("typical", lossy=True)
    'typical (lossy)'
    """
    return f"{rule} (lossy)" if lossy else rule


def percent_floor(probability: float) -> str:
    """Return an estimated probability in whole percent, never rounded up.

    >>> percent_floor(0.899), percent_floor(1.0)
    ('89 %', 'more than 99 %')
    """
    return "more than 99 %" if probability > 0.99 else f"{math.floor(100 * probability + 1e-9)} %"
