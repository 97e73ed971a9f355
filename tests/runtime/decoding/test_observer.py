"""An observer receives every step of every sequence: the tokens before it, the proposal and the result."""

from tests.support.decoded import PROMPT
from treeopt.profiler import MonotonicClock
from treeopt.profiler.bench.interleave import decode_run
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import combine_observers
from treeopt.trees import chain, level_widths

TREE = level_widths([2, 2])
PROMPTS = [PROMPT, PROMPT[:4], [1]]


class Recorder:
    """Records the events of every sequence, and checks that each step fits the tokens before it."""

    def __init__(self):
        self.outputs = {}
        self.steps = []

    def __call__(self, event):
        proposal, step = event.proposal, event.step
        text = self.outputs.setdefault(event.sequence, list(event.tokens))
        assert list(event.tokens) == text
        assert proposal.tokens[0] == text[-1]
        assert proposal.tokens[list(step.path[1:])].tolist() == step.tokens[:-1]
        assert step.logits[list(step.path)].argmax(-1).tolist() == step.tokens  # at temperature 0
        text += step.tokens
        self.steps.append((event.sequence, tuple(step.tokens)))


def record(target, draft, decode):
    recorder = Recorder()
    decode(Decoder(target, draft, TREE, temperature=0.0, on_step=recorder))
    return recorder


def test_every_step_is_observed_and_tokens_stay_the_same(target, draft):
    plain = list(Decoder(target, draft, TREE, temperature=0.0).stream(PROMPT, 20))
    observed = []
    recorder = record(target, draft, lambda decoder: observed.extend(decoder.stream(PROMPT, 20)))
    assert observed == plain
    assert [list(tokens)[: len(step)] for (_, tokens), step in zip(recorder.steps, plain, strict=True)] == plain
    assert any(len(step) > 1 for step in plain)
    timed = record(target, draft, lambda decoder: decode_run(decoder, PROMPT, 20, None, MonotonicClock()))
    assert timed.steps == recorder.steps


def test_the_steps_of_a_batch_are_those_of_each_sequence(target, draft):
    alone = record(target, draft, lambda decoder: [list(decoder.generate(prompt, 20)) for prompt in PROMPTS])
    batch = record(target, draft, lambda decoder: list(decoder.generate_all(PROMPTS, 20, batch_size=2)))
    assert sorted(batch.steps) == sorted(alone.steps)
    assert batch.outputs == alone.outputs
    assert batch.steps != alone.steps  # interleaved


def test_one_event_per_step_of_a_batch_has_its_seconds(target, draft):
    seconds = []
    decoder = Decoder(target, draft, TREE, temperature=0.0, on_step=lambda event: seconds.append(event.seconds))
    steps = [len(list(decoder.stream(prompt, 20))) for prompt in PROMPTS]
    assert len(seconds) == sum(steps)
    assert all(min(each) > 0 for each in seconds)
    seconds.clear()
    list(decoder.generate_all(PROMPTS, 20, batch_size=len(PROMPTS)))
    assert len([each for each in seconds if each is not None]) == max(steps)


def test_an_observer_attached_after_some_steps_receives_all_tokens(target, draft):
    decoder, recorder = Decoder(target, draft, TREE, temperature=0.0), Recorder()
    steps = decoder.stream(PROMPT, 20)
    text = [*PROMPT, *next(steps), *next(steps)]
    with decoder.observed(recorder):
        next(steps)
    (output,) = recorder.outputs.values()
    assert output[: len(text)] == text


def test_a_controller_gets_the_decoder_and_other_observers_are_called_too(target, draft):
    class Controller(Recorder):
        def attach(self, decoder):
            self.decoder = decoder

        def largest_tree_nodes(self, tree):
            return tree.nodes

        def __call__(self, event):
            super().__call__(event)
            self.decoder.change_tree(chain(len(self.steps) % 3))

    controller, recorder = Controller(), Recorder()
    decoder = Decoder(target, draft, TREE, temperature=0.0, on_step=combine_observers(None, controller, recorder))
    tokens = list(decoder.generate(PROMPT, 20))
    assert controller.decoder is decoder
    assert controller.outputs == recorder.outputs
    assert tokens == list(Decoder(target, None, temperature=0.0).generate(PROMPT, 20))
    assert combine_observers(None) is None
    assert combine_observers(recorder) is recorder
