"""The same code on a GPU: skipped where there is none."""

import pytest
import torch

from treeopt.profiler import CudaClock, Journal, Measurement, Settings, bench
from treeopt.runtime.pair import bench_prompts, load_pair, load_prompts, profile_prompts
from treeopt.trees import chain, level_widths

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"),
]


@pytest.fixture(scope="module")
def models():
    return load_pair(device="cuda")


def test_logits_are_those_of_the_cpu(models) -> None:
    on_cpu = load_pair()
    tokens = torch.tensor(models.tokenizer.encode(load_prompts()[0]))
    logits = []
    for model in (on_cpu.target, models.target):
        cache = model.new_cache(len(tokens))
        causal = torch.full((len(tokens), len(tokens)), float("-inf"), device=model.device).triu(1)
        ids = tokens.to(model.device)
        logits.append(model.forward(ids, torch.arange(len(ids), device=model.device), cache, causal).cpu())

    torch.testing.assert_close(logits[1], logits[0], atol=5e-3, rtol=1e-3)


@pytest.mark.parametrize("tree", [chain(4), level_widths([3, 4, 3, 2])], ids=["chain", "tree"])
def test_greedy_text_is_that_of_plain_decoding(models, tree) -> None:
    prompts = [models.tokenizer.encode(text) for text in bench_prompts(load_prompts())[:3]]
    measured = bench(models.target, models.draft, tree, prompts, max_new_tokens=64, repeats=1, show_progress=False)

    assert measured.identical


def test_profile_with_cuda_events(models) -> None:
    prompts = [models.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:4]]
    settings = Settings(max_tokens=32, rounds=3, positions=200, temperature=0.6)
    clock = CudaClock(models.target.device)
    measurement = Measurement(
        models.target, models.draft, prompts, settings, clock=clock, journal=Journal(None, "test")
    )
    profile = measurement.profile(show_progress=False)

    assert profile.machine.device.startswith("cuda")
    assert profile.latency().verify.medians_s.min() > 0
    assert 0 < profile.acceptance().table.p[0, 0] <= 1
