"""Tokens per step of any tree, at any context length.

    tokens(T, c) = (1 - s) tokens(T, a) + s tokens(T, b),   s = (c - a) / (b - a)

between the context lengths a and b that acceptance was measured at.  Trees are solved for by the table that is
interpolated in the same way.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from treeopt.array_record import ArrayRecord
from treeopt.arrays import Float64
from treeopt.errors import Warning
from treeopt.planner.dependence import ChainDependence, Dependence
from treeopt.planner.smoothing import Smoothing, smooth
from treeopt.planner.token_draws import TokenDraws, draw_tokens
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import around
from treeopt.records.profile import Profile
from treeopt.records.root_ranks import RootRanks
from treeopt.trees import TokenTree


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TokenModel(ArrayRecord):
    """Tokens per step of any tree by one acceptance: the same at every batch size."""

    acceptance: MeasuredAcceptance
    """As measured, or smoothed, or interpolated between `parts`."""
    smoothing: Smoothing | None
    """What smoothing did; None if it was not wanted."""
    root_ranks: RootRanks | None = None
    """The accepted ranks below every position, of a drafter whose children depend on where the step began."""
    parts: "tuple[tuple[float, TokenModel], ...]" = ()
    """The models at the two context lengths around this one, each with its weight; empty if it was measured."""

    def tokens_per_step(self, tree: TokenTree) -> float:
        """Return F(T), corrected by the replay of the measured sequences if their accepted ranks are known."""
        if tree not in self._tokens:
            self._tokens[tree] = self._expected(tree)
        return self._tokens[tree]

    def _expected(self, tree: TokenTree) -> float:
        if self.parts:
            return sum(weight * part.tokens_per_step(tree) for weight, part in self.parts)
        return (self.acceptance.table.expected_tokens if self.dependence is None else self.dependence.tokens)(tree)

    def draw_tokens(self, tree: TokenTree) -> Float64:
        """Return (draws,): tokens per step; the sequences' noise is the same at every context length."""
        if self.parts:
            return np.asarray(sum(weight * part.draw_tokens(tree) for weight, part in self.parts))
        return self._draws.tokens(tree)

    @property
    def generator(self) -> np.random.Generator:
        """The generator of the draws, in the state that they left it in: copy it before use."""
        return self.parts[0][1].generator if self.parts else self._draws.generator

    @cached_property
    def dependence(self) -> ChainDependence | Dependence | None:
        """What the table leaves out; None without accepted ranks, and for an interpolated model."""
        depth = self.acceptance.table.max_depth or 0
        chains = tuple(each for each in self.acceptance.chains if each.length <= depth)
        if chains:
            return ChainDependence(self.acceptance.table, chains)
        accepted_ranks = self.acceptance.accepted_ranks or self.root_ranks
        return None if accepted_ranks is None else Dependence(self.acceptance.table, accepted_ranks)

    @property
    def replayed(self) -> bool:
        """Whether measured sequences are replayed, at both context lengths if the model is interpolated."""
        return all(part.replayed for _, part in self.parts) if self.parts else self.dependence is not None

    @cached_property
    def _draws(self) -> TokenDraws:
        return draw_tokens(self.acceptance, self.dependence)

    @cached_property
    def _tokens(self) -> dict[TokenTree, float]:
        return {}


def token_model(acceptance: MeasuredAcceptance, *, raw: bool = False) -> TokenModel:
    """Return the model of an acceptance, smoothed unless it is taken `raw`, as measured."""
    smoothing = None if raw else smooth(acceptance)
    return TokenModel(acceptance=smoothing.acceptance if smoothing else acceptance, smoothing=smoothing)


@dataclass(frozen=True, eq=False)
class TokenModels:
    """The token models of one rule and sampling by context length; one if acceptance was not measured by it."""

    measured: tuple[TokenModel, ...]
    """By rising context length."""
    _at: dict[int, TokenModel] = field(default_factory=dict, init=False, repr=False)

    @property
    def acceptance(self) -> MeasuredAcceptance:
        """That of the shortest context."""
        return self.measured[0].acceptance

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths that acceptance was measured at; empty if they are unknown."""
        contexts = [model.acceptance.context_tokens for model in self.measured]
        return tuple(context for context in contexts if context is not None)

    def at(self, context_tokens: int) -> TokenModel:
        """Return the model at a context length, the same object at every call."""
        if len(self.measured) == 1:
            return self.measured[0]
        if context_tokens not in self._at:
            parts = around(dict(zip(self.contexts, self.measured, strict=True)), context_tokens)
            self._at[context_tokens] = parts[0][1] if len(parts) == 1 else _interpolate(parts, context_tokens)
        return self._at[context_tokens]


def token_models(profile: Profile, acceptance: MeasuredAcceptance, *, raw: bool = False) -> TokenModels:
    """Return the models of an acceptance at every context length that it was measured at.

    Args:
        profile: what was measured.
        acceptance: one of its own.
        raw: take it as measured, not smoothed.
    """
    return TokenModels(tuple(token_model(each, raw=raw) for each in profile.at_contexts(acceptance)))


def warn_outside_contexts(profile: Profile, acceptance: MeasuredAcceptance, contexts: Iterable[int]) -> Warning | None:
    """Return a warning for context lengths outside those that an acceptance was measured at, None if there are none.

    An acceptance without a context length counts for the first one that was timed.  Engines report the lengths of whole
    sequences, which differ between batch sizes: there is no warning for them.
    """
    if profile.engine is not None:
        return None
    known = [each.context_tokens for each in profile.at_contexts(acceptance) if each.context_tokens is not None]
    return outside_contexts("acceptance", tuple(known) or (profile.step_latencies[0].context_tokens,), contexts)


def outside_contexts(what: str, measured: tuple[int, ...], contexts: Iterable[int]) -> Warning | None:
    """Return a warning for context lengths outside the measured ones, which rise; None if there are none."""
    outside = tuple(sorted({context for context in contexts if not measured[0] <= context <= measured[-1]}))
    if not outside:
        return None
    at = " to ".join(map(str, dict.fromkeys((measured[0], measured[-1]))))
    only = " only" if len(measured) == 1 else ""
    return Warning(
        f"{what} was measured at {at} tokens of context{only}, and is taken from there for "
        f"{','.join(map(str, outside))}, where it may differ.",
        f"Profile with --context-tokens {','.join(map(str, sorted({*measured, *outside})))}.",
    )


def _interpolate(parts: tuple[tuple[float, TokenModel], ...], context_tokens: int) -> TokenModel:
    """Return the model between others, each with its weight."""
    smoothings = [part.smoothing for _, part in parts if part.smoothing is not None]
    acceptance = replace(
        parts[0][1].acceptance,
        context_tokens=context_tokens,
        prompts=None,
        positions=None,
        table=_interpolate_tables([(weight, part.acceptance.table) for weight, part in parts]),
        texts=None,
        accepted_ranks=None,
        chains=(),
        categories=(),
    )
    smoothing = Smoothing(
        acceptance=acceptance,
        changed=sum(each.changed for each in smoothings),
        largest_change=max((each.largest_change for each in smoothings), default=0.0),
        kept=sum(each.kept for each in smoothings),
    )
    return TokenModel(acceptance=acceptance, smoothing=smoothing if smoothings else None, parts=parts)


def _interpolate_tables(parts: list[tuple[float, AcceptanceTable]]) -> AcceptanceTable:
    """Return the table as deep as all are and as wide as the widest; errors add up, because the prompts are the same."""
    tables = [table for _, table in parts]
    depths = [table.max_depth for table in tables if table.max_depth is not None]
    shape = (
        min(depths, default=1),
        max(table.parent_ranks for table in tables),
        max(table.branching for table in tables),
    )
    p = np.asarray(sum(weight * _rows(table.p, table, shape) for weight, table in parts))
    error = None
    if all(table.standard_error is not None for table in tables):
        error = np.asarray(
            sum(weight * _rows(np.asarray(table.standard_error), table, shape) for weight, table in parts)
        )
    smallest = shape if shape[1] > 1 else (shape[0], shape[2]) if depths else (shape[2],)
    return AcceptanceTable(p.reshape(smallest), standard_error=None if error is None else error.reshape(smallest))


def _rows(values: Float64, table: AcceptanceTable, shape: tuple[int, int, int]) -> Float64:
    """Return a table's values in `shape`: depths, ranks of the parent, children; the last parent's row holds on."""
    depths, ranks, branching = shape
    rows = values.reshape(-1, table.parent_ranks, table.branching)
    rows = np.broadcast_to(rows, (depths, *rows.shape[1:])) if table.position_invariant else rows[:depths]
    rows = rows[:, np.minimum(np.arange(ranks), table.parent_ranks - 1)]
    return np.pad(rows, ((0, 0), (0, 0), (0, branching - table.branching)))
