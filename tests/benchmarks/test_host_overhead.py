"""benchmarks/host_overhead.py on a clock that advances by a second whenever it is read, so that times are counted exactly."""

from itertools import count

import pytest
import torch

from tests.scripts import ROOT, script
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads
from treeopt.trees import chain

script = script(ROOT / "benchmarks" / "host_overhead.py")
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8], [9, 7]]


@pytest.fixture
def step_times(monkeypatch):
    """Return the seconds of a step in whole passes: those of step, target, drafter and drafting."""
    clock = count()
    monkeypatch.setattr(script, "perf_counter", lambda: float(next(clock)))

    def measure(decoder, batch_size):
        times = script.time_steps(decoder, PROMPTS, batch_size, new_tokens=6)
        return [1e-3 * milliseconds for milliseconds in (times.step, times.target, times.drafter, times.drafting)]

    return measure


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_plain_step_has_one_pass_of_the_target(step_times, target, batch_size):
    assert step_times(Decoder(target, None, temperature=0), batch_size) == pytest.approx([5, 1, 0, 1])


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_chain_has_one_draft_pass_per_level(step_times, target, draft, batch_size):
    decoder = Decoder(target, draft, chain(3), temperature=0)
    assert step_times(decoder, batch_size) == pytest.approx([11, 1, 3, 7])


def test_heads_are_passes_of_the_drafter(step_times, target):
    hidden = target.config.hidden
    heads = MedusaHeads(target, torch.ones((2, hidden, hidden)), torch.zeros((2, hidden)))
    decoder = Decoder(target, MedusaDrafter(heads, chain(2)), temperature=0)
    assert step_times(decoder, 2) == pytest.approx([7, 1, 1, 3])


def test_the_runtime_is_as_before_after_a_measurement(step_times, target):
    before = script.Runner.forward, script.Linear.__call__, script.Stepper.draft
    step_times(Decoder(target, None, temperature=0), 1)
    assert (script.Runner.forward, script.Linear.__call__, script.Stepper.draft) == before
