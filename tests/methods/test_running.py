"""Methods with the bundled heads; test_own_pair.py runs the others with toy models."""

import pytest

from treeopt.methods.running import Effort, run_methods
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
