"""Numbers, paths and names as the output prints them."""

import math
import shlex
from pathlib import Path

from treeopt.records.latency import Estimate
from treeopt.records.machine import Machine, Pair
from treeopt.records.profile import IMPORTED, UNKNOWN, Profile
from treeopt.records.rules import LOSSY_RULES


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds with three significant digits; larger ones as whole numbers.

    >>> milliseconds(0.0012345), milliseconds(0.9997), milliseconds(12.345)
    ('1.23', '1000', '12345')
    """
    value = 1000 * seconds
    return f"{value:.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")


def milliseconds_range(ends_s: tuple[float, float]) -> str:
    """Return both ends of an interval of seconds in milliseconds.

    >>> milliseconds_range((0.001, 0.0025))
    '1.00-2.50'
    """
    return "-".join(map(milliseconds, ends_s))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    >>> counted(1, "thread"), counted(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def percent(fraction: float, digits: int = 0) -> str:
    """Return a fraction in percent.

    >>> percent(0.0873, 1), percent(0.5)
    ('8.7 %', '50 %')
    """
    return f"{100 * fraction:.{digits}f} %"


def signed_percent(ratio: float) -> str:
    """Return by how much a ratio differs from 1, in percent with one digit.

    >>> signed_percent(1.087), signed_percent(0.95)
    ('+8.7 %', '-5.0 %')
    """
    return f"{100 * (ratio - 1):+.1f} %"


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
    """Return a path quoted for a shell, for printed commands.

    >>> quoted("my folder/tree.json")
    "'my folder/tree.json'"
    """
    return shlex.quote(str(path))


def spread(estimate: Estimate, scale: float = 1.0) -> str:
    """Return a number with its 95 % interval.

    >>> from treeopt.records.latency import Estimate
    >>> spread(Estimate(1.5, 1.4, 1.62))
    '1.50 (1.40-1.62)'
    """
    value, low, high = (scale * number for number in (estimate.value, estimate.low, estimate.high))
    return f"{value:.2f} ({low:.2f}-{high:.2f})"


def rule_name(rule: str) -> str:
    """Return a rule's name as tables show it.

    >>> rule_name("sequoia"), rule_name("typical")
    ('sequoia', 'typical (lossy)')
    """
    return f"{rule} (lossy)" if rule in LOSSY_RULES else rule


def percent_floor(probability: float) -> str:
    """Return an estimated probability in whole percent, never rounded up.

    >>> percent_floor(0.29), percent_floor(0.899), percent_floor(1.0)
    ('29 %', '89 %', 'more than 99 %')
    """
    return "more than 99 %" if probability > 0.99 else f"{math.floor(100 * probability + 1e-9)} %"


def subject(profile: Profile) -> str:
    """Return the pair, the engine and the machine of a profile, as far as they are known."""
    name = "" if profile.engine is None or profile.engine.name == IMPORTED else f" in {profile.engine.name}"
    return f"{describe_models(profile.pair)}{name}{_on_machine(profile.machine)}"


def models_and_machine(pair: Pair, machine: Machine) -> str:
    """Return a pair and a machine, such as `big + small on AMD EPYC (2 threads)`."""
    return f"{describe_models(pair)}{_on_machine(machine)}"


def describe_models(pair: Pair) -> str:
    """Return target and draft model; `unknown models` for an import that names neither."""
    return "unknown models" if {pair.target, pair.draft} <= {UNKNOWN, None} else pair.label


def _on_machine(machine: Machine) -> str:
    threads = "" if machine.threads is None else f" ({counted(machine.threads, 'thread')})"
    return f" on {machine.processor}{threads}" if machine.processor != UNKNOWN else ""
