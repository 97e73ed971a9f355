"""What visits of nodes say of ranks, beside a count that walks every step by hand."""

import numpy as np

from treeopt.adaptation.counts import AgedOutcomes, Outcomes, Visits, outcomes_along
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.trees import TokenTree, chain, level_widths

TREES = [chain(3), level_widths([3, 2]), TokenTree([-1, 0, 0, 0, 1, 1, 2, 4])]


def by_hand(tree, paths, depths, ranks):
    """Return (tried, accepted) of every depth and rank, child by child."""
    tried, accepted = np.zeros((2, depths, ranks))
    for path in paths:
        for place, node in enumerate(path):
            following = path[place + 1] if place + 1 < len(path) else None
            for rank, child in enumerate(tree.children(node)):
                if place < depths and rank < ranks:
                    tried[place, rank] += 1
                    accepted[place, rank] += child == following
                if child == following:
                    break
    return tried, accepted


def random_paths(tree, count, rng):
    paths = []
    for _ in range(count):
        path = [0]
        while len(tree.children(path[-1])) and rng.random() < 0.7:
            path.append(int(rng.choice(list(tree.children(path[-1])))))
        paths.append(tuple(path))
    return paths


def test_visits_tell_how_often_every_child_was_tried_and_accepted():
    rng = np.random.default_rng(0)
    for tree in TREES:
        for depths, ranks in ((4, 4), (2, 2), (1, 1)):
            visits, paths = Visits(tree, depths, ranks), random_paths(tree, 60, rng)
            visits.paths += paths
            found = visits.take()
            tried, accepted = by_hand(tree, paths, depths, ranks)
            assert np.array_equal(found.tried, tried)
            assert np.array_equal(found.accepted, accepted)
            assert visits.take().tried.sum() == 0  # it begins anew


def test_older_outcomes_count_half_after_the_half_life():
    aged = AgedOutcomes(100, 1, 1)
    aged.add(Outcomes(np.array([[8.0]]), np.array([[4.0]])), 10)
    aged.add(Outcomes.none(1, 1), 100)
    assert (aged.outcomes.tried[0, 0], aged.outcomes.accepted[0, 0]) == (4.0, 2.0)
    aged.add(Outcomes.none(1, 1), 2000)
    assert aged.outcomes.tried[0, 0] < 1e-4


def test_measured_texts_are_counted_where_steps_with_the_tree_would_begin():
    ranks = AcceptedRanks([[0, 0, 1, -1, 0, 2, 0, 0, 0, 0], [1, -1, -1, 0, 0]])
    tree = chain(2)
    found = outcomes_along(ranks, tree, 2, 3)
    # text 1: steps at 0 (0, 0), 3 (miss), 4 (0, then 2), 6 (0, 0); text 2: at 0 (1), 1 (miss), 2 (miss)
    assert found.tried.tolist() == [[7, 4, 3], [3, 1, 1]]
    assert found.accepted.tolist() == [[3, 1, 0], [2, 0, 1]]
