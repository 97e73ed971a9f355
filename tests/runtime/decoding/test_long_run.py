"""Long outputs of the whole decode loop follow a Markov chain, over a thousand steps and more.

The statistic is the distance from the exact distribution in units of the noise floor: the largest distance among 200
sequences of the same length that were sampled directly; see `tests.support.markov`.  An honest decoder is allowed
ALLOWED, and decoders with one mistake exceed REJECTED, from as many tokens or fewer.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support import broken
from tests.support.markov import STATES, Markov, random_transitions, states
from tests.support.slow import slow
from tests.support.steppers import RestartedGenerator, decoder_with
from treeopt.records.rules import LOSSY_RULES
from treeopt.runtime import Decoder, Sampling
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree

TOKENS, FEWER = 2500, 1000
ALLOWED, REJECTED = 1.25, 3.0
TARGET, OTHER = Markov(random_transitions(1)), Markov(random_transitions(2))
EVEN = Sampling(1.0)
TREE = TokenTree([-1, 0, 0, 0, 1, 1, 2, 4])


def excess(
    rule="sequoia",
    *,
    draft=OTHER,
    tree=TREE,
    target=TARGET,
    kind=Decoder,
    sampling=EVEN,
    tokens=TOKENS,
    **options,
):
    """Return how far an output is from the distribution of direct sampling, in units of the noise floor."""
    decoder = kind(target, draft, tree, rule=rule, sampling=sampling, seed=1, **options)
    steps = list(decoder.stream([0], tokens))
    assert len(steps) > tokens / (tree.max_depth + 1) - 1
    output = states(np.concatenate(steps))
    assert len(output) == tokens
    return target.chain(sampling).excess(output)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in LOSSY_RULES])
def test_a_long_output_follows_the_targets_distribution(rule):
    assert excess(rule) < ALLOWED


@pytest.mark.parametrize("rule", ["traversal", *slow(["specinfer", "target"])])
def test_top_k_top_p_and_the_drafts_own_sampling_keep_the_distribution(rule):
    sampling = Sampling(0.8, top_p=0.95, top_k=4)
    assert excess(rule, sampling=sampling, draft_sampling=Sampling(2.0, top_k=3)) < ALLOWED


def test_tensor_verification_keeps_the_distribution(monkeypatch):
    broken.verify_with_tensors(monkeypatch)
    assert excess() < ALLOWED


def test_half_precision_keeps_the_distribution():
    target, draft = (Markov(random_transitions(seed), dtype=torch.bfloat16) for seed in (1, 2))
    assert excess(target=target, draft=draft) < ALLOWED


@pytest.mark.slow
class TestMistakes:
    def test_random_numbers_that_repeat_in_every_step_are_found(self):
        assert excess(kind=decoder_with(RestartedGenerator), tokens=FEWER) > REJECTED

    def test_random_numbers_that_repeat_in_every_draft_are_found(self):
        class RestartedDrafts(Stepper):
            def draft(self, sequences):
                states = [self.targets[number].generator.get_state() for number in sequences]
                for number in sequences:
                    self.targets[number].generator.manual_seed(0)
                proposals = super().draft(sequences)
                for number, state in zip(sequences, states, strict=True):
                    self.targets[number].generator.set_state(state)
                return proposals

        assert excess(kind=decoder_with(RestartedDrafts), tokens=FEWER) > REJECTED

    @pytest.mark.parametrize(
        ("rule", "name"),
        [("sequoia", "rules.sample_children.uniform"), ("target", "decoding.acceptance.uniform")],
    )
    def test_coarse_random_numbers_are_found(self, rule, name, monkeypatch):
        monkeypatch.setattr(f"treeopt.runtime.{name}", broken.coarse_uniform)
        assert excess(rule, tokens=4000) > REJECTED

    @pytest.mark.parametrize(
        "draw",
        [broken.draw_likelier_first, lambda _: broken.draw_likeliest],
        ids=["likelier first", "likeliest"],
    )
    def test_siblings_chosen_by_their_probability_are_found(self, draw, monkeypatch):
        monkeypatch.setitem(RULES, "sequoia", replace(RULES["sequoia"], draw=draw(RULES["sequoia"].draw)))
        assert excess() > REJECTED

    def test_the_lossy_rule_is_found(self):
        assert excess("typical", lossy=True, tokens=FEWER) > REJECTED


class TestShortOutputs:
    """500 outputs of 3 tokens from one decoder: each follows the distribution, and successive ones are independent."""

    SEQUENCES = 500

    def p_values(self, chi_squared, kind=Decoder, **options):
        """Return p-values of three states, and of the first and last state of an output with the first of the next."""
        decoder = kind(TARGET, OTHER, TREE, temperature=1.0, seed=1, rule="traversal")
        outputs = states(np.array([list(decoder.generate([0], 3, **options)) for _ in range(self.SEQUENCES)]))
        cells = outputs.T, (outputs[:-1, 0], outputs[1:, 0]), (outputs[:-1, 2], outputs[1:, 0])
        p_values = []
        for indices, distribution in zip(cells, self.distributions(), strict=True):
            counts = np.zeros((STATES,) * len(indices))
            np.add.at(counts, tuple(indices), 1)
            p_values.append(chi_squared(counts, distribution))
        return p_values

    @staticmethod
    def distributions():
        transitions = TARGET.chain(EVEN).transitions
        first = transitions[0]
        joint = first[:, None, None] * transitions[:, :, None] * transitions
        return joint, np.outer(first, first), np.outer(joint.sum((0, 1)), first)

    def test_outputs_follow_the_distribution_and_are_independent(self, chi_squared):
        assert min(self.p_values(chi_squared)) > 1e-3

    @pytest.mark.slow
    def test_a_seed_shared_by_successive_outputs_is_found(self, chi_squared):
        class SharedSeeds(Decoder):
            def start(self, token_ids, *, seed):  # noqa: ARG002
                super().start(token_ids, seed=self._sequence // 2)

        assert self.p_values(chi_squared, SharedSeeds)[1] < 1e-9

    @pytest.mark.slow
    def test_one_seed_for_all_outputs_is_found(self, chi_squared):
        assert max(self.p_values(chi_squared, seed=7)) < 1e-9
