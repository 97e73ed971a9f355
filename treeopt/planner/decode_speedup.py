"""From decode stats to the fastest setting of a drafter: counts from decoding, seconds from the profile.

    step_s = draft_s + sum over sizes of share[size] verify_s[size] + overhead_s
    speedup = tokens_per_step / step_s * verify_s[1]

For drafters whose trees hang on the text, and which therefore have no table of acceptance by depth and rank.
"""

from collections.abc import Sequence

import numpy as np

from treeopt.arrays import Float64
from treeopt.errors import InfeasibleError
from treeopt.planner.costs import StepCosts
from treeopt.planner.draws import SEED, draw_medians, draw_ratios, estimate
from treeopt.planner.model import StepModel
from treeopt.records.decode_stats import DecodeStats
from treeopt.records.latency import Estimate


def predicted_speedup(stats: DecodeStats, model: StepModel) -> Estimate:
    """Return tokens per second over those of plain decoding, with its 95 % interval.

    Raises InfeasibleError for passes larger than were timed.
    """
    drawn_s = _step_s(stats, model.draws.costs, draw_medians((stats.draft,), np.random.default_rng(SEED))[:, 0])
    drawn = draw_ratios(stats.tokens, stats.steps) / drawn_s * model.draws.costs.plain_s[..., 0]
    return estimate(_speedup(stats, model), drawn)


def predicted_step_s(stats: DecodeStats, model: StepModel) -> float:
    """Return the seconds of a step; raises as `predicted_speedup` does."""
    return float(_step_s(stats, model.costs, np.array(stats.draft.median_s)))


def fastest_setting(tried: Sequence[DecodeStats], model: StepModel) -> int:
    """Return the number of the setting with the largest predicted speedup, in a tie the first.

    Raises InfeasibleError without any.
    """
    if not tried:
        raise InfeasibleError("settings: expected decode stats of at least one. Got none.")
    return int(np.argmax([_speedup(stats, model) for stats in tried]))


def _speedup(stats: DecodeStats, model: StepModel) -> float:
    return float(stats.tokens_per_step / predicted_step_s(stats, model) * model.costs.plain_s[0])


def _step_s(stats: DecodeStats, costs: StepCosts, draft_s: Float64) -> Float64:
    """Return (…,): seconds of a step, for the curves or for draws of them."""
    if stats.pass_tokens[-1] > costs.max_nodes:
        raise InfeasibleError(
            f"nodes: times were measured for 1 to {costs.max_nodes} tokens. Got {stats.pass_tokens[-1]}: ask for fewer, "
            "or profile with a larger --max-tokens."
        )
    share = stats.passes / stats.passes.sum()
    overhead_s = costs.overhead_s * float(share[stats.pass_tokens > 1].sum())
    return np.asarray(draft_s + costs.verify.at(stats.pass_tokens) @ share + overhead_s)
