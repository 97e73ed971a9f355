"""Warnings of texts that differ, and of drafts that learn."""

from dataclasses import dataclass

from treeopt.records.warnings.caution import Caution


@dataclass(frozen=True, slots=True)
class TextsDiffer(Caution):
    """Trees whose greedy text is not plain decoding's, which is a fault of the program."""

    trees: int
    """How many of those that were decoded with."""

    @property
    def found(self) -> str:
        """Whose."""
        return f"the text of {self.trees} trees DIFFERS from plain decoding's."

    @property
    def action(self) -> str:
        """Look at them."""
        return "Look with treeopt bench TREE"


@dataclass(frozen=True, slots=True)
class TextsOfBatchDiffer(Caution):
    """Texts of a batch that are not those decoded alone, which is a fault of the program."""

    texts: int

    @property
    def found(self) -> str:
        """How many."""
        return f"{self.texts} texts DIFFER from those decoded alone, not at near-ties."

    @property
    def action(self) -> str:
        """Report it."""
        return "Report it, with --output"


@dataclass(frozen=True, slots=True)
class TextsOfStreamsDiffer(Caution):
    """Streams whose greedy texts are not the same in all ways of decoding, which is a fault of the program."""

    streams: int

    @property
    def found(self) -> str:
        """How many."""
        return f"the texts of {self.streams} streams DIFFER between ways of decoding, not at near-ties."

    @property
    def action(self) -> str:
        """Report it."""
        return "Report it, with --output"


@dataclass(frozen=True, slots=True)
class TextDiffers(Caution):
    """A tree whose greedy text is not plain decoding's, which is a fault of the program."""

    @property
    def found(self) -> str:
        """That it is so."""
        return "the text DIFFERS from plain decoding's."

    @property
    def action(self) -> str:
        """Report it."""
        return "Report it, with --output"


@dataclass(frozen=True, slots=True)
class UpdateDropped(Caution):
    """An update of a draft that learns while it drafts, whose gradient is NaN or infinite."""

    draft: str

    @property
    def found(self) -> str:
        """Whose."""
        return f"{self.draft}: an update of the draft was dropped, because its gradient is NaN or infinite; the text goes on as it was."

    @property
    def action(self) -> str:
        """Learn more slowly, or from numbers that are finite."""
        return "If it happens again, lower --learning-rate, or do without --learn."
