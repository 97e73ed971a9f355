"""The test of losslessness lets the right distribution through and finds wrong ones."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support.passes import logits_after
from treeopt.profiler.bench.losslessness import greedy_losslessness, sampled_losslessness, uniform_p_value
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, distribution
from treeopt.trees import chain, k_ary

WARM = Sampling(0.6)


@pytest.fixture(scope="module")
def pair(target, draft):
    return SimpleNamespace(target=target, draft=draft)


@pytest.fixture(scope="module")
def prompts():
    """Return prompts, many because the toy models take 128 tokens."""
    return [np.random.default_rng(seed).integers(23, size=5).tolist() for seed in range(18)]


def texts(pair, prompts, tree=None, *, sampling=WARM, count=120, **options):
    tree = tree or chain(0)
    draft = pair.draft if tree.nodes > 1 else None
    decoder = Decoder(pair.target, draft, tree, temperature=sampling.temperature, top_p=sampling.top_p, **options)
    count = min(count, decoder.max_sequence_tokens - len(prompts[0]))
    return [list(decoder.generate(prompt, count, seed=number)) for number, prompt in enumerate(prompts)]


class TestSampled:
    def test_a_lossless_rule_passes(self, pair, prompts):
        found = sampled_losslessness(pair.target, prompts, texts(pair, prompts, k_ary(2, 3), rule="traversal"), WARM)
        assert found.lossless, found.evidence

    def test_plain_decoding_passes_with_a_share_of_the_distribution_cut_off(self, pair, prompts):
        sampling = Sampling(0.8, top_p=0.9)
        assert sampled_losslessness(pair.target, prompts, texts(pair, prompts, sampling=sampling), sampling).lossless

    def test_a_lossy_rule_is_found(self, pair, prompts):
        lossy = texts(pair, prompts, k_ary(2, 3), rule="typical", lossy=True, count=250)
        assert not sampled_losslessness(pair.target, prompts, lossy, WARM).lossless

    @pytest.mark.parametrize("temperature", [0.45, 0.8])
    def test_another_temperature_is_found(self, pair, prompts, temperature):
        other = texts(pair, prompts, sampling=Sampling(temperature), count=250)
        assert not sampled_losslessness(pair.target, prompts, other, WARM).lossless

    def test_the_draft_models_text_is_found(self, pair, prompts):
        decoder = Decoder(pair.draft, None, chain(0), temperature=0.6)
        other = [list(decoder.generate(prompt, 100)) for prompt in prompts]
        assert not sampled_losslessness(pair.target, prompts, other, WARM).lossless

    def test_the_distribution_before_a_token_is_that_of_a_pass_of_its_own(self, pair, prompts):
        from treeopt.profiler.bench.losslessness import _logits_along

        prompt = (prompts[0] * 4)[:20]
        alone = logits_after(pair.target, prompt)[None]
        along = _logits_along(pair.target, prompt)[-1:]
        assert torch.allclose(distribution(alone, WARM), distribution(along, WARM), atol=1e-5)


class TestUniform:
    def test_p_values_of_uniform_samples_are_uniform(self):
        generator = torch.Generator().manual_seed(0)
        found = torch.tensor(
            [uniform_p_value(torch.rand(400, dtype=torch.float64, generator=generator)) for _ in range(400)]
        )
        assert 0.06 < (found < 0.1).double().mean() < 0.14
        assert 0.42 < (found < 0.5).double().mean() < 0.58

    def test_a_crooked_sample_is_found(self):
        places = torch.rand(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) ** 1.3
        assert uniform_p_value(places) < 1e-6


class TestGreedy:
    def test_the_same_text_passes_and_another_does_not(self, pair, prompts):
        plain = texts(pair, prompts, sampling=Sampling(0.0), count=60)
        tree = texts(pair, prompts, k_ary(2, 3), sampling=Sampling(0.0), count=55)
        assert greedy_losslessness(pair.target, prompts, plain, tree).lossless
        wrong = [[*tree[0][:20], (tree[0][20] + 1) % 23, *tree[0][21:]], *tree[1:]]
        found = greedy_losslessness(pair.target, prompts, plain, wrong)
        assert not found.lossless
        assert found.evidence == f"1 of {len(prompts)} outputs differ"
