"""Long texts of the whole decode loop follow the distribution of a Markov chain, over thousands of steps in a row.

The statistic is the distance from the exact distribution in units of the noise floor: the largest distance among 200
texts of the same length that were sampled directly; see `tests.support.markov`.  An honest decoder is allowed
ALLOWED; what must be rejected exceeds REJECTED, far above it, by the same statistic and from fewer tokens.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import broken
from tests.support.markov import STATES, Markov, random_transitions, states
from tests.support.slow import first_fast
from tests.support.steppers import NoiseAgain, decoder_with
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Decoder, Sampling
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.selection import TopDown
from treeopt.trees import TokenTree, chain

TOKENS, FEWER = 6000, 3500
ALLOWED, REJECTED = 1.25, 3.0
TARGET, OTHER = Markov(random_transitions(1)), Markov(random_transitions(2))
EVEN = Sampling(1.0)
CHAIN, TREE = chain(3), TokenTree([-1, 0, 0, 0, 1, 1, 2, 4])
LOSSLESS = [rule for rule in RULES if rule not in LOSSY_RULES]
RANDOM_DRAFTS = [rule for rule in LOSSLESS if RULES[rule].random_drafts]
all_rules = pytest.mark.parametrize("rule", LOSSLESS)
one_rule = pytest.mark.parametrize("rule", first_fast(LOSSLESS))
one_random_draft = pytest.mark.parametrize("rule", first_fast(RANDOM_DRAFTS))
"""All of them in a slow run."""
another_draft = pytest.param(OTHER, id="another draft")
like_the_target = pytest.param(TARGET, id="a draft like the target", marks=pytest.mark.slow)
both_drafts = pytest.mark.parametrize("draft", [another_draft, like_the_target])


def excess(rule, *, draft=OTHER, tree=TREE, target=TARGET, kind=Decoder, sampling=EVEN, tokens=FEWER, **changes):
    """Return how far a text is from the distribution of direct sampling, in units of the noise floor."""
    decoder = kind(
        target,
        draft,
        tree,
        rule=rule,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=1,
        **changes,
    )
    steps = list(decoder.steps([0], tokens))
    assert len(steps) > tokens / (tree.max_depth + 1) - 1
    text = states(np.concatenate(steps))
    assert len(text) == tokens
    return target.chain(sampling).excess(text)


@all_rules
@both_drafts
@pytest.mark.parametrize(
    "tree", [pytest.param(CHAIN, id="chain", marks=pytest.mark.slow), pytest.param(TREE, id="tree")]
)
def test_a_long_text_follows_the_distribution_of_the_target(rule, draft, tree):
    assert excess(rule, draft=draft, tree=tree, tokens=TOKENS) < ALLOWED


@all_rules
@pytest.mark.parametrize(
    ("sampling", "draft_sampling"),
    first_fast(
        [
            (Sampling(0.8, top_p=0.85), Sampling(2.0, top_k=3)),
            (Sampling(1.0, top_k=4), Sampling(0.5)),
            (Sampling(1.3, top_p=0.95, top_k=5), Sampling(1.0, top_p=0.6)),
        ]
    ),
)
def test_top_k_top_p_and_the_drafts_own_sampling_leave_the_distribution_as_it_is(rule, sampling, draft_sampling):
    assert excess(rule, sampling=sampling, draft_sampling=draft_sampling) < ALLOWED


@one_rule
def test_so_does_one_that_is_tested_with_tensors(rule, monkeypatch):
    broken.verify_with_tensors(monkeypatch)
    assert excess(rule) < ALLOWED


@pytest.mark.parametrize(
    ("dtype", "rule"), first_fast(itertools.product([torch.bfloat16, torch.float16], ["sequoia", "traversal"]))
)
def test_so_do_models_in_half_precision(rule, dtype):
    target, draft = Markov(random_transitions(1), dtype=dtype), Markov(random_transitions(2), dtype=dtype)
    assert excess(rule, target=target, draft=draft) < ALLOWED


def test_plain_decoding_follows_it():
    assert excess("sequoia", draft=None, tree=chain(0)) < ALLOWED


class TestWhatMustBeRejected:
    """The same texts by the same statistic, each from a runtime with one mistake."""

    @pytest.fixture
    def use(self, monkeypatch):
        """Return a function that puts a changed rule in the place of the one of its name."""

        def use(name, **changes):
            monkeypatch.setitem(RULES, name, replace(RULES[name], **changes))

        return use

    @one_rule
    def test_noise_used_again_in_every_step(self, rule):
        assert excess(rule, kind=decoder_with(NoiseAgain)) > REJECTED

    @one_random_draft
    def test_noise_of_the_draft_used_again_in_every_step(self, rule):
        class HalfForgetful(Stepper):
            def draft(self, texts):
                states = [self.targets[text].noise.get_state() for text in texts]
                for text in texts:
                    self.targets[text].noise.manual_seed(0)
                drafted = super().draft(texts)
                for text, state in zip(texts, states, strict=True):
                    self.targets[text].noise.set_state(state)
                return drafted

        assert excess(rule, kind=decoder_with(HalfForgetful)) > REJECTED

    @one_random_draft
    @both_drafts
    def test_coarse_noise_in_the_draft(self, rule, draft, monkeypatch):
        monkeypatch.setattr("treeopt.runtime.rules.sample_children.uniform", broken.coarse_uniform)
        assert excess(rule, draft=draft, tokens=TOKENS) > REJECTED

    def test_coarse_noise_after_the_path(self, monkeypatch):
        monkeypatch.setattr("treeopt.runtime.decoding.acceptance.uniform", broken.coarse_uniform)
        assert excess("target", tokens=TOKENS) > REJECTED

    @one_random_draft
    def test_siblings_in_the_order_of_their_probability(self, rule, use):
        use(rule, draw=broken.draw_likelier_first(RULES[rule].draw))
        assert excess(rule) > REJECTED

    @one_random_draft
    def test_the_least_likely_child_dropped(self, rule, use):
        use(rule, draw=broken.draw_least_likely_dropped(RULES[rule].draw))
        assert excess(rule) > REJECTED

    @one_random_draft
    def test_the_likeliest_children_in_the_place_of_drawn_ones(self, rule, use):
        use(rule, draw=broken.draw_likeliest)
        assert excess(rule) > REJECTED

    @one_random_draft
    @pytest.mark.slow
    def test_the_targets_likeliest_token_accepted(self, rule, use, monkeypatch):
        use(rule, accept_test=broken.argmax_accepted, by_level=False, selection=TopDown())
        broken.verify_with_tensors(monkeypatch)
        assert excess(rule) > REJECTED

    @both_drafts
    def test_the_lossy_rule(self, draft):
        assert excess("typical", draft=draft, lossy=True) > REJECTED


class TestShortTexts:
    """Many short texts of one decoder: each follows the distribution, and none has to do with the one before."""

    TEXTS = 1500

    def counts(self, kind=Decoder, **changes):
        """Return how often three states came, and the first and the last of a text with the first of the next."""
        decoder = kind(TARGET, OTHER, TREE, temperature=1.0, seed=1, rule="traversal")
        texts = states(np.array([list(decoder.generate([0], 3, **changes)) for _ in range(self.TEXTS)]))
        cells = texts.T, (texts[:-1, 0], texts[1:, 0]), (texts[:-1, 2], texts[1:, 0])
        found = [np.zeros((STATES,) * len(each)) for each in cells]
        for counts, each in zip(found, cells, strict=True):
            np.add.at(counts, tuple(each), 1)
        return found

    @staticmethod
    def distributions():
        after = TARGET.chain(EVEN).transitions
        first = after[0]
        joint = first[:, None, None] * after[:, :, None] * after
        return joint, np.outer(first, first), np.outer(joint.sum((0, 1)), first)

    def p_values(self, chi_squared, *arguments, **changes):
        return [
            chi_squared(counts, distribution)
            for counts, distribution in zip(self.counts(*arguments, **changes), self.distributions(), strict=True)
        ]

    def test_they_follow_the_distribution_and_are_independent(self, chi_squared):
        assert min(self.p_values(chi_squared)) > 1e-3

    @pytest.mark.slow
    def test_noise_used_again_for_the_next_text_is_found(self, chi_squared):
        class Forgetful(Decoder):
            def start(self, token_ids, *, seed):  # noqa: ARG002
                super().start(token_ids, seed=self._text // 2)

        assert self.p_values(chi_squared, Forgetful)[1] < 1e-9

    def test_one_seed_for_all_texts_is_found(self, chi_squared):
        assert max(self.p_values(chi_squared, seed=7)) < 1e-9
