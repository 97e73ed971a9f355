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
    """What the time is, which passes and waiting move."""

    now_s: float = 0.0


class TimedTable(Table):
    """A table whose passes take time: of the target what `machine` says, of the draft as much for any."""

    def __init__(self, logits, clock: Clock, *, target: bool) -> None:
        super().__init__(logits, "target" if target else "draft")
        self.clock, self.target = clock, target

    def prefill(self, tokens, cache, requested_states=NO_STATES):
        super().prefill(tokens, cache, requested_states)
        self.clock.now_s += (len(tokens) + 1) * (TARGET_TOKEN_S if self.target else DRAFT_TOKEN_S)

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        self._spend(len(inputs), inputs[0].nodes.rows)
        return super().forward(inputs, requested_states, last_only=last_only)

    def _spend(self, texts: int, nodes: int) -> None:
        self.clock.now_s += 1.0 + 0.01 * (nodes - 1) + 0.1 * (texts - 1) if self.target else DRAFT_S


class ArrivingOnTime:
    """Requests that arrive by a clock; who waits moves it."""

    def __init__(self, texts: list[Request], clock: Clock) -> None:
        self._left, self._clock = list(texts), clock

    def get(self, block: bool) -> GenerationRequest | None:
        if not self._left:
            if not block:
                raise Empty
            return None
        asked = self._left[0]
        if asked.arrival_s > self._clock.now_s:
            if not block:
                raise Empty
            self._clock.now_s = asked.arrival_s
        del self._left[0]
        return GenerationRequest([1] * asked.prompt_tokens, asked.new_tokens)


def decoded(texts: list[Request], tree: TokenTree, batch_size_limit: int) -> list[ServedSequence]:
    """Return the same texts as the decoder serves them."""
    clock = Clock()
    logits = Table.random(3, 8).logits
    target, draft = (TimedTable(logits, clock, target=each) for each in (True, False))
    decoder = Decoder(target, draft if tree.nodes > 1 else None, tree, temperature=0.0)
    first, steps, found = {}, dict.fromkeys(range(len(texts)), 0), []
    for step in decoder.stream_all(ArrivingOnTime(texts, clock), batch_size=batch_size_limit):
        assert step.error is None
        first.setdefault(step.request, clock.now_s)
        steps[step.request] += 1
        if step.finished:
            asked = texts[step.request]
            found.append(ServedSequence(asked, first[step.request], clock.now_s, steps[step.request], asked.new_tokens))
    return found


def rows(served: list[ServedSequence]) -> np.ndarray:
    """Return arrival, first token, end and steps of each text, by arrival."""
    return np.array(
        sorted((each.request.arrival_s, each.first_token_s, each.finished_s, each.steps) for each in served)
    )


@pytest.mark.parametrize("tree", [chain(0), chain(2), TokenTree([-1, 0, 0, 1, 1])], ids=["plain", "chain", "tree"])
def test_simulated_times_match_the_decoder(tree: TokenTree) -> None:
    waited_longest = 0.0
    for load in LOADS:
        texts = list(arrivals(load))
        for batch_size_limit in (1, 3):
            found = rows(decoded(texts, tree, batch_size_limit))
            expected = rows(served_by(times_of(SECONDS), texts, tree, batch_size_limit))
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
            waited_longest = max(waited_longest, *(found[:, 1] - found[:, 0]))
    assert waited_longest > 3  # texts met others


def test_two_servers_differ_from_one() -> None:
    """A negative control: the comparison above fails for another number of texts at a time."""
    texts = list(arrivals(LOADS[2]))
    found, other = rows(decoded(texts, chain(2), 3)), rows(served_by(times_of(SECONDS), texts, chain(2), 2))
    assert not np.allclose(found, other, rtol=0, atol=1e-9)
