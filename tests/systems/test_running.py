"""The whole contest with the bundled pair, as small as it can be: every system, both temperatures."""

import pytest

from tests.profiler.pretended import FakeClock
from treeopt.errors import InvalidValueError
from treeopt.runtime.prompts import bench_prompts, load_prompts, profile_prompts
from treeopt.systems import running
from treeopt.systems.contest import NAMES
from treeopt.systems.running import Effort, run_contest

TINY = Effort(
    max_tokens=8,
    rounds=1,
    positions=60,
    trial_prompts=1,
    trial_positions=16,
    bench_prompts=2,
    bench_tokens=24,
    repeats=1,
)
SMALL = Effort(
    max_tokens=32,
    rounds=2,
    positions=400,
    trial_prompts=2,
    trial_positions=24,
    bench_prompts=2,
    bench_tokens=40,
    repeats=1,
)


@pytest.fixture(scope="module")
def pair(bundled_pair):
    return bundled_pair


def contest(pair, names, temperatures, effort=SMALL, texts=None):
    encode, prompts = pair.tokenizer.encode, load_prompts()
    return run_contest(
        pair,
        [encode(text) for text in profile_prompts(prompts)[:texts]],
        [encode(text) for text in bench_prompts(prompts)],
        names=names,
        temperatures=temperatures,
        effort=effort,
        show_progress=False,
    )


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.slow)])
def case(request):
    """Return names and temperatures: few by a pretended clock, or all there are."""
    return (["plain", "chain", "treeopt"], [0.0]) if request.param == "few" else (list(NAMES), [0.0, 0.6])


@pytest.fixture(scope="module")
def rows(pair, case):
    names, temperatures = case
    if names == list(NAMES):
        return contest(pair, ["all"], temperatures)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "clock_for", lambda _: FakeClock(lambda: 0.001))
        return contest(pair, names, temperatures, TINY, 3)


def test_every_system_has_a_row_at_every_temperature(rows, case):
    names, temperatures = case
    assert [(row.temperature, row.system) for row in rows] == [(t, name) for t in temperatures for name in names]


def test_every_system_is_lossless(rows):
    assert [(row.system, row.evidence) for row in rows if not row.lossless] == []


def test_every_number_is_one(rows, case):
    for row in rows:
        assert row.tokens_per_step >= 1
        assert row.step_s == pytest.approx(row.draft_s + row.verify_s + row.rest_s)
        assert row.tokens_per_s == pytest.approx(row.tokens_per_step / row.step_s)
        assert row.predicted_speedup > 0
    assert [row.speedup for row in rows if row.system == "plain"] == [1.0] * len(case[1])


def test_drafts_are_of_use(rows):
    """At temperature 0 every drafter gets more than one token a step out of the bundled pair."""
    assert [row.system for row in rows if row.temperature == 0 and row.tokens_per_step < 1.1] == ["plain"]


def test_an_unknown_name_is_refused_before_anything_runs(pair):
    with pytest.raises(InvalidValueError, match="Got 'jacobi'"):
        contest(pair, ["jacobi"], [0.0])
