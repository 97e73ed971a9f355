"""Acceptance at any context length: measured there, or straight between the measured lengths around it.

    tokens(T, c) = (1 - s) tokens(T, a) + s tokens(T, b),   s = (c - a) / (b - a)

Trees are solved for by the table that is mixed alike.  Outside the measured lengths the nearest one holds: how
acceptance goes on there nobody measured, and a straight line would leave 0 … 1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from treeopt.arrays import Float64
from treeopt.errors import Warning
from treeopt.planner.condition import condition, shares
from treeopt.planner.model import StepModel, TokenModel, token_model
from treeopt.planner.request import PlanRequest, Where
from treeopt.planner.smoothing import Smoothing
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile

Parts = Sequence[tuple[float, TokenModel]]


@dataclass(frozen=True, eq=False)
class ContextModels:
    """The token models of one rule and sampling, by rising context length; one where acceptance was not measured by it."""

    measured: tuple[TokenModel, ...]
    _mixed: dict[int, TokenModel] = field(default_factory=dict, init=False, repr=False)

    @property
    def acceptance(self) -> MeasuredAcceptance:
        """That of the shortest context."""
        return self.measured[0].acceptance

    @property
    def contexts(self) -> tuple[int, ...]:
        """Context lengths that acceptance was measured at; empty where it is not said."""
        found = [each.acceptance.context_tokens for each in self.measured]
        return tuple(each for each in found if each is not None)

    def at(self, context_tokens: int) -> TokenModel:
        """Return the model at a context length; measured ones, and where one holds for all, are the very same."""
        if len(self.measured) == 1:
            return self.measured[0]
        if context_tokens not in self._mixed:
            inside = int(np.clip(context_tokens, self.contexts[0], self.contexts[-1]))
            parts = [(share, self.measured[self.contexts.index(at)]) for share, at in shares(inside, self.contexts)]
            self._mixed[context_tokens] = parts[0][1] if len(parts) == 1 else mixed(parts, context_tokens)
        return self._mixed[context_tokens]


def context_models(profile: Profile, acceptance: MeasuredAcceptance, *, raw: bool = False) -> ContextModels:
    """Return the models of an acceptance at every context length that it was measured at.

    Args:
        profile: what was measured.
        acceptance: one of its own.
        raw: take it as measured, not smoothed.
    """
    return ContextModels(tuple(token_model(each, raw=raw) for each in profile.at_contexts(acceptance)))


def elsewhere(profile: Profile, acceptance: MeasuredAcceptance, contexts: Iterable[int]) -> Warning | None:
    """Return the warning for context lengths outside those that an acceptance was measured at, None where there are none.

    One that does not say where it was measured counts for the first context length that was timed.  Engines say the
    lengths of whole texts, which differ from batch size to batch size: of those nothing is said.
    """
    if profile.engine is not None:
        return None
    known = [each.context_tokens for each in profile.at_contexts(acceptance) if each.context_tokens is not None]
    return outside("acceptance", tuple(known) or (profile.step_latencies[0].context_tokens,), contexts)


def outside(what: str, measured: tuple[int, ...], contexts: Iterable[int]) -> Warning | None:
    """Return the warning for context lengths outside the measured ones, which rise; None where there are none."""
    found = tuple(sorted({each for each in contexts if not measured[0] <= each <= measured[-1]}))
    if not found:
        return None
    at = " to ".join(map(str, dict.fromkeys((measured[0], measured[-1]))))
    only = " only" if len(measured) == 1 else ""
    return Warning(
        f"{what} was measured at {at} tokens of context{only}, and is taken from there for {','.join(map(str, found))}, where it "
        "may differ.",
        f"Profile with --context-tokens {','.join(map(str, sorted({*measured, *found})))}.",
    )


def step_model(
    profile: Profile,
    *,
    rule: str | None = None,
    temperature: float | None = None,
    context_tokens: int | None = None,
    batch_size: int | None = None,
    raw: bool = False,
    extrapolate: bool = False,
    max_nodes: int = 0,
) -> StepModel:
    """Return the model of one condition of a profile; by default the first one measured.

    Args:
        profile: what was measured.
        rule: verification rule whose acceptance and overhead count.
        temperature: at which it was measured.
        context_tokens: tokens in the cache; between measured lengths, times and acceptance are interpolated.
        batch_size: sequences verified together; interpolated likewise.
        raw: take the acceptance as measured, without smoothing rows that rise by noise.
        extrapolate: go on beyond what was measured, in context, batch size and nodes.
        max_nodes: where larger than what was measured, and with `extrapolate`, how far to go.

    Raises InfeasibleError naming what was measured.
    """
    where = Where(context_tokens=context_tokens, batch_size=batch_size, extrapolate=extrapolate)
    request = PlanRequest(rule=rule, temperature=temperature, where=where, raw=raw)
    return requested_model(profile, request, max_nodes=max_nodes if extrapolate else 0)


def requested_model(profile: Profile, request: PlanRequest, *, max_nodes: int = 0) -> StepModel:
    """Return the model of the condition that is asked for, of the rule, or else of the first one measured.

    With `max_nodes` it goes on as far beyond what was measured; raises InfeasibleError naming what was measured.
    """
    acceptance = profile.acceptance(rule=request.rule, temperature=request.temperature)
    drafts = context_models(profile, acceptance, raw=request.raw)
    found = condition(profile, drafts.acceptance.temperature, request.where)
    return drafts.at(found.context_tokens).under(found, max_nodes=max_nodes)


def mixed(parts: Parts, context_tokens: int) -> TokenModel:
    """Return the model that lies between others.

    Args:
        parts: their shares, which add up to 1.
        context_tokens: where it lies.
    """
    smoothings = [part.smoothing for _, part in parts if part.smoothing is not None]
    acceptance = replace(
        parts[0][1].acceptance,
        context_tokens=context_tokens,
        prompts=None,
        positions=None,
        table=_table(parts),
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
    return TokenModel(acceptance=acceptance, smoothing=smoothing if smoothings else None, parts=tuple(parts))


def _table(parts: Parts) -> AcceptanceTable:
    """Return the mixed table, as deep as all parts are and as wide as the widest; errors add up, as texts are the same."""
    tables = [part.acceptance.table for _, part in parts]
    depths = [each.max_depth for each in tables if each.max_depth is not None]
    sizes = (
        min(depths, default=1),
        max(each.parent_ranks for each in tables),
        max(each.branching for each in tables),
    )
    weights = [share for share, _ in parts]
    p = sum(weight * _rows(each.p, each, sizes) for weight, each in zip(weights, tables, strict=True))
    errors = [each.standard_error for each in tables]
    error = None
    if all(each is not None for each in errors):
        known = zip(weights, errors, tables, strict=True)
        error = sum(weight * _rows(np.asarray(each), table, sizes) for weight, each, table in known)
    shape = sizes if sizes[1] > 1 else (sizes[0], sizes[2]) if depths else (sizes[2],)
    return AcceptanceTable(
        np.asarray(p).reshape(shape), standard_error=None if error is None else np.asarray(error).reshape(shape)
    )


def _rows(values: Float64, table: AcceptanceTable, sizes: tuple[int, int, int]) -> Float64:
    """Return a table's values in shape `sizes`: depths, ranks of the parent, children; the last parent's row holds on."""
    depths, ranks, branching = sizes
    rows = values.reshape(-1, table.parent_ranks, table.branching)
    rows = np.broadcast_to(rows, (depths, *rows.shape[1:])) if table.position_invariant else rows[:depths]
    rows = rows[:, np.minimum(np.arange(ranks), table.parent_ranks - 1)]
    return np.pad(rows, ((0, 0), (0, 0), (0, branching - table.branching)))
