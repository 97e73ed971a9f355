"""Methods with the bundled heads; test_own_pair.py runs the others with toy models."""

from types import SimpleNamespace

import pytest

from tests.support.invented_machines import at_temperature, profile_of, seconds
from treeopt.errors import InfeasibleError
from treeopt.methods.running import Effort, run_methods
from treeopt.methods.static_tree import plan_k_sequences
from treeopt.planner import PlanRequest, step_model
from treeopt.profiler.bench.compare import Workload
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts

NAMES = {
    0.0: ["plain", "medusa", "dflash", "ddtree", "redrafter", "eagle", "treeopt"],
    0.6: ["plain", "dflash", "redrafter"],
}
"""By temperature."""
SMALL = Effort(max_tokens=16, rounds=1, positions=48)


@pytest.mark.slow
def test_bundled_heads_accept_drafts_and_are_lossless(bundled_pair):
    encode, texts = bundled_pair.tokenizer.encode, load_prompts()
    workload = Workload(prompts=[encode(text)[:40] for text in bench_prompts(texts)[:2]], max_new_tokens=24, repeats=1)
    prompts = [encode(text)[:40] for text in profile_prompts(texts)]
    for temperature, names in NAMES.items():
        rows = run_methods(
            bundled_pair,
            prompts,
            workload,
            names=names,
            temperatures=[temperature],
            effort=SMALL,
        )
        assert [(row.temperature, row.method) for row in rows] == [(temperature, name) for name in names]
        for row in rows:
            assert row.lossless, row.evidence
            assert row.tokens_per_s == pytest.approx(row.tokens_per_step / row.step_s)
            assert row.predicted_speedup > 0
            assert row.tokens_per_step > 1.1 or row.method == "plain" or temperature > 0
        assert (rows[0].speedup, rows[0].tokens_per_step) == (1.0, 1.0)


def test_independent_sequences_need_times_of_three_tokens():
    few = at_temperature(profile_of(seconds(lambda n: 1.0 + n, lambda w: 0.1 * w, nodes=2), [[0.8, 0.1]]), 0.0)
    inputs = SimpleNamespace(step_model=lambda _: step_model(few, PlanRequest()))
    with pytest.raises(InfeasibleError, match="k-sequences: expected times of 3 verified tokens"):
        plan_k_sequences(inputs)
