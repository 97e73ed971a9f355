"""Drafters that take turns within a text: the text stays, and neither the draft model nor the other loses any of it."""

import itertools

import pytest

from tests.support.decoded import PROMPT, joined
from tests.support.table_model import Table, counted
from treeopt.errors import InvalidValueError
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.decoding import acceptance
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.drafters.lookahead import LookaheadDrafter
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain, level_widths

TREE = level_widths([3, 2])
ROOM = TREE.nodes
PROMPTS = [PROMPT, [1, 2, 1, 2, 1], [7], [4, 4, 4, 9]]
SIZE, LENGTH, TEXTS = 4, 3, 500
LARGE, SMALL = Table.random(5, SIZE, "target"), Table.random(6, SIZE, "draft")


def lookup(ngram=2, length=3):
    return PromptLookupDrafter(ngram, length)


def take(decoder, way):
    """Have a tree drafted from now on, or what a drafter brings."""
    (decoder.change_tree if hasattr(way, "parents") else decoder.change_drafter)(way)


def in_turn():
    """Return ways to draft without end: from one to another of each kind, and to a second of the same kind."""
    return itertools.cycle([TREE, lookup(), chain(0), lookup(4, 2), lookup(1, 5), chain(2)])


def test_a_text_stays_while_drafters_take_turns(target, draft, greedy_text):
    decoder = Decoder(target, draft, TREE, temperature=0.0, max_nodes=ROOM)
    text = []
    for way, step in zip(in_turn(), decoder.stream(PROMPT, 60), strict=False):
        text += step
        take(decoder, way)
    assert text == greedy_text(target, PROMPT, 60)


@pytest.mark.parametrize("made_with", [True, False])
def test_texts_stay_in_a_batch_and_where_there_is_no_draft_model(target, draft, greedy_text, made_with):
    decoder = Decoder(
        target, draft if made_with else None, TREE if made_with else None, temperature=0.0, max_nodes=ROOM
    )
    texts = [[] for _ in PROMPTS]
    ways = in_turn() if made_with else itertools.cycle([lookup(), chain(0), lookup(4, 2)])
    requests = [GenerationRequest(prompt, 40) for prompt in PROMPTS]
    for number, found in enumerate(decoder.stream_all(requests, batch_size=3)):
        texts[found.request] += found.tokens
        if number % 4 == 3:  # in the middle of a round too
            take(decoder, next(ways))
    assert texts == [greedy_text(target, prompt, 40) for prompt in PROMPTS]


def test_the_draft_model_reads_what_it_missed_and_nothing_twice(target):
    """The draft is the target itself, so that every node of a chain is accepted where the draft's cache is right."""
    decoder = Decoder(target, target, chain(3), temperature=0.0)
    steps = decoder.stream(PROMPT, 100)
    first = [next(steps) for _ in range(2)]
    cache = decoder._static._sequences[decoder._sequence].cache
    read, missed = cache.length, 0
    decoder.change_drafter(lookup())
    while missed < 12:
        missed += len(next(steps))
    assert cache.length == read
    decoder.change_tree(chain(3))
    assert [len(next(steps)) for _ in range(5)] == [4] * 5
    assert len(joined(first)) == 8


def test_what_was_missed_is_read_a_part_at_a_time(target, monkeypatch):
    monkeypatch.setattr("treeopt.runtime.drafters.draft_model.MAX_CATCH_UP_TOKENS", 3)
    decoder = Decoder(target, target, chain(3), temperature=0.0)
    steps = decoder.stream(PROMPT, 100)
    next(steps)
    decoder.change_tree(chain(0))
    for _ in range(12):
        next(steps)
    decoder.change_tree(chain(3))
    assert [len(next(steps)) for _ in range(5)] == [4] * 5


def test_a_text_that_began_meanwhile_is_read_when_the_draft_model_drafts(target, greedy_text):
    decoder = Decoder(target, target, chain(3), temperature=0.0)
    decoder.change_drafter(lookup())
    steps = decoder.stream(PROMPT, 60)
    text = [*next(steps), *next(steps)]
    assert decoder._static._sequences._used == {}  # a text that it may never draft in costs it nothing
    decoder.change_tree(chain(3))
    rest = [next(steps) for _ in range(4)]
    assert [len(step) for step in rest] == [4] * 4
    assert text + joined(rest) == greedy_text(target, PROMPT, len(text) + 16)


def test_the_other_drafter_knows_the_text_before_it(target, draft):
    """What is drafted is what a drafter that was there from the beginning drafts."""
    decoder = Decoder(target, draft, TREE, temperature=0.0, max_nodes=ROOM)
    steps = decoder.stream([1, 2, 3] * 5, 40)
    text = [1, 2, 3] * 5 + joined(next(steps) for _ in range(4))
    decoder.change_drafter(lookup())
    alone = lookup()
    for _ in range(6):
        alone.begin(0, text)
        assert decoder.draft().tokens.tolist() == alone.propose([0])[0].tokens.tolist()
        text += next(steps)


def test_a_drafter_that_is_put_aside_ends_every_sequence(target, draft):
    decoder, other = Decoder(target, draft, TREE, temperature=0.0, max_nodes=ROOM), Begun()
    for seed in range(6):
        steps = decoder.stream(PROMPT, 20, seed=seed)
        next(steps)
        decoder.change_drafter(other)
        next(steps)
        decoder.change_tree(TREE)
    assert other.texts == set()


def test_a_drafter_that_takes_its_own_place_keeps_its_sequences(target, draft, greedy_text):
    decoder, other = Decoder(target, draft, TREE, temperature=0.0, max_nodes=ROOM), Begun()
    steps, text = decoder.stream(PROMPT, 20), []
    for _ in range(3):
        decoder.change_drafter(other)
        text += next(steps)
    assert len(other.texts) == 1
    assert text == greedy_text(target, PROMPT, len(text))


class Begun(PromptLookupDrafter):
    """Keeps the numbers of the sequences that were begun and not ended."""

    def __init__(self):
        super().__init__(2, 3)
        self.texts = set()

    def begin(self, text, *args):
        super().begin(text, *args)
        self.texts.add(text)

    def end(self, text):
        super().end(text)
        self.texts.discard(text)


class InTurnByText:
    """Changes what drafts by the newest token, so that what is drafted hangs on what was committed."""

    WAYS = (chain(2), lookup(2, 2), level_widths([2, 1]), lookup(1, 1))

    def attach(self, decoder):
        self.decoder = decoder

    def largest_tree_nodes(self, tree):  # noqa: ARG002
        return 5

    def __call__(self, event):
        take(self.decoder, self.WAYS[event.step.tokens[-1]])


def counts_of_texts(rule):
    decoder = Decoder(LARGE, SMALL, chain(2), rule=rule, temperature=1.0, seed=2, on_step=InTurnByText())
    return counted(decoder, (2, 0, 1, 2, 0, 2), LENGTH, TEXTS, SIZE)[0]


@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal", "target"])
def test_sampled_texts_are_the_targets_while_drafters_take_turns(rule, chi_squared):
    assert chi_squared(counts_of_texts(rule), LARGE.joint(2, LENGTH, Sampling(1.0))) > 1e-3


def test_given_tokens_that_are_verified_as_sampled_ones_are_found(monkeypatch, chi_squared):
    """Drafts that are accepted as if they had been sampled from the target's own distribution come too often."""
    monkeypatch.setattr(acceptance, "MixedAcceptance", lambda by_rule, given: by_rule)  # noqa: ARG005
    assert chi_squared(counts_of_texts("sequoia"), LARGE.joint(2, LENGTH, Sampling(1.0))) < 1e-6


def test_a_sampled_text_does_not_hang_on_what_shares_its_batch():
    def texts(batch_size):
        decoder = Decoder(LARGE, SMALL, chain(2), temperature=1.0, max_nodes=5)
        decoder.change_drafter(lookup(2, 2))
        found = [[], [], []]
        prompts = [(0, 1, 0, 1, 0), (3,), (2, 2, 2)]  # in the second nothing is drafted at first
        for number, tokens in decoder.generate_all(prompts, 12, seeds=[5, 6, 7], batch_size=batch_size):
            found[number] += tokens
        return found

    assert texts(3) == texts(1)


def test_what_cannot_take_the_place_of_a_tree_is_refused(target, draft):
    decoder = Decoder(target, draft, chain(2), temperature=0.0)
    with pytest.raises(InvalidValueError, match="at most 3 tokens, the decoder"):
        decoder.change_drafter(lookup(2, 3))
    with pytest.raises(InvalidValueError, match="neither samples its tokens nor reads hidden states"):
        decoder.change_drafter(decoder._static)
    with pytest.raises(InvalidValueError, match="made with one of its own"):
        Decoder(target, LookaheadDrafter(2, 3, 2), temperature=0.0).change_drafter(lookup())


def test_nothing_of_a_text_is_kept_behind_its_end(target, draft):
    decoder = Decoder(target, draft, chain(2), temperature=0.0, max_nodes=ROOM)
    decoder.change_drafter(lookup())
    for _ in decoder.generate_all(PROMPTS, 6, batch_size=2):
        pass
    assert (decoder._switching._tokens, decoder._switching._unread) == ({}, set())
