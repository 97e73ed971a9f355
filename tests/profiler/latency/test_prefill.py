"""Prefill of both models, timed after decoding steps of another sequence."""

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock
from treeopt.profiler import Checkpoint
from treeopt.profiler.budget import Deadline
from treeopt.profiler.clock import WarmUp
from treeopt.profiler.latency.prefill import MAX_ROUNDS, measure_prefill, prompt_lengths
from treeopt.profiler.latency.rounds import Recorder
from treeopt.runtime import Transformer


def prefill_s(model, tokens):
    """Return the seconds of a prompt, whose last token is fed in the first step."""
    return (2.0 if model.name == "large" else 0.25) + 0.01 * (tokens - 1) ** 1.1


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that adds up the prefill since its last reading."""
    seconds, original = [], Transformer.prefill

    def prefill(self, tokens, cache, *arguments, **options):
        seconds.append(prefill_s(self, len(tokens) + 1))
        return original(self, tokens, cache, *arguments, **options)

    def since_last_reading():
        total = sum(seconds)
        seconds.clear()
        return total

    monkeypatch.setattr(Transformer, "prefill", prefill)
    return FakeClock(since_last_reading)


def measure(target, draft, clock, *, longest=100, checkpoint=None, rounds=25, **options):
    recorder = Recorder(clock, checkpoint or Checkpoint(None, ""), most_samples=rounds)
    return measure_prefill(target, draft, [3, 1, 4], longest, recorder, **options)


def test_each_model_has_its_own_seconds(target, draft, clock):
    latency = measure(target, draft, clock)
    for table, model in ((latency.target, target), (latency.draft, draft)):
        assert table.tokens.tolist() == [16, 32, 64, 100]
        np.testing.assert_allclose(table.medians_s, [prefill_s(model, tokens) for tokens in table.tokens])
        assert {len(timing.samples_s) for timing in table.timings} == {MAX_ROUNDS}


def test_prompts_end_at_the_trained_length(target, draft, clock):
    assert measure(target, draft, clock, longest=10_000, rounds=1).target.max_tokens == 128
    assert [prompt_lengths(longest) for longest in (1, 16, 17)] == [[1], [16], [16, 17]]


@pytest.mark.parametrize(
    ("checks", "lengths", "rounds"), [(0, [16], 1), (2, [16, 32, 64], 1), (10**9, [16, 32, 64, 100], MAX_ROUNDS)]
)
def test_prompts_grow_and_rounds_continue_until_the_deadline(target, draft, clock, checks, lengths, rounds):
    """The deadline is checked before every prompt but the first, and after every round; it passes after some checks."""
    readings = []
    deadline = Deadline(lambda: readings.append(1) or float(len(readings) > checks), 0.5)
    latency = measure(target, draft, clock, deadline=deadline)
    assert latency.target.tokens.tolist() == lengths
    assert {len(timing.samples_s) for timing in latency.target.timings} == {rounds}
    assert latency.draft.tokens[0] == 16


def test_resumed_prefill_times_only_what_is_missing(target, draft, clock, tmp_path):
    path, calls = tmp_path / "checkpoint", []
    whole = measure(target, draft, clock, checkpoint=Checkpoint(path, "x"))
    other_clock = FakeClock(lambda: calls.append(1) or 9.0)
    assert measure(target, draft, other_clock, checkpoint=Checkpoint(path, "x", resume=True)) == whole
    assert calls == []
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    resumed = measure(target, draft, other_clock, checkpoint=Checkpoint(path, "x", resume=True))
    assert len(calls) == 3
    assert resumed.target == whole.target


def test_prefill_follows_steps_of_another_sequence(target, draft, monkeypatch):
    """As in a server: a prompt that is timed after itself is too fast."""
    passes, timed = [], []
    for method in ("prefill", "forward"):
        original = getattr(Transformer, method)

        def record(self, inputs, *arguments, method=method, original=original, **options):
            tokens = len(inputs) if method == "prefill" else [len(sequence.tokens) for sequence in inputs]
            passes.append((method, self.name, tokens))
            return original(self, inputs, *arguments, **options)

        monkeypatch.setattr(Transformer, method, record)
    clock = FakeClock(lambda: timed.append(len(passes) - 1) or 1e-3, WarmUp(first_calls=1, most_lead_calls=2))
    measure(target, draft, clock, longest=64, rounds=3)
    assert len(timed) == 3 * 2 * 3
    assert {passes[number][0] for number in timed} == {"prefill"}
    assert all(passes[number - 1] == ("forward", "large", [1]) for number in timed)
