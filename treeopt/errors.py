"""Errors (expected, got, what to do) and warnings (problem, action)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
"""Control characters, including those that change the direction of writing, and code points without a character."""


class TreeoptError(Exception):
    """Base of all errors of treeopt; the command line prints the message in one line and exits with 1.

    Args:
        message: what was expected, what came, and what to do.
        field: the argument or field at fault; several are separated by commas.
    """

    def __init__(self, message: str = "", *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class FormatError(TreeoptError):
    """A file with invalid content; the message names the file, the field and the reason."""

    field: str

    def __init__(self, path: Path | str, field: str, reason: str) -> None:
        super().__init__(f"{path}: {field}: {reason}", field=field)
        self.path = Path(path)
        self.reason = reason


class InvalidValueError(TreeoptError, ValueError):
    """An argument, or a value in a file, that is out of range."""


class InfeasibleError(TreeoptError):
    """A request beyond what was measured."""


class EngineError(TreeoptError):
    """An engine that does not start, does not respond in time, or reports contradictory numbers."""


class OutOfMemoryError(TreeoptError, MemoryError):
    """More memory is needed than is free; raised before the allocation."""


class BatchError(TreeoptError):
    """Some sequences of a batch failed; the others were decoded.

    Args:
        errors: by index of the sequence.
        count: number of sequences.
    """

    def __init__(self, errors: Mapping[int, TreeoptError], count: int) -> None:
        index, first = next(iter(errors.items()))
        super().__init__(
            f"{len(errors)} of {count} sequences could not be decoded. The first is number {index}: {first}"
        )
        self.errors = dict(errors)


class TreeoptWarning(UserWarning):
    """Category of all warnings; the command line prints them in one line and continues."""


@dataclass(frozen=True, slots=True)
class Warning:
    """A problem and what to do about it, a sentence each."""

    problem: str
    action: str

    def __str__(self) -> str:
        return f"{self.problem} {self.action}"

    @property
    def sentence(self) -> str:
        """The text with a capital letter, for use outside a line that begins with `Warning:`."""
        text = str(self)
        return text[:1].upper() + text[1:]


class InterruptionError(TreeoptError):
    """Ctrl-C, with a message on what was kept; the command line exits with 130."""


def reason(error: TreeoptError) -> str:
    """Return an error's message without the leading name of the argument, for use inside a sentence.

    >>> reason(InvalidValueError("max_depth: expected at most 4. Got 9.", field="max_depth"))
    'expected at most 4. Got 9.'
    """
    return str(error).removeprefix(f"{error.field}: ")


def printable(text: str) -> str:
    r"""Return text with control characters and invalid code points escaped.

    >>> print(printable("red \x1b[31m, half \ud800"))
    red \x1b[31m, half \ud800
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)
