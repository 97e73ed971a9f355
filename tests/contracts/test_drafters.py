"""What every drafter keeps: the target's distribution, its greedy text, seeds, stops, lengths, and no state of a broken step.

A new drafter is held to it by a line in `tests.contracts.drafters.CASES`.
"""

import pytest
import torch

from tests.contracts.drafters import CASES, independent
from tests.support.decoded import PROMPT, joined, with_end
from tests.support.device import DEVICE
from tests.support.steppers import RestartedGenerator, decoder_with
from tests.support.toy_distribution import FEW, LENGTH, SAMPLINGS, ToyDistribution, first_children
from treeopt.errors import TreeoptError
from treeopt.runtime import Decoder, Transformer, load_model
from treeopt.runtime.decoding import acceptance
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.drafters.dflash.block_drafter import BlockDrafter
from treeopt.runtime.drafters.draft_model import DraftModelSequence
from treeopt.runtime.drafters.eagle.sequence import EagleSequence
from treeopt.runtime.drafters.heads import HeadDrafter

TOY_PROMPT = (2, 0, 3, 1, 4, 0, 3, 2, 0)
REPEATS = PROMPT[:3] * 4
every_drafter = pytest.mark.parametrize("name", CASES)


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
    """Return the function that decodes texts of a drafter, and tells how probable their first tokens are."""
    distribution = ToyDistribution(None, logits_after, chi_squared)

    def p_value(name, texts, sampling=SAMPLINGS[0], kind=Decoder):
        numbers = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        decoder = decoder_of(name, *toys, kind=kind, seed=1, **numbers)
        return distribution.of_batches(decoder, toys[0], TOY_PROMPT, texts, sampling)

    return p_value


class TestDistribution:
    @every_drafter
    def test_several_steps_follow_the_target(self, p_value, name):
        found, tokens_per_step = p_value(name, FEW, SAMPLINGS[1])
        assert found > 1e-3
        assert tokens_per_step == 1 if name == "plain" else 1 < tokens_per_step < LENGTH

    @pytest.mark.parametrize("name", [name for name, case in CASES.items() if name != "plain" and not case.options])
    def test_a_child_that_the_target_did_not_sample_is_found(self, p_value, name, monkeypatch):
        if name == "static tree":
            pytest.skip("its rule accepts by probabilities")
        monkeypatch.setattr(acceptance, "verify_greedy", first_children)
        assert p_value(name, 300)[0] < 1e-6

    @pytest.mark.parametrize(
        ("name", "texts"),
        [
            ("plain", 300),
            ("static tree, target", 300),
            ("dynamic tree", 250),
            ("prompt lookup", 300),
        ],
    )
    def test_noise_used_again_in_the_next_step_is_found(self, p_value, name, texts):
        assert p_value(name, texts, kind=decoder_with(RestartedGenerator))[0] < 1e-6


class TestGreedyText:
    @every_drafter
    @pytest.mark.parametrize("prompt", [PROMPT, [1], REPEATS], ids=["text", "one token", "repeats"])
    def test_it_is_that_of_plain_decoding(self, target, draft, name, prompt, greedy_text):
        tokens = text_of(decoder_of(name, target, draft), prompt, 30)
        assert tokens == greedy_text(target, prompt, 30)
        assert {type(token) for token in tokens} == {int}

    @every_drafter
    def test_a_text_may_be_as_long_as_the_models_allow(self, target, draft, name, greedy_text):
        prompt = PROMPT * 17
        room = 128 - len(prompt)
        assert text_of(decoder_of(name, target, draft), prompt, room) == greedy_text(target, prompt, room)

    @every_drafter
    def test_a_stale_cache_of_the_target_is_found(self, target, draft, name, greedy_text):
        class Stale(Stepper):
            def commit(self, sequences, results):
                super().commit(sequences, results)
                for number in sequences:
                    cache = self.targets[number].cache
                    _spoil(cache, cache.length - 1)

        found = text_of(decoder_of(name, target, draft, kind=decoder_with(Stale)), REPEATS, 30)
        assert found != greedy_text(target, REPEATS, 30)


class TestDrafts:
    """A draft depends on the text alone: that of a decoder that came there step by step is a fresh decoder's."""

    @staticmethod
    def agreeing(name, target, draft, steps=10):
        decoder, text, found = decoder_of(name, target, draft), list(REPEATS), []
        fresh = decoder_of(name, target, draft)
        decoder.start(text)
        for _ in range(steps):
            proposal = decoder.draft()
            fresh.start(text)
            expected = fresh.draft()
            found.append(proposal.tree == expected.tree and torch.equal(proposal.tokens, expected.tokens))
            step = decoder.accept(proposal, decoder.verify(proposal))
            decoder.commit(step)
            text += step.tokens
        return all(found)

    @pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.history])
    def test_they_are_those_of_a_fresh_decoder(self, target, draft, name):
        assert self.agreeing(name, target, draft)

    @pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.own_models and not case.history])
    def test_a_stale_cache_of_the_draft_is_found(self, target, draft, name, monkeypatch):
        accept = DraftModelSequence.accept, HeadDrafter.accept, EagleSequence.accept, BlockDrafter.accept

        def keeps_too_little(self, step, fed):
            accept[0](self, step, fed)
            _spoil(self.cache, self.cache.length - 1)

        def keeps_what_was_drafted(self, step, fed):
            accept[2](self, step, fed)
            self.cache.length += len(step.path) - 1

        def of_the_root(self, texts, steps):
            accept[1](self, texts, [step._replace(states=_shifted(step.states)) for step in steps])

        def reads_other_states(self, texts, steps):
            rolled = [step.states.map(lambda states: states.roll(1, 0)) for step in steps]
            accept[3](self, texts, [step._replace(states=each) for step, each in zip(steps, rolled, strict=True)])

        monkeypatch.setattr(BlockDrafter, "accept", reads_other_states)
        monkeypatch.setattr(DraftModelSequence, "accept", keeps_too_little)
        monkeypatch.setattr(HeadDrafter, "accept", of_the_root)
        monkeypatch.setattr(EagleSequence, "accept", keeps_what_was_drafted)
        assert not self.agreeing(name, target, draft)


class TestSeeds:
    @every_drafter
    def test_the_same_seed_gives_the_same_texts(self, target, draft, name):
        first, again, other = (decoder_of(name, target, draft, temperature=0.9, seed=seed) for seed in (5, 5, 6))
        texts = [text_of(first), text_of(first)]
        assert texts[0] != texts[1]
        assert [text_of(again), text_of(again)] == texts
        assert text_of(other) not in texts

    @pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.learns])
    def test_a_text_depends_on_its_prompt_and_seed_alone(self, target, draft, name):
        decoder, fresh = (decoder_of(name, target, draft, temperature=0.9, seed=seed) for seed in (1, 2))
        expected = text_of(fresh, seed=0)
        text_of(decoder, REPEATS, 17)
        given_up = decoder.generate([4, 5], 20, seed=3)
        next(given_up)
        assert text_of(decoder, seed=0) == expected == text_of(decoder, seed=0)
        assert text_of(decoder, seed=1) != expected

    @every_drafter
    def test_the_global_generator_is_not_touched(self, target, draft, name):
        before = torch.get_rng_state()
        text_of(decoder_of(name, target, draft, temperature=0.9))
        assert torch.equal(torch.get_rng_state(), before)


class TestStops:
    @every_drafter
    def test_an_end_token_and_a_sequence(self, target, draft, name, greedy_text):
        expected = greedy_text(target, PROMPT, 30)
        for place in (0, 8):
            end = expected[place]
            text = text_of(decoder_of(name, with_end(target, end), draft), count=30)
            assert text == expected[: expected.index(end) + 1]
            stop = expected[place : place + 2]
            first = next(at for at in range(30) if expected[at : at + 2] == stop)
            assert text_of(decoder_of(name, target, draft), count=30, stop=[stop]) == expected[: first + 2]

    @every_drafter
    def test_exactly_as_many_tokens_as_asked_for(self, target, draft, name, greedy_text):
        decoder, expected = decoder_of(name, target, draft), greedy_text(target, REPEATS, 11)
        for count in (0, 1, 2, 5, 11):
            assert joined(decoder.stream(REPEATS, count)) == expected[:count]


@every_drafter
def test_a_decoder_made_in_inference_mode_decodes_outside_of_it(target, draft, name):
    with torch.inference_mode():
        decoder = decoder_of(name, target, draft, temperature=independent(name, 0.9), seed=1)
        text_of(decoder, REPEATS)
    assert text_of(decoder, REPEATS, seed=3) == text_of(
        decoder_of(name, target, draft, temperature=independent(name, 0.9)), REPEATS, seed=3
    )


class TestInterruption:
    @every_drafter
    def test_an_error_within_any_pass_leaves_no_state(self, target, draft, name, monkeypatch):
        decoder = decoder_of(name, target, draft, temperature=independent(name, 0.9))
        expected = text_of(decoder, count=12, seed=4)
        for method in ("forward", "run", "prefill", "logits"):
            run = getattr(Transformer, method)
            for calls_before in (0, 4):
                left = [calls_before]

                def broken_off(*arguments, run=run, left=left, **keywords):
                    found = run(*arguments, **keywords)
                    left[0] -= 1
                    if left[0] < 0:
                        raise KeyboardInterrupt
                    return found

                with monkeypatch.context() as patched:
                    patched.setattr(Transformer, method, broken_off)
                    _break_off(decoder)
                assert text_of(decoder, count=12, seed=4) == expected

    @every_drafter
    def test_so_it_is_between_the_parts_of_a_step(self, target, draft, name, monkeypatch):
        decoder = decoder_of(name, target, draft, temperature=independent(name, 0.9))
        expected = text_of(decoder, count=12, seed=4)
        for owner, part in (
            (Stepper, "verify"),
            (Stepper, "accept"),
            (Stepper, "commit"),
            (decoder._drafter, "accept"),
        ):
            with monkeypatch.context() as patched:
                patched.setattr(owner, part, _interrupted)
                assert _break_off(decoder)
            assert text_of(decoder, count=12, seed=4) == expected

    @every_drafter
    def test_an_iterator_is_of_no_use_once_another_text_was_begun(self, target, draft, name):
        decoder = decoder_of(name, target, draft)
        stale = decoder.generate(PROMPT, 60)
        decoder.start(PROMPT)
        with pytest.raises(TreeoptError, match="another sequence has begun"):
            next(stale)


def _interrupted(*_):
    raise KeyboardInterrupt


def _break_off(decoder):
    """Decode until an interruption, and return whether there was one."""
    try:
        list(decoder.generate([7, 8, 9], 40))
    except KeyboardInterrupt:
        return True
    return False


def _spoil(cache, slot):
    """Put other keys and values where those of a committed token are."""
    for entries in cache.layers:
        for each in entries:
            each[:, :, slot] = -each[:, :, slot].flip(-1)


def _shifted(states):
    """Return the states of other tokens than those they stand for."""
    return states._replace(last=states.last.roll(1, -1))
