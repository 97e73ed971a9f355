"""Long texts of the whole decode loop follow the distribution of a Markov chain, over thousands of steps in a row.

The statistic is the distance from the exact distribution in units of the noise floor: the largest distance among 200
texts of the same length that were sampled directly; see `tests.support.markov`.  An honest decoder is allowed
ALLOWED; what must be rejected exceeds REJECTED, far above it, by the same statistic and from fewer tokens.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import broken
from tests.support.markov import STATES, Markov, random_transitions, states
from tests.support.steppers import RestartedGenerator, decoder_with
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Decoder, Sampling
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.selection import TopDown
from treeopt.trees import TokenTree, chain

TOKENS, FEWER = 4000, 2500
ALLOWED, REJECTED = 1.25, 3.0
TARGET, OTHER = Markov(random_transitions(1)), Markov(random_transitions(2))
EVEN = Sampling(1.0)
TREE = TokenTree([-1, 0, 0, 0, 1, 1, 2, 4])
SEQUOIA = RULES["sequoia"]
LOSSLESS = [rule for rule in RULES if rule not in LOSSY_RULES]
all_rules = pytest.mark.parametrize("rule", LOSSLESS)


def excess(
    rule="sequoia", *, draft=OTHER, tree=TREE, target=TARGET, kind=Decoder, sampling=EVEN, tokens=FEWER, **changes
):
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
    steps = list(decoder.stream([0], tokens))
    assert len(steps) > tokens / (tree.max_depth + 1) - 1
    text = states(np.concatenate(steps))
    assert len(text) == tokens
    return target.chain(sampling).excess(text)


@all_rules
def test_a_long_text_follows_the_distribution_of_the_target(rule):
    assert excess(rule, tokens=TOKENS) < ALLOWED


@all_rules
def test_top_k_top_p_and_the_drafts_own_sampling_leave_the_distribution_as_it_is(rule):
    sampling, draft_sampling = Sampling(0.8, top_p=0.85), Sampling(2.0, top_k=3)
    assert excess(rule, sampling=sampling, draft_sampling=draft_sampling) < ALLOWED


def test_so_does_one_that_is_tested_with_tensors(monkeypatch):
    broken.verify_with_tensors(monkeypatch)
    assert excess() < ALLOWED


def test_so_do_models_in_half_precision():
    target, draft = (Markov(random_transitions(seed), dtype=torch.bfloat16) for seed in (1, 2))
    assert excess(target=target, draft=draft) < ALLOWED


def test_plain_decoding_follows_it():
    assert excess(draft=None, tree=chain(0)) < ALLOWED


class TestWhatMustBeRejected:
    """The same texts by the same statistic, each from a runtime with one mistake."""

    @pytest.fixture
    def use(self, monkeypatch):
        """Return a function that changes the rule `sequoia`."""
        return lambda **changes: monkeypatch.setitem(RULES, "sequoia", replace(SEQUOIA, **changes))

    def test_noise_used_again_in_every_step(self):
        assert excess(kind=decoder_with(RestartedGenerator)) > REJECTED

    def test_noise_of_the_draft_used_again_in_every_step(self):
        class HalfForgetful(Stepper):
            def draft(self, sequences):
                states = [self.targets[number].generator.get_state() for number in sequences]
                for number in sequences:
                    self.targets[number].generator.manual_seed(0)
                drafted = super().draft(sequences)
                for number, state in zip(sequences, states, strict=True):
                    self.targets[number].generator.set_state(state)
                return drafted

        assert excess(kind=decoder_with(HalfForgetful)) > REJECTED

    def test_coarse_noise_in_the_draft(self, monkeypatch):
        monkeypatch.setattr("treeopt.runtime.rules.sample_children.uniform", broken.coarse_uniform)
        assert excess(tokens=TOKENS) > REJECTED

    def test_coarse_noise_after_the_path(self, monkeypatch):
        monkeypatch.setattr("treeopt.runtime.decoding.acceptance.uniform", broken.coarse_uniform)
        assert excess("target", tokens=TOKENS) > REJECTED

    def test_siblings_in_the_order_of_their_probability(self, use):
        use(draw=broken.draw_likelier_first(SEQUOIA.draw))
        assert excess() > REJECTED

    def test_the_least_likely_child_dropped(self, use):
        use(draw=broken.draw_least_likely_dropped(SEQUOIA.draw))
        assert excess() > REJECTED

    def test_the_likeliest_children_in_the_place_of_drawn_ones(self, use):
        use(draw=broken.draw_likeliest)
        assert excess() > REJECTED

    def test_the_targets_likeliest_token_accepted(self, use, monkeypatch):
        use(accept_test=broken.argmax_accepted, by_level=False, selection=TopDown())
        broken.verify_with_tensors(monkeypatch)
        assert excess() > REJECTED

    def test_the_lossy_rule(self):
        assert excess("typical", lossy=True) > REJECTED


class TestShortTexts:
    """Many short texts of one decoder: each follows the distribution, and none has to do with the one before."""

    TEXTS = 900

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

    def test_noise_used_again_for_the_next_text_is_found(self, chi_squared):
        class Forgetful(Decoder):
            def start(self, token_ids, *, seed):  # noqa: ARG002
                super().start(token_ids, seed=self._sequence // 2)

        assert self.p_values(chi_squared, Forgetful)[1] < 1e-9

    def test_one_seed_for_all_texts_is_found(self, chi_squared):
        assert max(self.p_values(chi_squared, seed=7)) < 1e-9
