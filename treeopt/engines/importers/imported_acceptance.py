"""The record of acceptance that was measured elsewhere."""

from dataclasses import dataclass

from treeopt.records.acceptance import AcceptanceTable, TextSums


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedAcceptance:
    """An acceptance table, the kind of file it was in, and what it was counted on."""

    table: AcceptanceTable
    kind: str
    prompts: int | None = None
    """Requests; None where the file does not contain their number."""
    positions: int | None = None
    """Steps that drafted; None likewise."""
    texts: TextSums | None = None
    """The sums per request that the table was made of; None where the file does not separate requests."""
