"""The fastest dynamic tree, compared with all of them, and SpecExec's settings to try."""

import numpy as np
import pytest

from tests.cli.invented import draft_s, invented, verify_s
from tests.support.invented_drafts import InventedDraft, decoded_steps, invented_text, recorded
from treeopt.errors import InfeasibleError
from treeopt.planner import step_model
from treeopt.planner.dynamic import fastest_dynamic_tree, predict_dynamic, specexec_settings
from treeopt.planner.replay import Replay
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes

TOP_K, DEPTH, ROOTS, OVERHEAD_S = 3, 4, 24, 2e-4


def curves(scale: float):
    """Return a machine whose drafted levels cost `scale` times more."""
    return invented(overhead_s=OVERHEAD_S, draft=lambda n, c, b: scale * draft_s(n, c, b))


@pytest.fixture(scope="module")
def sequences():
    draft = InventedDraft(4)
    return draft, [invented_text(draft, seed, ROOTS + DEPTH + 1) for seed in range(3)]


@pytest.fixture(scope="module")
def replay(sequences):
    return Replay(recorded(*sequences, ROOTS, TOP_K, DEPTH))


def every_speedup(sequences, scale: float, max_nodes: int) -> dict[DynamicTree, float]:
    draft, every = sequences
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
def test_no_dynamic_tree_is_faster(sequences, replay, scale, max_nodes):
    model = step_model(curves(scale))
    tree, result = fastest_dynamic_tree(replay, model, max_nodes=max_nodes)
    speedups = every_speedup(sequences, scale, max_nodes)
    assert result.speedup.value == pytest.approx(max(speedups.values()))
    assert speedups[tree] == pytest.approx(result.speedup.value)
    assert result.speedup.low <= result.speedup.value <= result.speedup.high


def test_costs_change_the_choice(replay):
    choices = {
        fastest_dynamic_tree(replay, step_model(curves(scale)), max_nodes=32)[0] for scale in (0.1, 1.0, 4.0, 20.0)
    }
    assert len(choices) > 1


def test_limits_exclude_trees(sequences, replay):
    model = step_model(curves(1.0))
    allowed = {tree: speedup for tree, speedup in every_speedup(sequences, 1.0, 32).items() if tree.nodes % 5 == 0}
    _, result = fastest_dynamic_tree(
        replay, model, max_nodes=32, limits=lambda tree: "nodes: not a multiple of 5." if tree.nodes % 5 else None
    )
    assert result.speedup.value == pytest.approx(max(allowed.values()))
    with pytest.raises(InfeasibleError, match=r"none of those measured is allowed, such as top-k 1, .*: too small"):
        fastest_dynamic_tree(replay, model, max_nodes=32, limits=lambda _: "too small.")
    with pytest.raises(InfeasibleError, match="none was measured within the limits"):
        fastest_dynamic_tree(replay, model, max_nodes=1)


def test_no_tree_is_deeper_than_allowed(sequences, replay):
    model = step_model(curves(1.0))
    free, _ = fastest_dynamic_tree(replay, model, max_nodes=32)
    limited, result = fastest_dynamic_tree(replay, model, max_nodes=32, max_depth=free.depth - 1)
    shallow = [speedup for tree, speedup in every_speedup(sequences, 1.0, 32).items() if tree.depth < free.depth]
    assert limited.depth < free.depth
    assert result.speedup.value == pytest.approx(max(shallow))


def test_tree_beyond_the_record_raises(replay):
    with pytest.raises(InfeasibleError):
        predict_dynamic(replay, step_model(curves(1.0)), DynamicTree(top_k=TOP_K + 1, depth=2, nodes=4))


def test_interval_reflects_different_sequences(replay):
    one = predict_dynamic(replay, step_model(curves(1.0)), DynamicTree(top_k=2, depth=3, nodes=8))
    assert one.tokens_per_step.low < one.tokens_per_step.value < one.tokens_per_step.high


def settings_to_try(verify, draft=lambda *_: 1e-3):
    return specexec_settings(step_model(invented(verify=verify, draft=draft)))


@pytest.mark.parametrize(
    ("verify", "budgets"),
    [
        (lambda n, *_: 1e-2 * max(1, n / 8), {2, 4, 8}),
        (lambda *_: 1e-2, {2, 4, 8, 16, 32}),
        (lambda n, *_: 1e-2 * n, {2}),
        (lambda n, *_: 1e-2 if n == 1 else 2e-2, {2, 4, 8, 16, 32}),
    ],
    ids=["flat up to 8", "flat", "nowhere flat", "one slow size"],
)
def test_specexec_budgets_end_where_verification_is_not_flat(verify, budgets):
    settings = settings_to_try(verify)
    assert {setting.budget for setting in settings} == budgets
    assert len(set(settings)) == len(settings)


def test_specexec_draft_pass_is_as_wide_as_is_flat():
    settings = settings_to_try(lambda *_: 1e-2, lambda n, *_: 1e-3 * max(1, n / 4))
    assert {setting.batch for setting in settings if setting.budget > 4} == {4}
