"""What users are told: errors (expected, got, what to do) and warnings (found, action)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters, also those that change the direction of writing, and code points that are no characters."""


class TreeoptError(Exception):
    """A known failure: the command line prints its text in one line and exits with 1.

    Args:
        message: what was expected, what came and what to do.
        field: the argument, or the field of a file's record, that is to blame; several with commas.
    """

    def __init__(self, message: str = "", *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class FormatError(TreeoptError):
    """A file that does not hold what it should: names the file, the field and the reason."""

    field: str

    def __init__(self, path: Path | str, field: str, reason: str) -> None:
        super().__init__(f"{path}: {field}: {reason}", field=field)
        self.path = Path(path)
        self.reason = reason


class InvalidValueError(TreeoptError, ValueError):
    """A value outside its range, given by a caller or read from a file."""


class InfeasibleError(TreeoptError):
    """A question that the measured data cannot answer."""


class EngineError(TreeoptError):
    """An engine that does not start, does not answer in time, or answers what cannot be: names engine and remedy."""


class OutOfMemoryError(TreeoptError, MemoryError):
    """A need of more memory than is free, found before it was taken."""


class TextsError(TreeoptError):
    """Texts of several that could not be decoded; the others were.

    Args:
        errors: why not, by number.
        count: how many texts there were.
    """

    def __init__(self, errors: Mapping[int, TreeoptError], count: int) -> None:
        number, first = next(iter(errors.items()))
        super().__init__(f"{len(errors)} of {count} texts could not be decoded. The first is number {number}: {first}")
        self.errors = dict(errors)


class TreeoptWarning(UserWarning):
    """Something that a user should know and act on; the command line prints it in one line and goes on."""


@dataclass(frozen=True, slots=True)
class Warning:
    """Something doubtful, and what to do about it; each field is a sentence."""

    found: str
    action: str

    def __str__(self) -> str:
        return f"{self.found} {self.action}"


class InterruptionError(TreeoptError):
    """The user's interruption, told with what was kept: the command line exits with 130, as shells expect."""


def reason(error: TreeoptError) -> str:
    """Return an error's text without the argument that it names first, for use inside a sentence.

    >>> reason(InvalidValueError("max_depth: expected at most 4. Got 9.", field="max_depth"))
    'expected at most 4. Got 9.'
    """
    return str(error).removeprefix(f"{error.field}: ")


def printable(text: str) -> str:
    r"""Return a text in which what a terminal would obey, and what no file may hold, is written out.

    >>> print(printable("red \x1b[31m, half \ud800"))
    red \x1b[31m, half \ud800
    """
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
