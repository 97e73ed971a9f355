"""`bench methods` with the bundled pair and minimal effort: every method at temperature 0, one of each kind above."""

import pytest

from treeopt.methods.names import NAMES
from treeopt.methods.running import Effort, run_methods
from treeopt.profiler.bench.compare import Workload
from treeopt.records.results import NotRun
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts

SHIPPED = [name for name in NAMES if name not in ("dspark", "p-eagle")]
"""Methods that need no heads but the bundled ones."""
SAMPLED = ["plain", "prompt-lookup", "chain", "dflash", "redrafter"]
"""Of a draft model, a head with static trees, one with trees of its own, and none."""
SMALL = Effort(max_tokens=16, rounds=1, positions=200, setting_prompts=2, setting_positions=16)


pytestmark = pytest.mark.slow  # test_own_pair.py runs one with toy models


@pytest.fixture(scope="module")
def pair(bundled_pair):
    return bundled_pair


def run(pair, names, temperatures):
    encode, texts = pair.tokenizer.encode, load_prompts()
    return run_methods(
        pair,
        [encode(text) for text in profile_prompts(texts)],
        Workload(prompts=[encode(text) for text in bench_prompts(texts)][:2], max_new_tokens=24, repeats=1),
        names=names,
        temperatures=temperatures,
        effort=SMALL,
        show_progress=False,
    )


@pytest.fixture(scope="module")
def rows(pair):
    return [*run(pair, SHIPPED, [0.0]), *run(pair, SAMPLED, [0.6])]


def test_every_method_has_a_row(rows):
    expected = [(0.0, SHIPPED), (0.6, SAMPLED)]
    assert [(row.temperature, row.method) for row in rows] == [(t, name) for t, names in expected for name in names]
    assert [row for row in rows if isinstance(row, NotRun)] == []


def test_every_method_is_lossless(rows):
    assert [(row.method, row.evidence) for row in rows if not row.lossless] == []


def test_every_number_is_finite(rows):
    for row in rows:
        assert row.tokens_per_step >= 1
        assert row.tokens_per_s == pytest.approx(row.tokens_per_step / row.step_s)
        assert row.predicted_speedup > 0
    assert [row.speedup for row in rows if row.method == "plain"] == [1.0, 1.0]


def test_drafts_are_accepted(rows):
    """At temperature 0 every drafter gets more than one token a step out of the bundled pair."""
    assert [row.method for row in rows if row.temperature == 0 and row.tokens_per_step < 1.1] == ["plain"]
