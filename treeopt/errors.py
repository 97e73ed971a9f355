"""The errors a user can meet; each text says what was expected, what came and what to do."""

from pathlib import Path


class TreeoptError(Exception):
    """A known failure: the command line prints its text in one line and exits with 1."""


class FormatError(TreeoptError):
    """A file that does not hold what it should: names the file, the field and the reason."""

    def __init__(self, path: Path | str, field: str, reason: str) -> None:
        super().__init__(f"{path}: {field}: {reason}")
        self.path = Path(path)
        self.field = field
        self.reason = reason


class InvalidValueError(TreeoptError, ValueError):
    """A value outside its range, given by a caller or read from a file."""


class InfeasibleError(TreeoptError):
    """A question that the measured data cannot answer."""


class OutOfMemoryError(TreeoptError, MemoryError):
    """A need of more memory than is free, found before it was taken."""


class TreeoptWarning(UserWarning):
    """Something that a user should know and act on; the command line prints it in one line and goes on."""
