"""Width limits on tables that rise, or depend on the parent's rank, against every tree enumerated."""

import math

import numpy as np
import pytest

from tests.solver.oracles import by_enumeration, by_greed, depth_of, paths_of, rows_of, same, weight
from tests.solver.tables import NAMED, PLAIN_PYTHON
from treeopt.errors import InvalidValueError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import INTEGER_PROGRAM, solve, width_limits

NODES = 5 if PLAIN_PYTHON else 7
RISING = {name: p for name, p in NAMED.items() if np.ndim(p) == 3 or np.any(np.diff(np.array(p)) > 0)}


def drawn(seed: int) -> tuple[object, list[int], list[int]]:
    """Return a table that rises or has several parent ranks, and limits of both kinds."""
    rng = np.random.default_rng(seed)
    depth, ranks, branching = rng.integers(2, 5), rng.integers(1, 4), rng.integers(2, 5)
    p = rng.dirichlet(np.full(branching + 1, 0.5), (depth, ranks))[..., :branching]
    table = p.tolist() if ranks > 1 or rng.random() < 0.5 else p[:, 0].tolist()
    return table, rng.integers(1, 5, depth).tolist(), rng.integers(1, 4, depth).tolist()


@pytest.mark.parametrize("name", RISING)
@pytest.mark.parametrize("limits", [(1, 1), (2, 2), (3, 1), (2, 9)], ids=str)
def test_named_tables_equal_every_tree_enumerated(name, limits):
    p = RISING[name]
    depth = depth_of(p, 3)
    level, draft = ([limit] * depth for limit in limits)
    solution = solve(AcceptanceTable(p), NODES, depth, level_widths=limits[0], draft_widths=limits[1])
    same(solution.expected_tokens, by_enumeration(p, NODES, depth, level, draft))
    assert solution.certificate.gap_tokens <= 1e-9


@pytest.mark.parametrize("seed", range(6 if PLAIN_PYTHON else 40))
def test_drawn_tables_equal_every_tree_enumerated(seed):
    p, level, draft = drawn(seed)
    depth = len(level)
    solution = solve(AcceptanceTable(p), NODES, depth, level_widths=level, draft_widths=draft)
    same(solution.expected_tokens, by_enumeration(p, NODES, depth, level, draft))
    for d in range(depth + 1):
        for n in range(1, NODES + 1):
            tree = solution.tree(n, d)
            tokens = math.fsum(weight(path, rows_of(p, depth)) for path in paths_of(tree.parents.tolist()))
            assert tokens == pytest.approx(solution.expected_tokens[d, n], rel=1e-12)
            assert tree.nodes <= n
            assert tree.max_depth <= d
            assert np.all(tree.level_widths[1:] <= level[: tree.max_depth])
            assert np.all(tree.draft_widths <= draft[: tree.max_depth])
            widths = solution.draft_widths()[d, n]
            assert widths[: tree.max_depth].tolist() == tree.draft_widths.tolist()


def test_greed_is_noticed():
    """The negative control: taking the likeliest next node is not the optimum, limits or none."""
    p = NAMED["a spike worth a detour"]
    limits = [9] * 3
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        same(by_greed(p, NODES, 3), by_enumeration(p, NODES, 3, limits, limits))


@pytest.mark.skipif(PLAIN_PYTHON, reason="slow without compiled kernels")
@pytest.mark.parametrize("limit", [3, 5])
def test_limits_that_bind_nowhere_leave_the_optimum(limit):
    rng = np.random.default_rng(limit)
    p = rng.dirichlet(np.full(4, 0.7), 4)[:, :3]
    free = solve(AcceptanceTable(p), 12, 4)
    wide = solve(AcceptanceTable(p), 12, 4, level_widths=12, draft_widths=12)
    assert wide.certificate.method == INTEGER_PROGRAM
    same(wide.expected_tokens, free.expected_tokens)
    narrow = solve(AcceptanceTable(p), 12, 4, level_widths=limit)
    assert np.all(narrow.expected_tokens <= free.expected_tokens * (1 + 1e-12))


@pytest.mark.skipif(PLAIN_PYTHON, reason="slow without compiled kernels")
def test_too_few_candidates_are_noticed_and_more_taken(monkeypatch):
    """Choosing among the few first nodes alone falls short; the stand-in for the others says so, and more are taken."""
    p = np.sort(np.random.default_rng(3).dirichlet(np.ones(7)))[:6]
    expected = solve(AcceptanceTable(p), 14, 4, level_widths=5).expected_tokens
    monkeypatch.setattr(width_limits, "FIRST_NODES", 14)
    same(solve(AcceptanceTable(p), 14, 4, level_widths=5).expected_tokens, expected)
    monkeypatch.setattr(width_limits, "MOST_NODES", 1)
    short = solve(AcceptanceTable(p), 14, 4, level_widths=5)
    assert short.certificate.gap_tokens > 1e-6
    assert np.all(short.expected_tokens <= expected + 1e-12)
    assert np.all(short.trees.bounds >= expected - 1e-9)


def test_too_many_programs_are_refused():
    with pytest.raises(InvalidValueError, match=r"at most 2000\. Got 501 x 4: ask for fewer, or let rows fall"):
        solve(AcceptanceTable([[0.1, 0.5]] * 4), 501, 4, level_widths=8)
