"""The test of losslessness accepts the target's distribution and finds others."""

import numpy as np
import pytest
import torch

from tests.support.passes import logits_after
from tests.support.slow import slow
from treeopt.profiler.bench.losslessness import (
    _logits_along,
    greedy_losslessness,
    sampled_losslessness,
    uniform_p_value,
)
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, distribution
from treeopt.trees import chain, k_ary

WARM = Sampling(0.6)


@pytest.fixture(scope="module")
def prompts():
    """Return prompts, many because the models support 128 tokens."""
    return [np.random.default_rng(seed).integers(23, size=5).tolist() for seed in range(18)]


def decode(target, draft, prompts, tree=None, *, sampling=WARM, count=120, **options):
    tree = tree or chain(0)
    decoder = Decoder(target, draft if tree.nodes > 1 else None, tree, sampling=sampling, **options)
    return [list(decoder.generate(prompt, count, seed=number)) for number, prompt in enumerate(prompts)]


class TestSampled:
    @pytest.mark.parametrize(
        ("sampling", "tree", "options", "tested"),
        [
            (WARM, k_ary(2, 3), {"rule": "traversal"}, WARM),
            (Sampling(0.8, top_p=0.9), None, {}, Sampling(0.8, top_p=0.9)),
        ],
        ids=["lossless rule", "truncated distribution"],
    )
    def test_lossless_outputs_pass(self, target, draft, prompts, sampling, tree, options, tested):
        outputs = decode(target, draft, prompts, tree, sampling=sampling, **options)
        result = sampled_losslessness(target, prompts, outputs, tested)
        assert result.lossless, result.evidence

    @pytest.mark.parametrize(
        ("sampling", "tree", "options"),
        [
            *slow([(WARM, k_ary(2, 3), {"rule": "typical", "lossy": True}), (Sampling(0.45), None, {})]),
            (Sampling(0.8), None, {}),
        ],
        ids=["lossy rule", "colder", "warmer"],
    )
    def test_other_distributions_are_found(self, target, draft, prompts, sampling, tree, options):
        outputs = decode(target, draft, prompts, tree, sampling=sampling, **options)
        assert not sampled_losslessness(target, prompts, outputs, WARM).lossless

    def test_outputs_of_the_draft_model_are_found(self, target, draft, prompts):
        assert not sampled_losslessness(target, prompts, decode(draft, None, prompts), WARM).lossless

    def test_distribution_along_an_output_is_that_of_separate_passes(self, target, prompts):
        prompt = (prompts[0] * 4)[:20]
        alone, along = logits_after(target, prompt)[None], _logits_along(target, prompt)[-1:]
        assert torch.allclose(distribution(alone, WARM), distribution(along, WARM), atol=1e-5)


class TestStatistics:
    """Outputs of a Markov chain that only one statistic can find."""

    SEQUENCES, TOKENS = 4, 400
    OPEN = np.array([0.301, 0.299, 0.181, 0.179, 0.021, 0.019])
    """After even tokens: pairs of tokens are nearly equally probable."""
    SURE = np.array([0.02, 0.952, 0.02, 0.003, 0.003, 0.002])
    """After odd tokens: concentrated on one token, so ranks are not tested."""
    DISTRIBUTIONS = np.array([OPEN, SURE] * 3)

    @pytest.fixture
    def target(self, make_markov):
        return make_markov(np.log(self.DISTRIBUTIONS), max_positions=self.TOKENS + 2)

    def sample(self, distributions, *, seed=0):
        """Return outputs whose next token after each token has the distributions (V, V)."""
        rng, outputs = np.random.default_rng(seed), []
        for _ in range(self.SEQUENCES):
            tokens = [0]
            while len(tokens) <= self.TOKENS:
                tokens.append(int(rng.choice(len(distributions), p=distributions[tokens[-1]])))
            outputs.append(tokens[1:])
        return outputs

    def check(self, target, outputs):
        return sampled_losslessness(target, [[0]] * len(outputs), outputs, Sampling(1.0))

    @pytest.mark.parametrize("seed", range(3))
    def test_outputs_of_the_distribution_pass(self, target, seed):
        outputs = self.sample(self.DISTRIBUTIONS, seed=seed)
        result = self.check(target, outputs)
        assert result.lossless, result.evidence
        assert self.check(target, [*outputs, []]) == result  # empty outputs change nothing

    def test_ranks_find_tokens_in_place_of_equally_probable_ones(self, target):
        one_of_each_pair = np.repeat(self.OPEN.reshape(3, 2).sum(1), 2) * np.array([1, 0, 0, 1, 1, 0])
        assert not self.check(target, self.sample(np.array([one_of_each_pair, self.SURE] * 3))).lossless

    def test_surprisal_finds_rare_tokens_that_are_missing(self, target):
        assert not self.check(target, self.sample(np.array([self.OPEN, np.eye(6)[1]] * 3))).lossless

    def test_p_values_of_uniform_samples_are_uniform(self):
        generator = torch.Generator().manual_seed(0)
        samples = torch.rand(400, 400, dtype=torch.float64, generator=generator)
        p_values = torch.tensor([uniform_p_value(row) for row in samples])
        assert 0.06 < (p_values < 0.1).double().mean() < 0.14
        assert 0.42 < (p_values < 0.5).double().mean() < 0.58
        skewed = torch.rand(2000, dtype=torch.float64, generator=generator) ** 1.3
        assert uniform_p_value(skewed) < 1e-6


class TestGreedy:
    def test_equal_outputs_pass_and_others_are_counted(self, target, draft, prompts):
        greedy = Sampling(0.0)
        plain = decode(target, draft, prompts, sampling=greedy, count=60)
        outputs = decode(target, draft, prompts, k_ary(2, 3), sampling=greedy, count=55)
        assert greedy_losslessness(target, prompts, plain, outputs).lossless
        wrong = [[*outputs[0][:20], (outputs[0][20] + 1) % 23, *outputs[0][21:]], *outputs[1:]]
        result = greedy_losslessness(target, prompts, plain, wrong)
        assert (result.lossless, result.evidence) == (False, f"1 of {len(prompts)} outputs differ")

    @pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["near-tie first", "fault first"])
    def test_near_tie_in_one_output_does_not_excuse_another(self, make_markov, order):
        model = make_markov([1.0, 0.0, 8.0, 8.0 + 2.0**-20])
        prompts, plain, outputs = [[0], [0]], [[3, 3, 3], [3, 3, 3]], [[3, 2, 3], [3, 3, 1]]
        result = greedy_losslessness(model, prompts, plain, [outputs[number] for number in order])
        assert (result.lossless, result.evidence) == (False, "1 of 2 outputs differ")
        assert greedy_losslessness(model, prompts[:1], plain[:1], outputs[:1]).evidence.endswith("1 at near-ties")
