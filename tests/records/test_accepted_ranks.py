"""Replays along accepted ranks, compared with walking node by node."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.trees import TokenTree, chain, k_ary, level_widths

TREES = [chain(0), chain(1), chain(5), k_ary(2, 3), level_widths([4, 3, 5]), TokenTree([-1, 0, 0, 1, 1, 2])]
MISS = -1


def walked(tree, ranks):
    """Decode one text again as a decoder would, step after step; return tokens and whole steps."""
    children = {
        node: [child for child in range(tree.nodes) if tree.parents[child] == node] for node in range(tree.nodes)
    }
    position = steps = 0
    while position + tree.max_depth < len(ranks):
        node = 0
        while True:
            rank = ranks[position]
            position += 1  # the token that is accepted, or sampled in place of what was rejected, or after a leaf
            if rank == MISS or rank >= len(children[node]):
                break
            node = children[node][rank]
        steps += 1
    return position, steps


sequences = st.lists(st.lists(st.integers(MISS, 4), max_size=40), min_size=1, max_size=3)


@given(sequences)
@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_replay_walks_every_sequence(tree, ranks):
    result = AcceptedRanks(ranks).replay(tree)
    assert [tuple(item) for item in zip(*map(np.ndarray.tolist, result), strict=True)] == [
        walked(tree, r) for r in ranks
    ]


def test_replays_are_cached_by_tree():
    ranks = [[1, 0, 0, 1, 0, MISS, 0, 0, 1, 0] * 3]
    accepted_ranks, trees = AcceptedRanks(ranks), [TokenTree([-1, 0, 0, 1, 1]), TokenTree([-1, 0, 0, 2, 2])]
    result = [tuple(int(item[0]) for item in accepted_ranks.replay(tree)) for tree in trees]
    assert result == [walked(tree, ranks[0]) for tree in trees]
    assert result[0] != result[1]


def test_late_steps_are_not_truncated():
    """Counting a step that the text's end cut off would make every other step seem longer or shorter."""
    rng = np.random.default_rng(0)
    ranks = [np.where(rng.random(12) < 0.8, 0, MISS) for _ in range(3_000)]
    tokens, steps = AcceptedRanks(ranks).replay(chain(8))
    expected = AcceptanceTable([0.8]).expected_tokens(chain(8))
    assert tokens.sum() / steps.sum() == pytest.approx(expected, rel=0.015)
    with_cut_steps = sum(map(len, ranks)) / sum(len(starts(chain(8), item)) for item in ranks)
    assert with_cut_steps < 0.95 * expected


def starts(tree, ranks):
    position, result = 0, []
    while position < len(ranks):
        result.append(position)
        depth = 0
        while position < len(ranks) and depth < tree.max_depth and ranks[position] != MISS:
            position, depth = position + 1, depth + 1
        position += 1
    return result


@given(sequences)
def test_table_counts_every_position_as_root(ranks):
    depths, branching = 3, 4
    reached, accepted = np.zeros(depths), np.zeros((depths, branching))
    for text in ranks:
        for root in range(len(text)):
            for depth in range(depths):
                if root + depth >= len(text):
                    break
                reached[depth] += 1
                rank = text[root + depth]
                if 0 <= rank < branching:
                    accepted[depth, rank] += 1
                if rank == MISS:
                    break
    result = AcceptedRanks(ranks).table(depths, branching)
    np.testing.assert_allclose(result.p, accepted / np.maximum(reached, 1)[:, None])


@pytest.mark.parametrize("ranks", [[], [[0, -2]], [[[0]]], [0, 1]], ids=str)
def test_invalid_ranks_raise(ranks):
    with pytest.raises(InvalidValueError, match="ranks: expected a list of ranks of at least -1 for every sequence"):
        AcceptedRanks(ranks)
