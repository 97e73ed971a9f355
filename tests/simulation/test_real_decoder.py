"""The decoder with a fake clock: tokens come at the simulated times."""

from dataclasses import dataclass, replace
from queue import Empty

import numpy as np
import pytest

from tests.simulation.machines import ALWAYS, machine, served_by, times_of
from tests.support.table_model import Table
from treeopt.records.latency import LatencyTable, PrefillLatency, Timing
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models.model import NO_STATES
from treeopt.simulation.arrivals import Load, Request, arrivals
from treeopt.simulation.serving import ServedSequence
from treeopt.trees import TokenTree, chain

TARGET_TOKEN_S, DRAFT_TOKEN_S, DRAFT_S = 0.004, 0.0005, 0.001
"""Of a prompt's token at each model, and of a draft pass."""
BATCHES = (1, 2, 3)
PREFILL = PrefillLatency(
    target=LatencyTable([1, 64], [Timing([TARGET_TOKEN_S]), Timing([64 * TARGET_TOKEN_S])]),
    draft=LatencyTable([1, 64], [Timing([DRAFT_TOKEN_S]), Timing([64 * DRAFT_TOKEN_S])]),
)
SECONDS = replace(machine(batches=BATCHES, table=ALWAYS), prefill=PREFILL)
LOADS = [
    Load(rate_per_s=rate, prompt_tokens=(2, 60), new_tokens=(1, 9), duration_s=12 / rate, seed=seed)
    for seed, rate in enumerate((0.1, 0.3, 0.6))
]


@dataclass
class Clock:
    """The time, which passes and waiting advance."""

    now_s: float = 0.0


class TimedTable(Table):
    """A table model whose passes advance a clock, the target's by the times of `machine`."""

    def __init__(self, logits, clock: Clock, *, target: bool) -> None:
        super().__init__(logits, "target" if target else "draft")
        self.clock, self.target = clock, target

    def prefill(self, tokens, cache, requested_states=NO_STATES):
        super().prefill(tokens, cache, requested_states)
        self.clock.now_s += (len(tokens) + 1) * (TARGET_TOKEN_S if self.target else DRAFT_TOKEN_S)

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        self._spend(len(inputs), inputs[0].nodes.rows)
        return super().forward(inputs, requested_states, last_only=last_only)

    def _spend(self, sequences: int, nodes: int) -> None:
        self.clock.now_s += 1.0 + 0.01 * (nodes - 1) + 0.1 * (sequences - 1) if self.target else DRAFT_S


class ArrivingOnTime:
    """Requests that arrive by a clock, which waiting advances."""

    def __init__(self, requests: list[Request], clock: Clock) -> None:
        self._left, self._clock = list(requests), clock

    def get(self, block: bool) -> GenerationRequest | None:
        if not self._left:
            if not block:
                raise Empty
            return None
        request = self._left[0]
        if request.arrival_s > self._clock.now_s:
            if not block:
                raise Empty
            self._clock.now_s = request.arrival_s
        del self._left[0]
        return GenerationRequest([1] * request.prompt_tokens, request.new_tokens)


def decode(requests: list[Request], tree: TokenTree, batch_size_limit: int) -> list[ServedSequence]:
    """Serve requests with the decoder."""
    clock = Clock()
    logits = Table.random(3, 8).logits
    target, draft = (TimedTable(logits, clock, target=is_target) for is_target in (True, False))
    decoder = Decoder(target, draft if tree.nodes > 1 else None, tree, temperature=0.0)
    first, steps, served = {}, dict.fromkeys(range(len(requests)), 0), []
    for step in decoder.stream_all(ArrivingOnTime(requests, clock), batch_size=batch_size_limit):
        assert step.error is None
        first.setdefault(step.request, clock.now_s)
        steps[step.request] += 1
        if step.finished:
            request = requests[step.request]
            times_s = first[step.request], clock.now_s
            served.append(ServedSequence(request, *times_s, steps[step.request], request.new_tokens))
    return served


def rows(served: list[ServedSequence]) -> np.ndarray:
    """Return arrival, first token, end and steps of each sequence, by arrival."""
    return np.array(
        sorted((item.request.arrival_s, item.first_token_s, item.finished_s, item.steps) for item in served)
    )


@pytest.mark.parametrize("tree", [chain(0), chain(2), TokenTree([-1, 0, 0, 1, 1])], ids=["plain", "chain", "tree"])
def test_simulated_times_match_the_decoder(tree: TokenTree) -> None:
    longest_wait_s = 0.0
    for load in LOADS:
        requests = list(arrivals(load))
        for batch_size in (1, 3):
            measured = rows(decode(requests, tree, batch_size))
            simulated = rows(served_by(times_of(SECONDS), requests, tree, batch_size))
            np.testing.assert_allclose(measured, simulated, rtol=0, atol=1e-9)
            longest_wait_s = max(longest_wait_s, *(measured[:, 1] - measured[:, 0]))
    assert longest_wait_s > 3, "no request waits for another"


def test_another_batch_size_is_detected() -> None:
    """Negative control."""
    requests = list(arrivals(LOADS[2]))
    measured, simulated = rows(decode(requests, chain(2), 3)), rows(served_by(times_of(SECONDS), requests, chain(2), 2))
    assert not np.allclose(measured, simulated, rtol=0, atol=1e-9)
