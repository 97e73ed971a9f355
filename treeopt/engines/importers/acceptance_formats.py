"""Acceptance in the files of other programs: what `treeopt export` writes of a profile without planning anything."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul

from treeopt.engines.importers.speculation_profile import (
    BY_LENGTH,
    CONDITIONAL,
    HISTOGRAM,
    LENGTH,
    MARGINAL,
    MEAN,
    METHOD,
    MOST_LENGTH,
    PREFIX,
    VERSION,
)
from treeopt.errors import InfeasibleError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.machine import Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance

TRAVERSAL = "traversal"
WHOLE = 1e-6
"""Counts are whole within this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceFormat:
    """A file that holds a chain's acceptance."""

    name: str
    """As in `treeopt export --to`."""
    title: str
    versions: str
    needs: str
    write: Callable[..., str]
    """As `speculation_profile`: from an acceptance and its pair, with `max_depth` and `method`."""
    takes: tuple[str, ...]
    """Options of `treeopt export` that change its file."""


def speculation_profile(
    acceptance: MeasuredAcceptance, pair: Pair, *, max_depth: int | None = None, method: str | None = None
) -> str:
    """Return the JSON of a chain's acceptance, that of rank 0.

    Args:
        acceptance: as measured.
        pair: the models it is of.
        max_depth: the longest draft that is told; by default all that was measured.
        method: Model-Optimizer's name of how is drafted; None is a draft model.

    Raises InfeasibleError for a depth beyond what was measured, without one where all depths are alike, and for a rule
    that does not accept the longest prefix.
    """
    if acceptance.rule == TRAVERSAL:
        raise InfeasibleError(
            "rule: expected one that accepts a token after all before it. Got traversal: choose another with --rule.",
            field="rule",
        )
    table = acceptance.table
    depth = table.max_depth if max_depth is None else max_depth
    if depth is None:
        raise InfeasibleError(
            "max_depth: expected how many draft tokens, because the acceptance is the same at every depth. Got none: "
            "say it with --depth.",
            field="max_depth",
        )
    if depth < 1:
        raise InfeasibleError(
            f"max_depth: expected at least 1 draft token. Got {depth}: ask for more.", field="max_depth"
        )
    conditional = [float(rate) for rate in table.rows(depth)[:, 0, 0]]
    marginal = list(accumulate(conditional, mul))
    mean = 1 + sum(marginal)
    content = {
        "schema_version": VERSION,
        "measured": True,
        "producer": "treeopt",
        "method": method or "draft_model",
        "draft_checkpoint": pair.draft,
        "target_model": pair.target,
        LENGTH: depth,
        "block_size": None,
        MOST_LENGTH: depth,
        METHOD: PREFIX,
        CONDITIONAL: conditional,
        MARGINAL: marginal,
        MEAN: mean,
        "accept_length_model": "chain_analytic",
        BY_LENGTH: {str(depth): mean},
        HISTOGRAM: _whole_histogram(table, depth),
        "measurement_conditions": {
            "rule": acceptance.rule,
            "temperature": acceptance.temperature,
            "top_p": acceptance.top_p,
            "top_k": acceptance.top_k,
            "prompts": acceptance.prompts,
            "positions": acceptance.positions,
            "imported": [each.source for each in acceptance.imported],
        },
    }
    return json.dumps(content, indent=2) + "\n"


def _whole_histogram(table: AcceptanceTable, depth: int) -> dict[str, int] | None:
    """Return the steps by their tokens where the table was counted on whole steps of one length; None where not."""
    if table.counts is None or table.branching > 1 or table.max_depth != depth:
        return None
    last = float(table.counts[-1] * table.p[-1].item())
    survived = [*map(float, table.counts), last]
    taken = [float(count * rate) for count, rate in zip(table.counts, table.p.ravel(), strict=True)]
    whole = [round(count) for count in survived]
    if any(abs(count - near) > WHOLE * max(1, near) for count, near in zip(survived, whole, strict=True)):
        return None
    if any(abs(count - near) > WHOLE * max(1, near) for count, near in zip(taken, whole[1:], strict=True)):
        return None
    return {str(place + 1): before - after for place, (before, after) in enumerate(pairwise([*whole, 0]))}


SPECULATION_PROFILE = AcceptanceFormat(
    name="speculation-profile",
    title="speculation_profile.json of Model-Optimizer",
    versions=f"schema {VERSION}",
    needs="a profile, of whose acceptance the first children are written; Dynamo's mocker and vLLM's synthetic "
    "acceptance take its rates",
    write=speculation_profile,
    takes=("rule", "temperature", "context_tokens", "category", "depth", "method"),
)
ACCEPTANCE_FORMATS = (SPECULATION_PROFILE,)
