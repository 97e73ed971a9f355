"""An observer receives every step of every sequence: what stood before it, what was drafted, and what became of it."""

from tests.support.decoded import PROMPT
from treeopt.profiler import MonotonicClock
from treeopt.profiler.bench.interleave import decode_run
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import combine_observers
from treeopt.trees import chain, level_widths

TREE = level_widths([2, 2])
PROMPTS = [PROMPT, PROMPT[:4], [1]]


class Listener:
    """Records the events of every sequence, and checks that each step fits the text before it."""

    def __init__(self):
        self.texts = {}
        self.steps = []

    def __call__(self, event):
        proposal, step = event.proposal, event.step
        text = self.texts.setdefault(event.sequence, list(event.tokens))
        assert list(event.tokens) == text
        assert proposal.tokens[0] == text[-1]
        assert proposal.tokens[list(step.path[1:])].tolist() == step.tokens[:-1]
        assert step.logits[list(step.path)].argmax(-1).tolist() == step.tokens  # greedy: each is the target's likeliest
        text += step.tokens
        self.steps.append((event.sequence, tuple(step.tokens)))


def observe(target, draft, decode):
    listener = Listener()
    decode(Decoder(target, draft, TREE, temperature=0.0, on_step=listener))
    return listener


def test_every_step_of_a_text_is_told_and_the_text_is_the_same(target, draft):
    plain = list(Decoder(target, draft, TREE, temperature=0.0).stream(PROMPT, 20))
    found = []
    listener = observe(target, draft, lambda decoder: found.extend(decoder.stream(PROMPT, 20)))
    assert found == plain
    assert [list(tokens)[: len(step)] for (_, tokens), step in zip(listener.steps, plain, strict=True)] == plain
    assert any(len(step) > 1 for step in plain)


def test_texts_in_a_batch_are_told_apart(target, draft):
    alone = observe(target, draft, lambda decoder: [list(decoder.generate(each, 20)) for each in PROMPTS])
    batch = observe(target, draft, lambda decoder: list(decoder.generate_all(PROMPTS, 20, batch_size=2)))
    assert sorted(batch.steps) == sorted(alone.steps)
    assert batch.texts == alone.texts
    assert batch.steps != alone.steps  # in turn, not one after the other


def test_a_bench_tells_as_decoding_does(target, draft):
    def timed(decoder):
        decode_run(decoder, PROMPT, 20, None, MonotonicClock())

    assert (
        observe(target, draft, timed).steps
        == observe(target, draft, lambda decoder: list(decoder.stream(PROMPT, 20))).steps
    )


def test_the_seconds_of_a_step_are_told_once_however_many_texts_it_has(target, draft):
    seconds = []
    decoder = Decoder(target, draft, TREE, temperature=0.0, on_step=lambda event: seconds.append(event.seconds))
    steps = len(list(decoder.stream(PROMPT, 20)))
    assert len(seconds) == steps
    assert all(min(each) > 0 for each in seconds)
    seconds.clear()
    together = max(len(list(decoder.stream(each, 20))) for each in PROMPTS)
    seconds.clear()
    list(decoder.generate_all(PROMPTS, 20, batch_size=len(PROMPTS)))
    assert len([each for each in seconds if each is not None]) == together


def test_an_observer_that_steers_is_given_the_decoder_and_others_are_told_as_well(target, draft):
    class Controller(Listener):
        def attach(self, decoder):
            self.decoder = decoder

        def largest_tree_nodes(self, tree):
            return tree.nodes

        def __call__(self, event):
            super().__call__(event)
            self.decoder.change_tree(chain(len(self.steps) % 3))

    steering, listener = Controller(), Listener()
    decoder = Decoder(target, draft, TREE, temperature=0.0, on_step=combine_observers(None, steering, listener))
    found = list(decoder.generate(PROMPT, 20))
    assert steering.decoder is decoder
    assert steering.texts == listener.texts
    assert found == list(Decoder(target, None, temperature=0.0).generate(PROMPT, 20))
    assert combine_observers(None) is None
    assert combine_observers(listener) is listener
