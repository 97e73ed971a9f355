"""Replaying a record is decoding: the same steps as expanding every tree token by token."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.invented_drafts import InventedDraft, decoded_steps, invented_text, recorded
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner.replay import Replay
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes

TOP_K, DEPTH, ROOTS = 3, 4, 24
SETTINGS = [(top_k, depth) for top_k in range(1, TOP_K + 1) for depth in range(1, DEPTH + 1)]


@pytest.fixture(scope="module", params=[0, 1])
def invented(request):
    draft = InventedDraft(request.param)
    sequences = [invented_text(draft, seed, ROOTS + DEPTH + 1) for seed in range(3)]
    return draft, sequences, Replay(recorded(draft, sequences, ROOTS, TOP_K, DEPTH))


@pytest.mark.parametrize(("top_k", "depth"), SETTINGS)
def test_replay_has_the_steps_of_decoding(invented, top_k, depth):
    draft, sequences, replay = invented
    nodes = np.arange(2, pool_nodes(top_k, depth) + 2)
    result = replay.count_steps(top_k, depth, nodes)
    expected = [[decoded_steps(draft, text, ROOTS, top_k, depth, n) for n in nodes.tolist()] for text in sequences]
    assert np.stack([result.tokens, result.steps], axis=-1).tolist() == [
        [list(pair) for pair in row] for row in expected
    ]


def test_the_draft_is_neither_always_right_nor_always_wrong(invented):
    _, _, replay = invented
    chains = [DynamicTree.chain(length) for length in (1, DEPTH)]
    counts = [replay.count_steps(tree.top_k, tree.depth, np.array([tree.nodes])) for tree in chains]
    tokens = [float(count.tokens_per_step[0]) for count in counts]
    assert 1.1 < tokens[0] < tokens[1] < DEPTH


def test_other_path_scores_change_the_steps(invented):
    """Negative control."""
    _, _, replay = invented
    record = replay.record
    nodes = np.arange(2, pool_nodes(TOP_K, DEPTH) + 2)
    flat = Replay(replace(record, log_probs=np.sort(record.log_probs - 1, axis=1)[:, ::-1] * np.float32(0.01)))
    assert (
        flat.count_steps(TOP_K, DEPTH, nodes).tokens.tolist() != replay.count_steps(TOP_K, DEPTH, nodes).tokens.tolist()
    )


def test_unrecorded_settings_raise(invented):
    _, _, replay = invented
    for top_k, depth in [(TOP_K + 1, 1), (1, DEPTH + 1), (0, 1), (1, 0)]:
        with pytest.raises(InfeasibleError, match="were recorded"):
            replay.count_steps(top_k, depth, np.array([2]))


def test_missing_expanded_node_raises(invented):
    record = invented[2].record
    last = int(record.node_starts[1]) - 1
    short = replace(
        record,
        node_starts=np.concatenate([[0], record.node_starts[1:] - 1]),
        **{name: np.delete(getattr(record, name), last, axis=0) for name in ("parent", "rank", "log_probs")},
    )

    def replay_all():
        return [Replay(short).count_steps(top_k, DEPTH, np.array([2])) for top_k in range(1, TOP_K + 1)]

    with pytest.raises(InvalidValueError, match="was not expanded"):
        replay_all()
