"""Settings of trees that grow in every step: EAGLE-2's from a draft record and a profile's costs, SpecExec's to try.

    speedup(k, D, n) = tokens_per_step / (draft_s[1] + (D - 1) draft_s[k] + verify_s[n] + overhead_s) * verify_s[1]

Tokens per step come from replaying the record, seconds from the curves that static trees are planned with.
"""

from collections.abc import Callable, Iterator

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.errors import InfeasibleError
from treeopt.planner.model import StepModel
from treeopt.planner.options import Prediction, predictions
from treeopt.planner.replay import Replay
from treeopt.planner.resampling import draw_ratios
from treeopt.trees.drafter_parameters import DynamicTree, SpecExecSetting, pool_nodes

FLAT = 1.5
"""A pass is flat up to the last size whose double takes at most this many times as long."""
PASSES = (4, 8, 16)
"""Most draft passes of the proposed settings."""


def fastest_dynamic_tree(
    replay: Replay,
    model: StepModel,
    *,
    max_nodes: int,
    max_depth: int | None = None,
    limits: Callable[[DynamicTree], str | None] = lambda _: None,
) -> tuple[DynamicTree, Prediction]:
    """Return the fastest of all recorded dynamic trees, in a tie the one with the smallest parameters.

    Args:
        replay: the record.
        model: costs at the operating point.
        max_nodes: largest number of nodes, root included.
        max_depth: most levels.
        limits: returns the reason why an engine does not support a tree; None if it does.

    Raises InfeasibleError, with the reason against the first tree, if none is measured and supported.
    """
    best: tuple[float, DynamicTree] | None = None
    refused: tuple[DynamicTree, str] | None = None
    for top_k, depth, nodes in _settings(replay, model, max_nodes, max_depth):
        tokens = replay.count_steps(top_k, depth, nodes).tokens_per_step
        widths = np.tile([1, *[top_k] * (depth - 1)], (len(nodes), 1))
        speedups = model.costs.speedup(tokens, model.costs.step_s(nodes, widths))
        for index in np.argsort(-speedups, kind="stable"):
            if best is not None and speedups[index] <= best[0]:
                break
            tree = DynamicTree(top_k=top_k, depth=depth, nodes=int(nodes[index]))
            reason = limits(tree)
            if reason is None:
                best = float(speedups[index]), tree
                break
            refused = refused or (tree, reason)
    if best is None and refused is not None:
        tree, reason = refused
        raise InfeasibleError(
            f"dynamic tree: none of those measured is allowed, such as top-k {tree.top_k}, depth {tree.depth}, "
            f"{tree.nodes} nodes: {reason}"
        )
    if best is None:
        raise InfeasibleError("dynamic tree: none was measured within the limits. Record or profile more.")
    return best[1], predict_dynamic(replay, model, best[1])


def predict_dynamic(replay: Replay, model: StepModel, tree: DynamicTree) -> Prediction:
    """Return the prediction for one dynamic tree.

    Raises InfeasibleError for a tree beyond what was recorded or measured.
    """
    nodes, widths = np.array([tree.nodes]), np.array([tree.draft_widths])
    counts = replay.count_steps(tree.top_k, tree.depth, nodes)
    tokens, step_s = counts.tokens_per_step, model.costs.step_s(nodes, widths)
    drawn_tokens = draw_ratios(counts.tokens[:, 0], counts.steps[:, 0])[:, None]
    drawn_s = model.drawn_costs.step_s(nodes, widths)
    (prediction,) = predictions(
        (tokens, step_s, model.costs.speedup(tokens, step_s)),
        (drawn_tokens, drawn_s, model.drawn_costs.speedup(drawn_tokens, drawn_s)),
    )
    return prediction


def specexec_settings(model: StepModel) -> tuple[SpecExecSetting, ...]:
    """Return the settings of SpecExec to try: budgets whose verification is flat.

    Budgets are powers of two, a draft pass is as wide as is flat, and every budget is combined with few and with many
    passes.  The fastest has to be measured, because the depth of the trees depends on the sequence.
    """
    costs, children = model.costs, model.acceptance.table.branching
    widest = int(_flat_counts(costs.draft_s)[-1])
    settings = [
        SpecExecSetting(
            budget=budget,
            branching=min(children, budget - 1),
            batch=min(widest, budget - 1),
            max_passes=min(passes, budget - 1),
        )
        for budget in _flat_counts(costs.verify_s)[1:].tolist()
        for passes in PASSES
    ]
    return tuple(dict.fromkeys(settings))


def _settings(
    replay: Replay, model: StepModel, max_nodes: int, max_depth: int | None
) -> Iterator[tuple[int, int, Int64]]:
    """Yield every recorded top-k and depth with the numbers of nodes that were measured and can be drafted."""
    max_nodes = min(max_nodes, model.costs.max_nodes)
    deepest = replay.record.depth if max_depth is None else min(max_depth, replay.record.depth)
    for top_k in range(1, min(replay.record.top_k, model.costs.max_draft_width) + 1):
        for depth in range(1, deepest + 1):
            nodes = np.arange(2, min(max_nodes, 1 + pool_nodes(top_k, depth)) + 1)
            if len(nodes):
                yield top_k, depth, nodes


def _flat_counts(seconds: Float64) -> Int64:
    """Return 1, 2, 4, … up to the last count whose pass is flat, at least two of them if two were measured.

    Args:
        seconds: (N + 1,) of passes over 0 … N tokens.
    """
    counts = 2 ** np.arange(int(np.log2(len(seconds) - 1)) + 1)
    flat = np.flatnonzero(seconds[counts[1:]] <= FLAT * seconds[counts[:-1]])
    return counts[: 2 + int(flat[-1] if len(flat) else 0)]
