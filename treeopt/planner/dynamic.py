"""Record to setting: the top-k, depth and nodes of the fastest dynamic tree, under a profile's costs.

    speedup(k, D, n) = tokens_per_step / (draft_s[1] + (D - 1) draft_s[k] + verify_s[n] + overhead_s) * verify_s[1]

Tokens per step come from replaying the record, seconds from the curves that static trees are planned with.
"""

from collections.abc import Callable, Iterator

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.errors import InfeasibleError
from treeopt.planner.model import StepModel
from treeopt.planner.options import Prediction
from treeopt.planner.replay import Replay
from treeopt.planner.resampling import draw_ratios, estimate
from treeopt.trees.dynamic_tree import DynamicTree, pool_nodes


def fastest_dynamic_tree(
    replay: Replay,
    model: StepModel,
    *,
    max_nodes: int,
    max_depth: int | None = None,
    limits: Callable[[DynamicTree], str | None] = lambda _: None,
) -> tuple[DynamicTree, Prediction]:
    """Return the fastest of all dynamic trees that were recorded, in a tie the one with the smallest numbers.

    Args:
        replay: the record.
        model: the condition of the profile whose costs count.
        max_nodes: largest number of nodes, root included.
        max_depth: most levels.
        limits: returns why an engine cannot be set to a tree; None if it can.

    Raises InfeasibleError, with the reason against the first tree, if none is measured and allowed.
    """
    best: tuple[float, DynamicTree] | None = None
    refused: tuple[DynamicTree, str] | None = None
    for top_k, depth, nodes in _settings(replay, model, max_nodes, max_depth):
        speedups = _speedup(model, top_k, depth, nodes, replay.texts(top_k, depth, nodes).tokens_per_step)
        for place in np.argsort(-speedups, kind="stable"):
            if best is not None and speedups[place] <= best[0]:
                break
            tree = DynamicTree(top_k=top_k, depth=depth, nodes=int(nodes[place]))
            reason = limits(tree)
            if reason is None:
                best = float(speedups[place]), tree
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
    """Return the prediction for one dynamic tree .

    Raises InfeasibleError for a tree beyond what was recorded or measured.
    """
    texts = replay.texts(tree.top_k, tree.depth, np.array([tree.nodes]))
    tokens, nodes = texts.tokens_per_step, np.array([tree.nodes])
    widths = np.array([tree.draft_widths])
    step_s = model.costs.step_s(nodes, widths)
    drawn = model.drawn_costs
    tokens_drawn, step_s_drawn = draw_ratios(texts.tokens[:, 0], texts.steps[:, 0]), drawn.step_s(nodes, widths)[..., 0]
    return Prediction(
        tokens_per_step=estimate(float(tokens[0]), tokens_drawn),
        step_s=estimate(float(step_s[0]), step_s_drawn),
        speedup=estimate(
            float(model.costs.speedup(tokens, step_s)[0]),
            drawn.speedup(tokens_drawn[:, None], step_s_drawn[:, None])[:, 0],
        ),
    )


def _settings(
    replay: Replay, model: StepModel, max_nodes: int, max_depth: int | None
) -> Iterator[tuple[int, int, Int64]]:
    """Yield every recorded top-k and depth with the numbers of nodes that were measured and can be drafted."""
    most = min(max_nodes, model.costs.max_nodes)
    deepest = replay.record.depth if max_depth is None else min(max_depth, replay.record.depth)
    for top_k in range(1, min(replay.record.top_k, model.costs.max_draft_width) + 1):
        for depth in range(1, deepest + 1):
            nodes = np.arange(2, min(most, 1 + pool_nodes(top_k, depth)) + 1)
            if len(nodes):
                yield top_k, depth, nodes


def _speedup(model: StepModel, top_k: int, depth: int, nodes: Int64, tokens: Float64) -> Float64:
    widths = np.tile([1, *[top_k] * (depth - 1)], (len(nodes), 1))
    return model.costs.speedup(tokens, model.costs.step_s(nodes, widths))
