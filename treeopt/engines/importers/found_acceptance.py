"""What a reader of acceptance gives, whichever kind of file it read."""

from dataclasses import dataclass

from treeopt.records.acceptance import AcceptanceTable, TextSums


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAcceptance:
    """A table, what kind of file it was in, and what it was counted on."""

    table: AcceptanceTable
    kind: str
    prompts: int | None = None
    """Texts or requests; None where the file does not say."""
    positions: int | None = None
    """Steps that drafted; None likewise."""
    texts: TextSums | None = None
    """What the table was made of, text by text; None where the file does not tell texts apart."""
