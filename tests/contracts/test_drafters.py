"""The contract of all drafters: distribution, greedy output, seeds, stopping criteria, lengths, and no state after an interruption.

A new drafter needs a line in `tests.contracts.drafters.CASES`.
"""

import contextlib
import itertools

import pytest
import torch

from tests.contracts.drafters import CASES, independent, one_case_per_drafter
from tests.support.decoded import PROMPT, joined, with_end
from tests.support.device import DEVICE
from tests.support.steppers import RestartedGenerator, decoder_with
from tests.support.toy_distribution import FEW, LENGTH, SAMPLINGS, ToyDistribution, first_children
from treeopt.runtime import Decoder, Transformer, load_model
from treeopt.runtime.decoding import acceptance
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.drafters.dflash.drafters import DFlashSequence
from treeopt.runtime.drafters.draft_model import DraftModelSequence
from treeopt.runtime.drafters.eagle.head import EagleSequence
from treeopt.runtime.drafters.heads import HeadSequence

TOY_PROMPT = (2, 0, 3, 1, 4, 0, 3, 2, 0)
REPEATS = PROMPT[:3] * 4
every_drafter = pytest.mark.parametrize("name", one_case_per_drafter())


def decoder_of(name, target, draft, *, kind=Decoder, **options):
    arguments, own = CASES[name].arguments(target, draft)
    return kind(target, *arguments, **{"temperature": 0.0, **own, **options})


def text_of(decoder, prompt=PROMPT, count=25, **options):
    return list(decoder.generate(prompt, count, **options))


@pytest.fixture(scope="module")
def toys(make_checkpoint):
    """Return a target and a draft of 5 tokens."""
    sizes = {"vocab_size": 5, "num_hidden_layers": 1, "tie_word_embeddings": False, "initializer_range": 0.25}
    return [load_model(make_checkpoint(seed=seed, **sizes), device=DEVICE) for seed in (5, 10)]


@pytest.fixture
def p_value(toys, logits_after, chi_squared):
    """Return a function that decodes with a drafter and returns the p-value of the first tokens, and tokens per step."""
    distribution = ToyDistribution(None, logits_after, chi_squared)

    def p_value(name, sequences, sampling=SAMPLINGS[0], kind=Decoder):
        numbers = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        decoder = decoder_of(name, *toys, kind=kind, seed=1, **numbers)
        return distribution.of_batches(decoder, toys[0], TOY_PROMPT, sequences, sampling)

    return p_value


class TestDistribution:
    @every_drafter
    def test_several_steps_follow_the_target(self, p_value, name):
        p, tokens_per_step = p_value(name, FEW, SAMPLINGS[1])
        assert p > 1e-3
        assert tokens_per_step == 1 if name == "plain" else 1 < tokens_per_step < LENGTH

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["dynamic tree", "medusa"])
    def test_a_child_that_the_target_did_not_sample_is_detected(self, p_value, name, monkeypatch):
        """Negative control."""
        monkeypatch.setattr(acceptance, "follow_tokens", first_children)
        assert p_value(name, 300)[0] < 1e-6

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["plain", "static tree, target"])
    def test_a_generator_restarted_in_every_step_is_detected(self, p_value, name):
        """Negative control."""
        assert p_value(name, 300, kind=decoder_with(RestartedGenerator))[0] < 1e-6


class TestGreedyOutput:
    @every_drafter
    def test_it_equals_plain_decoding(self, target, draft, name, greedy_text):
        """After one token, up to the longest sequence of the models, and of every requested length."""
        decoder = decoder_of(name, target, draft)
        longest = PROMPT * 17
        requests = [([1], 30), (longest, 128 - len(longest)), *((REPEATS, count) for count in (0, 1, 2, 5, 30))]
        for prompt, count in requests:
            tokens = joined(decoder.stream(prompt, count))
            assert tokens == greedy_text(target, prompt, count)
            assert {type(token) for token in tokens} <= {int}

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["plain", "static tree", "dynamic tree", "medusa", "prompt lookup"])
    def test_a_stale_cache_of_the_target_is_detected(self, target, draft, name, greedy_text):
        """Negative control."""

        class Stale(Stepper):
            def commit(self, sequences, results):
                super().commit(sequences, results)
                for number in sequences:
                    cache = self.targets[number].cache
                    _perturb(cache, cache.length - 1)

        tokens = text_of(decoder_of(name, target, draft, kind=decoder_with(Stale)), REPEATS, 30)
        assert tokens != greedy_text(target, REPEATS, 30)


class TestDrafts:
    """A draft depends on the sequence alone: after several steps it equals the draft of a fresh decoder."""

    @staticmethod
    def agreeing(name, target, draft, steps=10):
        decoder, text, equal = decoder_of(name, target, draft), list(REPEATS), []
        fresh = decoder_of(name, target, draft)
        decoder.start(text)
        for _ in range(steps):
            proposal = decoder.draft()
            fresh.start(text)
            expected = fresh.draft()
            equal.append(proposal.tree == expected.tree and torch.equal(proposal.tokens, expected.tokens))
            step = decoder.accept(proposal, decoder.verify(proposal))
            decoder.commit(step)
            text += step.tokens
        return all(equal)

    @pytest.mark.parametrize("name", one_case_per_drafter(lambda case: not case.history))
    def test_they_equal_those_of_a_fresh_decoder(self, target, draft, name):
        assert self.agreeing(name, target, draft)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "name",
        ["static tree", "dynamic tree", "best first", "medusa", "dflash", "ddtree", "redrafter", "eagle", "p-eagle"],
    )
    def test_a_stale_cache_of_the_draft_is_detected(self, target, draft, name, monkeypatch):
        """Negative control."""
        accept = DraftModelSequence.accept, HeadSequence.accept, EagleSequence.accept, DFlashSequence.accept

        def keeps_too_little(self, step):
            accept[0](self, step)
            _perturb(self.cache, self.cache.length - 1)

        def keeps_what_was_drafted(self, step):
            accept[2](self, step)
            self.cache.length += len(step.path) - 1

        def of_the_root(self, step):
            accept[1](self, step._replace(states=_shifted(step.states)))

        def reads_other_states(self, step):
            accept[3](self, step._replace(states=step.states.map(lambda states: states.roll(1, 0))))

        monkeypatch.setattr(DFlashSequence, "accept", reads_other_states)
        monkeypatch.setattr(DraftModelSequence, "accept", keeps_too_little)
        monkeypatch.setattr(HeadSequence, "accept", of_the_root)
        monkeypatch.setattr(EagleSequence, "accept", keeps_what_was_drafted)
        assert not self.agreeing(name, target, draft)


class TestSeeds:
    @every_drafter
    def test_equal_seeds_give_equal_outputs_without_the_global_generator(self, target, draft, name):
        before = torch.get_rng_state()
        first, again, other = (decoder_of(name, target, draft, temperature=0.9, seed=seed) for seed in (5, 5, 6))
        sequences = [text_of(first, count=12), text_of(first, count=12)]
        assert sequences[0] != sequences[1]
        assert [text_of(again, count=12), text_of(again, count=12)] == sequences
        assert text_of(other, count=12) not in sequences
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("name", one_case_per_drafter(lambda case: not case.learns))
    def test_output_depends_on_prompt_and_seed_alone(self, target, draft, name):
        decoder, fresh = (decoder_of(name, target, draft, temperature=0.9, seed=seed) for seed in (1, 2))
        expected = text_of(fresh, count=15, seed=0)
        text_of(decoder, REPEATS, 12)
        abandoned = decoder.generate([4, 5], 20, seed=3)
        next(abandoned)
        assert text_of(decoder, count=15, seed=0) == expected == text_of(decoder, count=15, seed=0)
        assert text_of(decoder, count=15, seed=1) != expected


@every_drafter
def test_end_tokens_and_stop_sequences_end_the_output(target, draft, name, greedy_text):
    expected = greedy_text(target, PROMPT, 30)
    decoder = decoder_of(name, target, draft)
    for place in (0, 8):
        end = expected[place]
        text = text_of(decoder_of(name, with_end(target, end), draft), count=30)
        assert text == expected[: expected.index(end) + 1]
        stop = expected[place : place + 2]
        first = next(start for start in range(30) if expected[start : start + 2] == stop)
        assert text_of(decoder, count=30, stop=[stop]) == expected[: first + 2]


@every_drafter
def test_a_decoder_made_in_inference_mode_decodes_outside_of_it(target, draft, name):
    with torch.inference_mode():
        decoder = decoder_of(name, target, draft, temperature=independent(name, 0.9), seed=1)
        text_of(decoder, REPEATS, 12)
    fresh = decoder_of(name, target, draft, temperature=independent(name, 0.9))
    assert text_of(decoder, REPEATS, 12, seed=3) == text_of(fresh, REPEATS, 12, seed=3)


@every_drafter
def test_an_interruption_leaves_no_state(target, draft, name, monkeypatch):
    """After any pass of a model, and between the parts of a step."""
    decoder = decoder_of(name, target, draft, temperature=independent(name, 0.9))
    expected = text_of(decoder, count=12, seed=4)
    calls_before = (("forward", 0), ("forward", 4), ("run", 1), ("prefill", 0), ("logits", 1))
    passes = [(Transformer, method, interrupted(getattr(Transformer, method), calls)) for method, calls in calls_before]
    parts = [(Stepper, "verify"), (Stepper, "accept"), (Stepper, "commit"), (decoder._drafter, "accept")]
    for owner, method, interruption in [*passes, *((*part, interrupt) for part in parts)]:
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, interruption)
            with (
                pytest.raises(KeyboardInterrupt)
                if interruption is interrupt
                else contextlib.suppress(KeyboardInterrupt)
            ):
                text_of(decoder, [7, 8, 9], 20)
        assert text_of(decoder, count=12, seed=4) == expected, method


def interrupt(*_):
    raise KeyboardInterrupt


def interrupted(method, calls_before):
    """Return a method that raises KeyboardInterrupt at the end of a call after `calls_before` others."""
    calls = itertools.count()

    def run(*arguments, **options):
        result = method(*arguments, **options)
        if next(calls) >= calls_before:
            interrupt()
        return result

    return run


def _perturb(cache, slot):
    """Replace the keys and values of a committed token."""
    for entries in cache.layers:
        for each in entries:
            each[:, :, slot] = -each[:, :, slot].flip(-1)


def _shifted(states):
    """Return the states, each at another token."""
    return states._replace(last=states.last.roll(1, -1))
