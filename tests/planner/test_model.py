"""The model of a step: numbers of any tree against walking over it, and intervals."""

import itertools

import numpy as np
import pytest

from tests.solver.oracles import paths_of
from tests.support.invented_machines import DEPTH, MACHINES, TABLES, acceptance, latency, profile, profile_of, seconds
from tests.support.planner_oracles import speedup, step_s, tokens
from treeopt.planner import Option, step_model
from treeopt.planner.request import PlanRequest
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths

TREES = [
    chain(0),
    chain(1),
    chain(5),
    chains(2, 4),
    k_ary(2, 2),
    level_widths([2, 3, 1, 1, 1]),
    TokenTree([-1, *[0] * 6]),
]


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-12)


def estimates(candidate: Option) -> tuple:
    return (candidate.tokens_per_step, candidate.step_s, candidate.speedup)


@pytest.mark.parametrize(("machine", "table"), list(itertools.product(MACHINES, TABLES)))
def test_seconds_tokens_and_speed(machine, table):
    model = step_model(profile_of(MACHINES[machine], TABLES[table]))
    for tree in TREES:
        paths = paths_of(tree.parents.tolist())
        assert model.step_s(tree) == close(step_s(paths, MACHINES[machine]))
        assert model.tokens_per_step(tree) == close(tokens(paths, TABLES[table]))
        assert model.speedup(tree) == close(speedup(tree.parents.tolist(), TABLES[table], MACHINES[machine]))


@pytest.mark.parametrize(
    ("kind", "tree", "words"),
    [
        ("plain", chain(0), "plain decoding"),
        ("chain", chain(7), "chain of 7 draft tokens"),
        ("tree", k_ary(2, 2), "tree of 7 nodes, depth 2"),
    ],
)
def test_option_shape(kind, tree, words):
    result = step_model(profile_of(MACHINES["nodes cost"], [0.5, 0.2])).predict(tree)
    assert result.shape == words
    assert (result.kind, result.tree) == (kind, tree)


def test_option_has_the_tokens_of_its_padded_pass():
    """8 tokens take less than 7 on this machine."""
    model = step_model(profile_of(MACHINES["verify not monotone"], [0.5, 0.2]))
    assert [model.predict(chain(depth)).verify_tokens for depth in (0, 6, 7, 8)] == [8, 8, 8, 9]


class TestIntervals:
    @pytest.mark.parametrize("tree", TREES, ids=repr)
    @pytest.mark.parametrize(
        "table", ["falling", "not monotone", "one row for every depth", "worse below a later child"]
    )
    def test_intervals_without_noise_are_points(self, tree, table):
        made = profile_of(MACHINES["wide drafts dear"], TABLES[table], counts=[1, 2, 7, 9], draft_counts=[1, 5, 9])
        for estimate in estimates(step_model(made).predict(tree)):
            assert estimate.low == close(estimate.value)
            assert estimate.high == close(estimate.value)

    def test_intervals_grow_with_the_noise(self):
        def width(noise: float, error: float) -> float:
            made = profile(
                [latency(MACHINES["nodes cost"], noise=noise)],
                [acceptance(TABLES["falling"], standard_error=np.full((DEPTH, 4), error))],
            )
            result = step_model(made, PlanRequest(raw=True)).predict(k_ary(2, 2)).speedup
            return result.high - result.low

        assert width(0, 0) < 1e-9 < width(0.02, 0) < width(0.2, 0)
        assert width(0, 0) < 1e-9 < width(0, 0.01) < width(0, 0.05)
        assert width(0.02, 0) < width(0.02, 0.05)

    def test_intervals_are_those_of_the_measurements(self):
        measured = acceptance([[0.5, 0.1]], standard_error=[[0.02, 0.01]])
        made = profile([latency(seconds(lambda n: 1.0 * n, lambda w: 1.0 * w), noise=0.1)], [measured])
        result = step_model(made).predict(chain(1)).tokens_per_step
        assert (result.low, result.high) == pytest.approx((1.5 - 1.96 * 0.02, 1.5 + 1.96 * 0.02), abs=0.008)
        plain = step_model(made).predict(chain(0)).step_s
        low, high = made.latencies[0].verify.timings[0].interval_s
        assert plain.high - plain.low == pytest.approx(high - low, rel=0.25)
