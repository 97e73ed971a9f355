"""The acceptance of one verification rule at one temperature, with where it comes from."""

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.record_form import in_file
from treeopt.records.acceptance import SUMS_ROUNDING, AcceptanceTable, TextSums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.categories import check_categories
from treeopt.records.engine import ChainCounts, check_lengths
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import Imported, check_imported
from treeopt.tabular import Row, Tabular

ACCEPTANCE = "acceptance"


def _accepted_ranks(fields: Fields, name: str) -> AcceptedRanks:
    return fields.build(name, AcceptedRanks, fields.integer_rows(name))


def _ranks(accepted_ranks: AcceptedRanks) -> list[list[int]]:
    return [ranks.tolist() for ranks in accepted_ranks.ranks]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredAcceptance(ShortRepr, Tabular):
    """The acceptance of one verification rule at one temperature.

    Raises InvalidValueError when the sums over texts are not those of the table, or the import is told twice.
    """

    rule: str
    temperature: float
    top_p: float = field(metadata=in_file(most=1.0))
    top_k: int = field(default=0, metadata=in_file(least=0, optional=True))
    """Tokens of the target's distribution that sampling kept; 0 is all."""
    draft_sampling: Sampling | None = None
    """The distribution that children were sampled from; None is the target's temperature and all tokens."""
    context_tokens: int | None = field(default=None, metadata=in_file(least=0))
    """Tokens in the cache at the measured positions, in their middle; None where they follow their prompts wherever these end."""
    prompts: int | None
    """Prompts whose continuations were measured; None where an imported table does not say."""
    positions: int | None
    """Generated positions that were measured; None likewise."""
    table: AcceptanceTable = field(metadata=in_file(inline=True))
    texts: TextSums | None = None
    """What the table was made of, text by text; None where only the table is known."""
    accepted_ranks: AcceptedRanks | None = field(
        default=None, metadata=in_file(name="outcomes", read=_accepted_ranks, write=_ranks)
    )
    """Of every position, text by text; for `traversal` those that its table was built on."""
    categories: tuple[str, ...] = ()
    """The category of each text's prompt, `""` for none; empty where no prompt has one."""
    imported: tuple[Imported, ...] = ()
    """Where `acceptance` was read from, if it was measured elsewhere."""
    chains: tuple[ChainCounts, ...] = ()
    """What an engine's steps came to by draft length, where whole steps were counted; texts as in `texts`."""

    @property
    def sampling(self) -> Sampling:
        """How the target's tokens were sampled."""
        return Sampling(self.temperature, self.top_p, self.top_k)

    @property
    def condition(self) -> tuple[Hashable, ...]:
        """All that it was measured under but the context: equal for the parts of one acceptance by context."""
        return self.rule, self.temperature, self.top_p, self.top_k, self.draft_sampling, self.imported

    def to_records(self) -> list[Row]:
        """Return the table's rows, each with the rule and the temperature."""
        return [{"rule": self.rule, "temperature": self.temperature, **row} for row in self.table.to_records()]

    def __post_init__(self) -> None:
        check_imported(self.imported, (ACCEPTANCE,))
        check_lengths(self.chains)
        texts = 0 if self.texts is None else len(self.texts.reached)
        check_categories(self.categories, texts)
        if self.accepted_ranks is not None and len(self.accepted_ranks.ranks) != texts:
            raise InvalidValueError(
                f"outcomes: expected those of {texts} texts, as many as `texts` has. Got {len(self.accepted_ranks.ranks)}.",
                field="texts",
            )
        if self.texts is None:
            return
        p = self.texts.p
        if p.shape != self.table.p.shape:
            raise InvalidValueError(
                f"texts: expected sums for p in shape {self.table.p.shape}. Got {p.shape}.", field="texts"
            )
        if np.abs(p - self.table.p).max() > SUMS_ROUNDING:
            where = tuple(np.argwhere(np.abs(p - self.table.p) > SUMS_ROUNDING)[0].tolist())
            raise InvalidValueError(
                f"texts: expected accepted / reached, over all texts, to be p{list(where)} = {self.table.p[where]:.6g}. "
                f"Got {p[where]:.6g}.",
                field="texts",
            )


def nothing_drafted(sampling: Sampling) -> MeasuredAcceptance:
    """Return the acceptance of plain decoding: no child is drafted, so none is accepted."""
    return MeasuredAcceptance(
        rule=GIVEN_TOKENS,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        prompts=None,
        positions=None,
        table=AcceptanceTable([0.0]),
    )
