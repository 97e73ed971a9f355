"""A profile's acceptance as Model-Optimizer's `speculation_profile.json`, whose fields its importer explains."""

import json
from itertools import accumulate, pairwise
from operator import mul

from treeopt.errors import InfeasibleError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.machine import Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance

NAME = "speculation-profile"
"""As in `treeopt export --to`."""
TITLE = "speculation_profile.json of Model-Optimizer"
SCHEMA = "1.0"
VERSIONS = f"schema {SCHEMA}"
NEEDS = "a profile, for the acceptance of first children; read by Dynamo's mocker and vLLM's synthetic acceptance"
TAKES = ("rule", "temperature", "context_tokens", "category", "max_depth", "method")
"""Options of `treeopt export` that change the file."""
TRAVERSAL = "traversal"
COUNT_ROUNDING = 1e-6
"""Relative distance within which a count is a whole number."""


def render(
    acceptance: MeasuredAcceptance, pair: Pair, *, max_depth: int | None = None, method: str | None = None
) -> str:
    """Return the JSON of the acceptance of rank 0, that of a chain.

    Args:
        acceptance: as measured.
        pair: the models that it was measured with.
        max_depth: the longest draft; by default all that was measured.
        method: Model-Optimizer's name of the drafting method; by default a draft model.

    Raises InfeasibleError for a depth beyond what was measured, a missing depth if all depths are alike, and a rule
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
            "set it with --depth.",
            field="max_depth",
        )
    if depth < 1:
        raise InfeasibleError(
            f"max_depth: expected at least 1 draft token. Got {depth}: set a larger --depth.", field="max_depth"
        )
    conditional = [float(rate) for rate in table.rows(depth)[:, 0, 0]]
    marginal = list(accumulate(conditional, mul))
    mean = 1 + sum(marginal)
    content = {
        "schema_version": SCHEMA,
        "measured": True,
        "producer": "treeopt",
        "method": method or "draft_model",
        "draft_checkpoint": pair.draft,
        "target_model": pair.target,
        "num_speculative_tokens": depth,
        "block_size": None,
        "max_supported_k": depth,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": conditional,
        "marginal_accept_rates": marginal,
        "mean_accept_length": mean,
        "accept_length_model": "chain_analytic",
        "accept_length_by_k": {str(depth): mean},
        "acceptance_length_histogram": _build_histogram(table, depth),
        "measurement_conditions": {
            "rule": acceptance.rule,
            "temperature": acceptance.temperature,
            "top_p": acceptance.sampling.top_p,
            "top_k": acceptance.sampling.top_k,
            "prompts": acceptance.prompts,
            "positions": acceptance.positions,
            "imported": [imported.source for imported in acceptance.imported],
        },
    }
    return json.dumps(content, indent=2) + "\n"


def _build_histogram(table: AcceptanceTable, depth: int) -> dict[str, int] | None:
    """Return the steps by the tokens that they yielded; None if the table was not counted on chains of that depth."""
    if table.counts is None or table.branching > 1 or table.max_depth != depth:
        return None
    reached = [float(count) for count in table.counts]
    accepted = [float(count * rate) for count, rate in zip(table.counts, table.p.ravel(), strict=True)]
    survived = [*reached, float(table.counts[-1] * table.p[-1].item())]
    whole = [round(count) for count in survived]
    for counts, nearest in ((survived, whole), (accepted, whole[1:])):
        pairs = zip(counts, nearest, strict=True)
        if any(abs(count - near) > COUNT_ROUNDING * max(1, near) for count, near in pairs):
            return None
    return {str(tokens): before - after for tokens, (before, after) in enumerate(pairwise([*whole, 0]), start=1)}
