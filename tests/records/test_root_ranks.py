"""Replays along ranks below every root, compared with a decoder and with counts by hand."""

import numpy as np
import pytest

from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.accepted_ranks import RootRanks, read_root_ranks, serialize_root_ranks
from treeopt.trees import TokenTree, chain, k_ary, level_widths

DEPTHS = 3
TREES = (chain(0), chain(1), chain(3), k_ary(2, 2), level_widths([3, 2, 1]), TokenTree([-1, 0, 0, 2]))


def drawn(seed, roots):
    """Return rows of ranks of a text: each root has others, as heads that do not see each other give them."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(roots):
        row = rng.choice([REJECTED, 0, 1, 2], DEPTHS, p=[0.3, 0.4, 0.2, 0.1]).tolist()
        rows.append(row[: row.index(REJECTED)] if REJECTED in row else row)
    return rows


def walked(rows, tree):
    """Return tokens and steps, node by node: the child of a rank, if the tree has it, until it has none."""
    place = tokens = steps = 0
    children = {(int(p), int(r)): n for n, (p, r) in enumerate(zip(tree.parents, tree.rank, strict=True)) if n}
    while place < len(rows) - tree.max_depth:
        node, committed = 0, 1
        for rank in rows[place]:
            if (node, rank) not in children:
                break
            node = children[node, rank]
            committed += 1
        place, tokens, steps = place + committed, tokens + committed, steps + 1
    return tokens, steps


def test_replay_matches_decoder():
    sequences = [drawn(seed, 20 + seed) for seed in range(4)]
    ranks = RootRanks(sequences)
    for tree in TREES:
        result = ranks.replay(tree)
        assert list(zip(result.tokens.tolist(), result.steps.tolist(), strict=True)) == [
            walked(t, tree) for t in sequences
        ]


def test_replay_differs_from_ranks_by_position():
    """The negative control: what a step that began elsewhere saw there is not what this one sees."""
    rows = [[0, 0], [], [], [0, 0], [], [], []]
    shifted = [[0, 0], [0], [], [], [], [], []]
    assert RootRanks([rows]).replay(chain(2)).tokens.tolist() != RootRanks([shifted]).replay(chain(2)).tokens.tolist()


def test_rows_round_trip_and_deeper_tree_stops():
    sequences = [[[0, 1], [], [2]], [[1], [0, 0]]]
    ranks = RootRanks(sequences)
    assert ranks.rows == sequences
    assert ranks == RootRanks(sequences)
    assert RootRanks([[[0, 0]] * 9]).replay(chain(4)).tokens.tolist() == [6]


def test_table_counts_every_root():
    ranks = RootRanks([[[0, 0], [1], [0, 1], []]])
    table = ranks.table(2, 2)
    assert table.p[0].tolist() == [2 / 4, 1 / 4]  # all four roots
    assert table.p[1].tolist() == [1 / 3, 1 / 3]  # three of them have a second depth within the text, none was missed


def test_table_by_parent_counts_positions_below_first_children_and_below_others():
    table = RootRanks([[[0, 0], [1, 0], [0, 1], [1], [0, 0], []]]).table(2, 2, parent_ranks=2)
    assert table.counts.tolist() == [[6, 0], [3, 2]]  # the last root has no second depth within the text
    assert table.p.tolist() == [[[3 / 6, 2 / 6], [0, 0]], [[2 / 3, 1 / 3], [1 / 2, 0]]]


def test_table_by_parent_of_all_parents_is_the_table():
    ranks = RootRanks([drawn(seed, 40) for seed in range(3)])
    by_parent, table = ranks.table(DEPTHS, 2, parent_ranks=2), ranks.table(DEPTHS, 2)
    assert by_parent.counts.sum(axis=1).tolist() == table.counts.tolist()
    accepted = (by_parent.p * by_parent.counts[..., None]).sum(axis=1)
    np.testing.assert_allclose(accepted, table.p * table.counts[:, None])


def test_table_leaves_out_paths_of_later_ranks():
    table = RootRanks([[[2, 0], [0, 0], [2], []]]).table(2, 2)
    assert table.p.tolist() == [[1 / 4, 0], [1, 0]]  # only the second root's path goes on


ALL_REJECTED = [[[], [], []], [[]]]
SHALLOW = [[[0], [0], [0], []], [[0], [1], []]]
"""Nothing is accepted at depth 2 or below, where a drafter of three levels was measured."""
PADDED = [[[0, REJECTED, 1], [1, 0, REJECTED], [REJECTED, REJECTED, REJECTED]], []]


@pytest.mark.parametrize("sequences", [ALL_REJECTED, SHALLOW, PADDED, [drawn(1, 9), drawn(2, 5)]], ids=str)
def test_serialized_ranks_load_equal(sequences):
    ranks = RootRanks(sequences)
    loaded = read_root_ranks(Fields("file", {"root_ranks": serialize_root_ranks(ranks)}), "root_ranks")
    assert loaded == ranks
    for tree in TREES:
        assert [item.tolist() for item in loaded.replay(tree)] == [item.tolist() for item in ranks.replay(tree)]
    np.testing.assert_array_equal(loaded.table(DEPTHS, 2).p, ranks.table(DEPTHS, 2).p)


@pytest.mark.parametrize("wrong", [[], [[[-2]]]])
def test_invalid_ranks_raise(wrong):
    with pytest.raises(InvalidValueError, match="ranks: expected rows"):
        RootRanks(wrong)
