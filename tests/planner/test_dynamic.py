"""The fastest dynamic tree, against every one there is, priced by hand."""

import numpy as np
import pytest

from tests.cli.invented import draft_s, invented, verify_s
from tests.support.invented_drafts import InventedDraft, decoded_steps, invented_text, recorded
from treeopt.errors import InfeasibleError
from treeopt.planner import step_model
from treeopt.planner.dynamic import fastest_dynamic_tree, predict_dynamic
from treeopt.planner.replay import Replay
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes

TOP_K, DEPTH, ROOTS, OVERHEAD_S = 3, 4, 24, 2e-4


def curves(scale: float):
    """Return a machine on which a drafted level costs so many times more."""
    return invented(overhead_s=OVERHEAD_S, draft=lambda n, c, b: scale * draft_s(n, c, b))


@pytest.fixture(scope="module")
def texts():
    draft = InventedDraft(4)
    return draft, [invented_text(draft, seed, ROOTS + DEPTH + 1) for seed in range(3)]


@pytest.fixture(scope="module")
def replay(texts):
    return Replay(recorded(*texts, ROOTS, TOP_K, DEPTH))


def every_speedup(texts, scale: float, max_nodes: int) -> dict[DynamicTree, float]:
    draft, every = texts
    speedups = {}
    for top_k in range(1, TOP_K + 1):
        for depth in range(1, DEPTH + 1):
            for nodes in range(2, min(max_nodes, pool_nodes(top_k, depth) + 1) + 1):
                counted = [decoded_steps(draft, text, ROOTS, top_k, depth, nodes) for text in every]
                tokens, steps = np.sum(counted, axis=0)
                drafted_s = draft_s(1, 256, 1) + (depth - 1) * draft_s(top_k, 256, 1)
                step_s = scale * drafted_s + verify_s(nodes, 256, 1) + OVERHEAD_S
                speedups[DynamicTree(top_k=top_k, depth=depth, nodes=nodes)] = (
                    tokens / steps / step_s * verify_s(1, 256, 1)
                )
    return speedups


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("max_nodes", [4, 32])
def test_no_dynamic_tree_is_faster(texts, replay, scale, max_nodes):
    model = step_model(curves(scale))
    tree, found = fastest_dynamic_tree(replay, model, max_nodes=max_nodes)
    speedups = every_speedup(texts, scale, max_nodes)
    assert found.speedup.value == pytest.approx(max(speedups.values()))
    assert speedups[tree] == pytest.approx(found.speedup.value)
    assert found.speedup.low <= found.speedup.value <= found.speedup.high


def test_costs_change_the_choice(replay):
    choices = {
        fastest_dynamic_tree(replay, step_model(curves(scale)), max_nodes=32)[0] for scale in (0.1, 1.0, 4.0, 20.0)
    }
    assert len(choices) > 1


def test_only_what_is_allowed(texts, replay):
    model = step_model(curves(1.0))
    allowed = {tree: speedup for tree, speedup in every_speedup(texts, 1.0, 32).items() if tree.nodes % 5 == 0}
    _, found = fastest_dynamic_tree(
        replay, model, max_nodes=32, limits=lambda tree: "nodes: not a multiple of 5." if tree.nodes % 5 else None
    )
    assert found.speedup.value == pytest.approx(max(allowed.values()))
    with pytest.raises(InfeasibleError, match=r"none of those measured is allowed, such as top-k 1, .*: too small"):
        fastest_dynamic_tree(replay, model, max_nodes=32, limits=lambda _: "too small.")
    with pytest.raises(InfeasibleError, match="none was measured within the limits"):
        fastest_dynamic_tree(replay, model, max_nodes=1)


def test_no_tree_is_deeper_than_allowed(texts, replay):
    model = step_model(curves(1.0))
    free, _ = fastest_dynamic_tree(replay, model, max_nodes=32)
    limited, found = fastest_dynamic_tree(replay, model, max_nodes=32, max_depth=free.depth - 1)
    shallow = [speedup for tree, speedup in every_speedup(texts, 1.0, 32).items() if tree.depth < free.depth]
    assert limited.depth < free.depth
    assert found.speedup.value == pytest.approx(max(shallow))


def test_a_tree_beyond_what_was_timed_is_refused(replay):
    with pytest.raises(InfeasibleError):
        predict_dynamic(replay, step_model(curves(1.0)), DynamicTree(top_k=TOP_K + 1, depth=2, nodes=4))


def test_texts_that_differ_widen_the_interval(replay):
    one = predict_dynamic(replay, step_model(curves(1.0)), DynamicTree(top_k=2, depth=3, nodes=8))
    assert one.tokens_per_step.low < one.tokens_per_step.value < one.tokens_per_step.high
