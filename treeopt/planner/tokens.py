"""Tokens per step of any tree, at any context length.

    tokens(T, c) = (1 - s) tokens(T, a) + s tokens(T, b),   s = (c - a) / (b - a)

between the context lengths a and b at which acceptance was measured.  Trees are solved for with the table that is
interpolated in the same way.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64
from treeopt.planner.dependence import ChainDependence, Dependence, condition_on_parent
from treeopt.planner.smoothing import Smoothing, smooth, smooth_table
from treeopt.planner.token_draws import TokenDraws
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.accepted_ranks import RootRanks
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import weighted_neighbours
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TokenModel(ArrayRecord):
    """Predicts the tokens per step of any tree from one acceptance; the same at every batch size."""

    acceptance: MeasuredAcceptance
    """As measured, smoothed, or interpolated between `parts`."""
    smoothing: Smoothing | None
    """None if the acceptance is used as measured."""
    root_ranks: RootRanks | None = None
    """The accepted ranks below every position, for a drafter whose children depend on where the step began."""
    parts: "tuple[tuple[float, TokenModel], ...]" = ()
    """The models at the two nearest measured context lengths, each with its weight; empty if this one was measured."""

    def tokens_per_step(self, tree: TokenTree) -> float:
        """Return F(T), corrected by the replay of the measured sequences if their accepted ranks are in the profile."""
        if tree not in self._tokens:
            self._tokens[tree] = self._expected(tree)
        return self._tokens[tree]

    def _expected(self, tree: TokenTree) -> float:
        if self.parts:
            return sum(weight * part.tokens_per_step(tree) for weight, part in self.parts)
        return (self.acceptance.table.expected_tokens if self.dependence is None else self.dependence.tokens)(tree)

    def draw_tokens(self, tree: TokenTree) -> Float64:
        """Return (draws,): tokens per step; draws at different context lengths share their noise."""
        if self.parts:
            return np.asarray(sum(weight * part.draw_tokens(tree) for weight, part in self.parts))
        return self._draws.tokens(tree)

    @property
    def generator(self) -> np.random.Generator:
        """The generator in the state after the draws: copy it before use."""
        return self.parts[0][1].generator if self.parts else self._draws.generator

    @cached_property
    def dependence(self) -> ChainDependence | Dependence | None:
        """Corrects the table; None without accepted ranks, and for an interpolated model."""
        depth = self.acceptance.table.max_depth or 0
        chains = tuple(counts for counts in self.acceptance.chains if counts.length <= depth)
        if chains:
            return ChainDependence(self.acceptance.table, chains)
        accepted_ranks = self.acceptance.accepted_ranks or self.root_ranks
        return None if accepted_ranks is None else Dependence(self.acceptance.table, accepted_ranks)

    @cached_property
    def table_by_parent(self) -> AcceptanceTable | None:
        """The acceptance with rows by the parent's rank, smoothed likewise; None without root ranks."""
        if self.parts:
            tables = [(weight, part.table_by_parent) for weight, part in self.parts]
            known = [(weight, table) for weight, table in tables if table is not None]
            return _interpolate_tables(known) if len(known) == len(tables) else None
        if self.root_ranks is None:
            return None
        table = condition_on_parent(self.acceptance.table, self.root_ranks)
        return table if self.smoothing is None else smooth_table(table)

    @property
    def replayed(self) -> bool:
        """Whether measured sequences are replayed; for an interpolated model at both context lengths."""
        if self.parts:
            return all(part.replayed for _, part in self.parts)
        return isinstance(self.dependence, Dependence)

    @cached_property
    def _draws(self) -> TokenDraws:
        return TokenDraws.of(self.acceptance, self.dependence)

    @cached_property
    def _tokens(self) -> dict[TokenTree, float]:
        return {}


def token_model(acceptance: MeasuredAcceptance, *, raw: bool = False) -> TokenModel:
    """Return the model of an acceptance, smoothed unless `raw`."""
    smoothing = None if raw else smooth(acceptance)
    return TokenModel(acceptance=smoothing.acceptance if smoothing else acceptance, smoothing=smoothing)


@dataclass(frozen=True, eq=False)
class TokenModels:
    """The token models of one rule and sampling by context length; one if acceptance was not measured by context."""

    measured: tuple[TokenModel, ...]
    """By increasing context length."""
    _by_context: dict[int, TokenModel] = field(default_factory=dict, init=False, repr=False)

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths of the measured acceptances; empty if they are unknown."""
        contexts = [model.acceptance.context_tokens for model in self.measured]
        return tuple(context for context in contexts if context is not None)

    def at(self, context_tokens: int) -> TokenModel:
        """Return the model at a context length, the same object at every call."""
        if len(self.measured) == 1:
            return self.measured[0]
        if context_tokens not in self._by_context:
            parts = weighted_neighbours(dict(zip(self.contexts, self.measured, strict=True)), context_tokens)
            self._by_context[context_tokens] = parts[0][1] if len(parts) == 1 else _interpolate(parts, context_tokens)
        return self._by_context[context_tokens]


def token_models(profile: Profile, acceptance: MeasuredAcceptance, *, raw: bool = False) -> TokenModels:
    """Return the models of one of a profile's acceptances, at every context length at which it was measured."""
    return _models(profile.acceptances_by_context(acceptance), raw)


@lru_cache(maxsize=16)
def _models(acceptances: tuple[MeasuredAcceptance, ...], raw: bool) -> TokenModels:
    """Return the models; cached, because plans of one profile share the draws."""
    return TokenModels(tuple(token_model(acceptance, raw=raw) for acceptance in acceptances))


def _interpolate(parts: tuple[tuple[float, TokenModel], ...], context_tokens: int) -> TokenModel:
    smoothings = [part.smoothing for _, part in parts if part.smoothing is not None]
    acceptance = replace(
        parts[0][1].acceptance,
        context_tokens=context_tokens,
        prompts=None,
        positions=None,
        table=_interpolate_tables([(weight, part.acceptance.table) for weight, part in parts]),
        sequences=None,
        accepted_ranks=None,
        chains=(),
        categories=(),
    )
    smoothing = Smoothing(
        acceptance=acceptance,
        changed=sum(part.changed for part in smoothings),
        largest_change=max((part.largest_change for part in smoothings), default=0.0),
        kept=sum(part.kept for part in smoothings),
    )
    return TokenModel(acceptance=acceptance, smoothing=smoothing if smoothings else None, parts=parts)


def _interpolate_tables(parts: list[tuple[float, AcceptanceTable]]) -> AcceptanceTable:
    """Return a table as deep as the shallowest and as wide as the widest.

    Errors are interpolated too, because the prompts are the same.
    """
    tables = [table for _, table in parts]
    depths = [table.max_depth for table in tables if table.max_depth is not None]
    shape = (
        min(depths, default=1),
        max(table.parent_ranks for table in tables),
        max(table.branching for table in tables),
    )
    p = np.asarray(sum(weight * _extend(table.p, table, shape) for weight, table in parts))
    error = None
    if all(table.standard_error is not None for table in tables):
        error = np.asarray(
            sum(weight * _extend(np.asarray(table.standard_error), table, shape) for weight, table in parts)
        )
    smallest = shape if shape[1] > 1 else (shape[0], shape[2]) if depths else (shape[2],)
    return AcceptanceTable(p.reshape(smallest), standard_error=None if error is None else error.reshape(smallest))


def _extend(values: Float64, table: AcceptanceTable, shape: tuple[int, int, int]) -> Float64:
    """Return a table's values as (depths, parent ranks, branching): the last parent's row repeats, ranks are padded with 0."""
    depths, ranks, branching = shape
    rows = values.reshape(-1, table.parent_ranks, table.branching)
    rows = np.broadcast_to(rows, (depths, *rows.shape[1:])) if table.position_invariant else rows[:depths]
    rows = rows[:, np.minimum(np.arange(ranks), table.parent_ranks - 1)]
    return np.pad(rows, ((0, 0), (0, 0), (0, branching - table.branching)))
