"""The measured acceptance of one verification rule at one temperature."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.serialization import in_file
from treeopt.records.acceptance import SUMS_ROUNDING, AcceptanceTable, SequenceSums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.engine import ChainCounts, check_chain_lengths
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import Imported, check_imported
from treeopt.tabular import Row, Tabular

ACCEPTANCE = "acceptance"


def _read_accepted_ranks(fields: Fields, name: str) -> AcceptedRanks:
    return fields.build(name, AcceptedRanks, fields.integer_rows(name))


def _serialize_ranks(accepted_ranks: AcceptedRanks) -> list[list[int]]:
    return [ranks.tolist() for ranks in accepted_ranks.ranks]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredAcceptance(ShortRepr, Tabular):
    """The acceptance of one verification rule at one temperature.

    Raises InvalidValueError if the sums over sequences do not match the table, or a source is listed twice.
    """

    rule: str
    sampling: Sampling = field(metadata=in_file(inline=True))
    """Of the target."""
    draft_sampling: Sampling | None = None
    """Of the draft; None is the target's temperature and all tokens."""
    context_tokens: int | None = field(default=None, metadata=in_file(least=0))
    """Cached tokens halfway through the measured positions; None if positions follow prompts of any length."""
    prompts: int | None = None
    """Measured prompts; None if an imported table does not contain the number."""
    positions: int | None = None
    """Measured positions; None likewise."""
    table: AcceptanceTable = field(metadata=in_file(inline=True))
    sequences: SequenceSums | None = None
    """The sums over sequences that `table` is computed from; None if unknown."""
    accepted_ranks: AcceptedRanks | None = field(
        default=None, metadata=in_file(read=_read_accepted_ranks, write=_serialize_ranks)
    )
    """Of each of `sequences`; for `traversal`, the ranks that its table was computed from."""
    categories: tuple[str, ...] = ()
    """Category of each sequence's prompt, `""` for none; empty if no prompt has one."""
    imported: tuple[Imported, ...] = ()
    """Source of an imported acceptance."""
    chains: tuple[ChainCounts, ...] = ()
    """Steps and tokens of an engine by draft length, for each of `sequences`."""

    @property
    def temperature(self) -> float:
        """Of the target's sampling."""
        return self.sampling.temperature

    @property
    def condition(self) -> tuple[str, Sampling, Sampling | None, tuple[Imported, ...]]:
        """All conditions except the context length."""
        return self.rule, self.sampling, self.draft_sampling, self.imported

    def to_records(self) -> list[Row]:
        return [{"rule": self.rule, "temperature": self.temperature, **row} for row in self.table.to_records()]

    def __post_init__(self) -> None:
        check_imported(self.imported, (ACCEPTANCE,))
        check_chain_lengths(self.chains)
        sequences = 0 if self.sequences is None else len(self.sequences.reached)
        check_categories(self.categories, sequences)
        if self.accepted_ranks is not None and len(self.accepted_ranks.ranks) != sequences:
            raise InvalidValueError(
                f"accepted_ranks: expected those of {sequences} sequences. Got {len(self.accepted_ranks.ranks)}.",
                field="sequences",
            )
        if self.sequences is None:
            return
        if self.chains and len(self.chains[0].steps) != sequences:
            raise InvalidValueError(
                f"chains: expected counts of {sequences} sequences. Got {len(self.chains[0].steps)}.", field="chains"
            )
        p = self.sequences.p
        if p.shape != self.table.p.shape:
            raise InvalidValueError(
                f"sequences: expected sums for p in shape {self.table.p.shape}. Got {p.shape}.", field="sequences"
            )
        if np.abs(p - self.table.p).max() > SUMS_ROUNDING:
            index = tuple(np.argwhere(np.abs(p - self.table.p) > SUMS_ROUNDING)[0].tolist())
            raise InvalidValueError(
                f"sequences: expected accepted / reached, over all of them, to be p{list(index)} = "
                f"{self.table.p[index]:.6g}. Got {p[index]:.6g}.",
                field="sequences",
            )


def check_categories(categories: Sequence[str], sequences: int) -> None:
    """Raise InvalidValueError unless `categories` is empty or has one entry per sequence; `""` means no category."""
    if categories and len(categories) != sequences:
        raise InvalidValueError(
            f"categories: expected one for each of {sequences} sequences. Got {len(categories)}.", field="categories"
        )


def select_categories(categories: Sequence[str], prompts: Iterable[int]) -> tuple[str, ...]:
    """Return the categories of the prompts with these numbers; empty if no prompt of the profile has a category."""
    return tuple(categories[prompt] for prompt in prompts) if any(categories) else ()


def plain_acceptance(sampling: Sampling) -> MeasuredAcceptance:
    """Return the acceptance of plain decoding: all 0."""
    return MeasuredAcceptance(rule=TARGET_RULE, sampling=sampling, table=AcceptanceTable([0.0]))
