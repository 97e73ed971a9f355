"""Drafters that change between steps: output stays the same, and no drafter misses a token."""

import itertools

import pytest

from tests.support.decoded import PROMPT, joined
from tests.support.table_model import Table, counted
from treeopt.errors import InvalidValueError
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.acceptance import Acceptance
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.drafters.lookahead import LookaheadDrafter
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain, level_widths

TREE = level_widths([3, 2])
ROOM = TREE.nodes
PROMPTS = [PROMPT, [1, 2, 1, 2, 1], [7], [4, 4, 4, 9]]
SIZE = 4
LARGE, SMALL = Table.random(5, SIZE, "target"), Table.random(6, SIZE, "draft")


def lookup(ngram=2, length=3):
    return PromptLookupDrafter(ngram, length)


def switch(decoder, strategy):
    """Draft a tree, or with a drafter, from the next step on."""
    (decoder.change_tree if hasattr(strategy, "parents") else decoder.change_drafter)(strategy)


class RecordingLookup(PromptLookupDrafter):
    """Records the sequences that were begun and not ended."""

    def __init__(self):
        super().__init__(2, 3)
        self.active = set()

    def begin(self, sequence, *args):
        super().begin(sequence, *args)
        self.active.add(sequence)

    def end(self, sequence):
        super().end(sequence)
        self.active.discard(sequence)


@pytest.mark.parametrize("has_draft", [True, False])
def test_output_stays_the_same_in_a_batch(target, draft, greedy_text, has_draft):
    arguments = (draft, TREE) if has_draft else (None, None)
    decoder = Decoder(target, *arguments, temperature=0.0, max_nodes=ROOM)
    strategies = [TREE, lookup(), chain(0), lookup(4, 2), lookup(1, 5), chain(2)]
    cycle = itertools.cycle(strategies if has_draft else [lookup(), chain(0), lookup(4, 2)])
    outputs = [[] for _ in PROMPTS]
    for number, output in enumerate(
        decoder.stream_all([GenerationRequest(each, 40) for each in PROMPTS], batch_size=3)
    ):
        outputs[output.request] += output.tokens
        if number % 4 == 3:  # between the outputs of one step too
            switch(decoder, next(cycle))
    assert outputs == [greedy_text(target, prompt, 40) for prompt in PROMPTS]


def test_the_draft_model_reads_missed_tokens_once(target, monkeypatch):
    """The draft is the target, so every node of a chain is accepted if the draft's cache is right."""
    monkeypatch.setattr("treeopt.runtime.drafters.draft_model.MAX_CATCH_UP_TOKENS", 5)
    decoder = Decoder(target, target, chain(3), temperature=0.0)
    steps = decoder.stream(PROMPT, 100)
    assert [len(next(steps)) for _ in range(2)] == [4] * 2
    cache = decoder._static._sequences[decoder._sequence].cache
    length = cache.length
    for other in (lookup(), chain(0)):
        switch(decoder, other)
        for _ in range(6):
            next(steps)
        assert cache.length == length
    decoder.change_tree(chain(3))
    assert [len(next(steps)) for _ in range(5)] == [4] * 5


def test_the_draft_model_reads_a_sequence_that_began_meanwhile(target, greedy_text):
    decoder = Decoder(target, target, chain(3), temperature=0.0)
    decoder.change_drafter(lookup())
    steps = decoder.stream(PROMPT, 60)
    text = [*next(steps), *next(steps)]
    assert decoder._static._sequences._used == {}
    decoder.change_tree(chain(3))
    new = [next(steps) for _ in range(4)]
    assert [len(step) for step in new] == [4] * 4
    assert text + joined(new) == greedy_text(target, PROMPT, len(text) + 16)


def test_a_new_drafter_receives_all_tokens(target, draft):
    decoder = Decoder(target, draft, TREE, temperature=0.0, max_nodes=ROOM)
    steps = decoder.stream([1, 2, 3] * 5, 40)
    text = [1, 2, 3] * 5 + joined(next(steps) for _ in range(4))
    decoder.change_drafter(lookup())
    alone = lookup()
    for _ in range(6):
        alone.begin(0, text)
        assert decoder.draft().tokens.tolist() == alone.propose([0])[0].tokens.tolist()
        text += next(steps)


def test_a_replaced_drafter_ends_every_sequence_and_one_selected_again_keeps_them(target, draft, greedy_text):
    decoder, other = Decoder(target, draft, TREE, temperature=0.0, max_nodes=ROOM), RecordingLookup()
    for seed in range(6):
        steps = decoder.stream(PROMPT, 20, seed=seed)
        next(steps)
        decoder.change_drafter(other)
        next(steps)
        decoder.change_tree(TREE)
    assert other.active == set()
    steps, text = decoder.stream(PROMPT, 20), []
    for _ in range(3):
        decoder.change_drafter(other)
        text += next(steps)
    assert len(other.active) == 1
    assert text == greedy_text(target, PROMPT, len(text))


class SwitchByToken:
    """Switches by the newest token, so that drafts depend on committed tokens."""

    STRATEGIES = (chain(2), lookup(2, 2), level_widths([2, 1]), lookup(1, 1))

    def attach(self, decoder):
        self.decoder = decoder

    def largest_tree_nodes(self, tree):  # noqa: ARG002
        return 5

    def __call__(self, event):
        switch(self.decoder, self.STRATEGIES[event.step.tokens[-1]])


def p_value(chi_squared, rule):
    decoder = Decoder(LARGE, SMALL, chain(2), rule=rule, temperature=1.0, seed=2, on_step=SwitchByToken())
    counts, _ = counted(decoder, (2, 0, 1, 2, 0, 2), 3, 400, SIZE)
    return chi_squared(counts, LARGE.joint(2, 3, Sampling(1.0)))


@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal", "target"])
def test_sampled_output_follows_the_target(rule, chi_squared):
    assert p_value(chi_squared, rule) > 1e-3


@pytest.mark.slow
def test_deterministic_drafts_verified_as_sampled_ones_are_found(monkeypatch, chi_squared):
    monkeypatch.setattr(Acceptance, "_is_tested", lambda *_: True)
    assert p_value(chi_squared, "sequoia") < 1e-6


def test_sampled_output_does_not_depend_on_the_batch():
    def decode(batch_size):
        decoder = Decoder(LARGE, SMALL, chain(2), temperature=1.0, max_nodes=5)
        decoder.change_drafter(lookup(2, 2))
        outputs = [[], [], []]
        prompts = [(0, 1, 0, 1, 0), (3,), (2, 2, 2)]  # nothing is drafted in the second at first
        for number, tokens in decoder.generate_all(prompts, 12, seeds=[5, 6, 7], batch_size=batch_size):
            outputs[number] += tokens
        return outputs

    assert decode(3) == decode(1)


def test_drafters_that_do_not_fit_are_refused(target, draft):
    decoder = Decoder(target, draft, chain(2), temperature=0.0)
    with pytest.raises(InvalidValueError, match="at most 3 tokens, the decoder"):
        decoder.change_drafter(lookup(2, 3))
    with pytest.raises(InvalidValueError, match="neither samples its tokens nor reads hidden states"):
        decoder.change_drafter(decoder._static)
    with pytest.raises(InvalidValueError, match="made with one of its own"):
        Decoder(target, LookaheadDrafter(2, 3, 2), temperature=0.0).change_drafter(lookup())


def test_nothing_is_kept_of_a_sequence_after_its_end(target, draft):
    decoder = Decoder(target, draft, chain(2), temperature=0.0, max_nodes=ROOM)
    decoder.change_drafter(lookup())
    list(decoder.generate_all(PROMPTS, 6, batch_size=2))
    assert ([*decoder._targets], decoder._stepper._unread) == ([], set())
