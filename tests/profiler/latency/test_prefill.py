"""Times of reading prompts: by a pretended clock they are what the clock pretends, of each model, and cheap."""

from dataclasses import replace

import numpy as np
import pytest

from tests.profiler.pretended import FakeClock
from treeopt.profiler import Checkpoint
from treeopt.profiler.budget import Deadline
from treeopt.profiler.clock import WarmUp
from treeopt.profiler.latency.prefill import MAX_ROUNDS, PrefillTimer, prompt_lengths
from treeopt.profiler.latency.rounds import Recorder
from treeopt.runtime import Transformer


def read_s(model, tokens):
    """Return what a prompt is to take; the last token of one is the root, which is not read before the first step."""
    return (2.0 if model.name == "large" else 0.25) + 0.01 * (tokens - 1) ** 1.1


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that sees what is read, and nothing else."""
    seen = []
    original = Transformer.prefill

    def prefill(self, tokens, cache, *arguments, **keywords):
        seen.append(read_s(self, len(tokens) + 1))
        return original(self, tokens, cache, *arguments, **keywords)

    monkeypatch.setattr(Transformer, "prefill", prefill)

    def since():
        found = sum(seen)
        seen.clear()
        return found

    return FakeClock(since)


def timed(target, draft, clock, *, longest=100, checkpoint=None, rounds=25, **given):
    recorder = Recorder(clock, checkpoint or Checkpoint(None, ""))
    return PrefillTimer(target, draft, [3, 1, 4], longest, recorder).measure(rounds, **given)


def test_they_are_what_the_clock_says_of_each_model(target, draft, clock):
    found = timed(target, draft, clock)
    for table, model in ((found.target, target), (found.draft, draft)):
        assert table.tokens.tolist() == [16, 32, 64, 100]
        np.testing.assert_allclose(table.medians_s, [read_s(model, each) for each in table.tokens])
        assert {len(each.samples_s) for each in table.timings} == {MAX_ROUNDS}


def test_no_prompt_is_longer_than_the_models_take(target, draft, clock):
    assert timed(target, draft, clock, longest=10_000).target.max_tokens == 128
    assert [prompt_lengths(each) for each in (1, 16, 17)] == [[1], [16], [16, 17]]


@pytest.mark.parametrize(
    ("over", "lengths", "rounds"), [(0, [16], 1), (2, [16, 32, 64], 1), (10**9, [16, 32, 64, 100], MAX_ROUNDS)]
)
def test_prompts_grow_and_rounds_follow_only_while_there_is_time(target, draft, clock, over, lengths, rounds):
    """Time is asked for before every prompt but the first, and after every round: `over` of the answers are no."""
    asked = []
    time = Deadline(lambda: asked.append(1) or float(len(asked) > over), 0.5)
    found = timed(target, draft, clock, deadline=time)
    assert found.target.tokens.tolist() == lengths
    assert {len(each.samples_s) for each in found.target.timings} == {rounds}
    assert found.draft.tokens[0] == 16


def test_what_the_checkpoint_holds_is_not_timed_again(target, draft, clock, tmp_path):
    path = tmp_path / "checkpoint"
    whole = timed(target, draft, clock, checkpoint=Checkpoint(path, "x"))
    calls = []
    again = timed(
        target, draft, FakeClock(lambda: calls.append(1) or 9.0), checkpoint=Checkpoint(path, "x", resume=True)
    )
    assert (again, calls) == (whole, [])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-3]))
    part = timed(
        target, draft, FakeClock(lambda: calls.append(1) or 9.0), checkpoint=Checkpoint(path, "x", resume=True)
    )
    assert len(calls) == 3
    assert part.target == replace(whole).target


def test_a_prompt_is_read_behind_steps_of_another_text(target, draft, monkeypatch):
    """As in a server; what is timed behind the same prompt is too fast."""
    passes, timed_at = [], []
    for method in ("prefill", "forward"):
        original = getattr(Transformer, method)

        def noted(self, read, *arguments, method=method, original=original, **keywords):
            passes.append(
                (method, self.name, len(read) if method == "prefill" else [len(sequence.tokens) for sequence in read])
            )
            return original(self, read, *arguments, **keywords)

        monkeypatch.setattr(Transformer, method, noted)
    clock = FakeClock(lambda: timed_at.append(len(passes) - 1) or 1e-3, WarmUp(first_calls=1, most_lead_calls=2))
    timed(target, draft, clock, longest=64, rounds=3)
    assert len(timed_at) == 3 * 2 * 3
    assert {passes[place][0] for place in timed_at} == {"prefill"}
    assert all(passes[place - 1] == ("forward", "large", [1]) for place in timed_at)
