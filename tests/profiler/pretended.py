"""Machines that do not exist: the seconds of a pass are a known function of its tokens, its context and its batch."""

from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from treeopt.profiler import Checkpoint, Measurement
from treeopt.profiler.acceptance import per_prompt
from treeopt.profiler.clock import WarmUp
from treeopt.profiler.latency.load import Load
from treeopt.profiler.latency.point import PointTimer
from treeopt.runtime.models.model import NO_STATES, Output, Outputs

SLOWER = 9.0
BLOCK_CALLS = 10
ALL, NONE = Load(2.0, 2, 2), Load(0.0, 2, 2)
"""Both of two processors, and none."""
NO_WARM_UP = WarmUp(first_calls=0, most_lead_calls=0)
Seconds = Callable[[int, int, int], float]
"""From tokens, context tokens and batch size."""


def verify_s(tokens: int, context: int, batch: int) -> float:
    """Return a slope that rises where a cache is full, and a step at every tile of 64 rows."""
    rows = tokens * batch
    return 1e-3 + 1e-6 * context * batch + 4e-6 * rows + 1e-5 * max(0, rows - 90) + 5e-4 * ((rows - 1) // 64)


def draft_s(width: int, context: int, batch: int) -> float:
    """Return a slope with one step, at 100 rows."""
    rows = width * batch
    return 2e-4 + 2e-7 * context * batch + 1e-6 * rows + 3e-4 * (rows > 100)


class FakeClock:
    """Makes a call, and returns as its time what `seconds` returns; no untimed calls."""

    def __init__(self, seconds: Callable[[], float] = lambda: 1.0, warm_up: WarmUp = NO_WARM_UP) -> None:
        self._seconds = seconds
        self.warm_up = warm_up

    def time_s(self, work) -> float:
        work()
        return self._seconds()

    def now_s(self) -> float:
        return 0.0


@dataclass
class Machine:
    """A clock that adds up the seconds of the passes in a call; its models compute nothing."""

    contexts: tuple[int, ...]
    verify: Seconds = verify_s
    draft: Seconds = draft_s
    sigma: float = 0.0
    """Of the logarithm of the noise, whose median is 1."""
    seed: int = 0
    warm_up: WarmUp = NO_WARM_UP
    drift: Callable[[float], float] = lambda _: 1.0
    """Factor of every pass, from the seconds of all passes before."""
    passes_s: float = 0.0
    """All passes, timed or not."""
    timed: int = 0
    used: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Model, tokens, context and batch of every pass."""

    def __post_init__(self) -> None:
        self._noise = np.random.default_rng(self.seed)

    def run_on(self, model, name: str):
        """Return a model whose passes this machine pretends to run."""

        def forward(inputs, requested_states=NO_STATES, *, last_only=False):  # noqa: ARG001
            tokens, batch = max(sequence.nodes.rows for sequence in inputs), len(inputs)
            mean = np.mean([sequence.cache.length for sequence in inputs])
            context = min(self.contexts, key=lambda context: abs(context - mean))
            self.used.append((name, tokens, context, batch))
            self.passes_s += getattr(self, name)(tokens, context, batch) * self.drift(self.passes_s)
            sizes = [1 if last_only else sequence.nodes.rows for sequence in inputs]
            return Outputs(Output(torch.zeros(sum(sizes), model.config.vocabulary)), sizes)

        def prefill(tokens, cache, requested_states=NO_STATES):  # noqa: ARG001
            cache.length = len(tokens)
            self.passes_s += 1e-9 * cache.length

        model.forward, model.prefill = forward, prefill
        return model

    def now_s(self) -> float:
        return self.passes_s

    def time_s(self, work) -> float:
        before_s = self.passes_s
        work()
        self.timed += 1
        return (self.passes_s - before_s) * float(np.exp(self.sigma * self._noise.normal()))


@dataclass
class SharedMachine(Machine):
    """A clock by which some calls are slower, and a reader of the load that slowed them."""

    busy: Container[int] = ()
    """Numbers of the timed calls that other programs disturb, from 0."""
    reported: int = 0

    def time_s(self, work) -> float:
        seconds = super().time_s(work)
        return seconds * SLOWER if self.timed - 1 in self.busy else seconds

    def read(self) -> Load | None:
        """Return a load every `BLOCK_CALLS` calls: a block is disturbed if any of its calls is."""
        if self.timed - self.reported < BLOCK_CALLS:
            return None
        calls, self.reported = range(self.reported, self.timed), self.timed
        return ALL if any(call in self.busy for call in calls) else NONE


def machine_and_pair(make_model, contexts, kind=Machine, **options):
    """Return a machine and a pair that runs on it."""
    machine = kind(contexts, **options)
    models = (make_model(seed=1, max_positions=1024, name=name) for name in ("large", "small"))
    return machine, *(machine.run_on(model, name) for model, name in zip(models, ("verify", "draft"), strict=True))


def measure_grid(grid, tick=lambda: None):
    """Return the latencies at every operating point that fits into memory."""
    return tuple(timer.latency() for timer in grid.time_points(PointTimer.measure, tick).values())


def faults(latencies, verify: Seconds, draft: Seconds) -> list[tuple[object, ...]]:
    """Return where measured times differ from the truth: at a measured count, or outside the interval between counts."""
    wrong: list[tuple[object, ...]] = []
    for latency in latencies:
        place = (latency.context_tokens, latency.batch_size)
        for name, table, seconds in (("verify", latency.verify, verify), ("draft", latency.draft, draft)):
            counts = np.arange(1, table.max_tokens + 1)
            truth = np.array([seconds(count, *place) for count in counts.tolist()])
            low, high = table.interval_s(counts)
            outside = (truth < low * (1 - 1e-9)) | (truth > high * (1 + 1e-9))
            inexact = np.abs(table.seconds(counts) / truth - 1) > 1e-9
            wrong += [(name, *place, count) for count in counts[outside].tolist()]
            wrong += [(name, *place, count) for count in table.tokens.tolist() if inexact[count - 1]]
    return wrong


def measure_profile(
    target, draft, prompts, settings, *, clock=None, checkpoint=None, latencies=None, fastest_tree=None, **options
):
    """Return a profile; by default every timed call takes a second, and the planner chooses the trees of `traversal`."""
    measurement = Measurement(
        target,
        draft,
        prompts,
        settings,
        clock=clock or FakeClock(),
        checkpoint=checkpoint or Checkpoint(None, ""),
        **options,
    )
    with pytest.MonkeyPatch.context() as patch:
        if fastest_tree is not None:
            patch.setattr(per_prompt, "fastest_drafted_tree", fastest_tree)
        return measurement.profile(latencies=latencies, show_progress=False)


def undated(profile):
    return replace(profile, created="")


def interrupt(monkeypatch, owner, name, number):
    """Raise KeyboardInterrupt in one call of a function, numbered from 0; return the arguments of all calls."""
    calls, original = [], getattr(owner, name)

    def call(*arguments, **options):
        calls.append(arguments)
        if len(calls) == number + 1:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return calls
