"""The map of when trees win."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.scripts import ROOT, script
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, chain

win = script(ROOT / "benchmarks" / "when_trees_win.py")


def test_flatness_is_the_size_of_a_pass_that_takes_twice_as_long() -> None:
    costs = win.costs_of(16.0, 0.1)
    assert costs.verify_s[16] == pytest.approx(2 * costs.verify_s[1])
    assert costs.draft_s[1] == pytest.approx(0.1 * costs.verify_s[1])
    tokens = [1, 2, 8, 64]
    flatness, beyond = win.doubling(tokens, [float(costs.verify_s[count]) for count in tokens])
    assert (flatness, beyond) == (pytest.approx(16.0), False)
    assert win.doubling([1, 32], [1.0, 1.9]) == (32.0, True)
    assert win.doubling([1, 2, 4], [1.0, 3.0, 2.0])[0] == pytest.approx(1.5)


def test_later_children_divide_the_remaining_probability_as_published() -> None:
    assert win.table_of(win.RANKS_FIRST).p == pytest.approx([win.RANKS_FIRST, *win.RANKS])
    p = win.table_of(0.5).p
    assert p[0] == 0.5
    assert p[1] / p[2] == pytest.approx(win.RANKS[0] / win.RANKS[1])
    assert p.sum() < 1


def test_gains_equal_an_enumeration_of_small_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(win, "BUDGET", 5)
    monkeypatch.setattr(win, "DEPTH", 4)
    for flatness, first in ((2.0, 0.9), (8.0, 0.4), (64.0, 0.6)):
        (over_chain,), (over_plain,) = win.gains([flatness], [first], 0.1)
        costs, table = win.costs_of(flatness, 0.1), win.table_of(first)

        def speed(tree: TokenTree, costs=costs, table=table) -> float:
            return float(table.expected_tokens(tree) * costs.verify_s[1] / costs.tree_s(tree))

        trees = {TokenTree.ordered([-1, *rest]) for n in range(5) for rest in np.ndindex(*range(1, n + 1))}
        best, best_chain = max(map(speed, trees)), max(speed(chain(length)) for length in range(5))
        assert over_plain[0] == pytest.approx(best)
        assert over_chain[0] == pytest.approx(best / best_chain)


def test_engines_without_several_batch_sizes_are_excluded(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "tests/data/profile-engine.yaml"
    assert Profile.load(path).engine is not None
    assert win.points_of([path]) == []
    assert "Probe more batch sizes" in capsys.readouterr().err


def test_points_have_the_numbers_of_their_profiles() -> None:
    (point,) = win.points_of([ROOT / "tests/data/profile-golden.yaml"])
    profile = Profile.load(ROOT / "tests/data/profile-golden.yaml")
    table = profile.latencies[0].verify
    expected = win.doubling(table.tokens.tolist(), table.medians_s.tolist())
    assert (point.flatness, point.beyond) == expected
    assert point.over_plain >= 1
    assert not point.published
    assert win.published().published
    assert win.published().beyond  # no pass of its configuration takes twice as long
    assert 64 < win.offloaded().flatness < 256


def test_points_beyond_the_axes_are_not_drawn() -> None:
    points = [win.published(), replace(win.published(), first=0.08), win.offloaded()]
    axes = Figure().subplots()
    win._draw_points(axes, points)
    assert [text.get_text() for text in axes.texts] == ["1", "3"]
