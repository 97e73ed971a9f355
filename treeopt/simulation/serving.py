"""Servers that decode sequences step by step, and admit waiting requests between two steps.

So servers decode batches since Orca (Yu et al., 2022): sequences join and leave at any step.  Either

    one waiting prompt is prefilled while all others wait;  if none waits, all sequences take a step

as in treeopt's decoder, where the first token comes with the first step, or, as in engines, in one round

    all waiting prompts are prefilled and all other sequences take a step;  prefill yields the first token
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from treeopt.simulation.arrivals import Request
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.step_times import StepTimes
from treeopt.simulation.step_tokens import Place, StepTokens


@dataclass(slots=True, eq=False)
class ServedSequence:
    """A request while it is served and after; times are seconds since the simulation began."""

    request: Request
    first_token_s: float = math.nan
    finished_s: float = math.nan
    steps: int = 0
    step_tokens: int = 0
    """Tokens of its steps: all, or all but the one of prefill."""
    places: list[Place] = field(default_factory=list)
    """Where it is in the measured sequences."""
    tokens: int = 0

    def add(self, tokens: int, now_s: float) -> int:
        """Add tokens, at most as many as are missing, and return how many."""
        if not self.tokens:
            self.first_token_s = now_s
        tokens = min(tokens, self.request.new_tokens - self.tokens)
        self.tokens += tokens
        if self.tokens == self.request.new_tokens:
            self.finished_s = now_s
        return tokens

    @property
    def time_to_first_token_s(self) -> float:
        """From its arrival, so waiting counts."""
        return self.first_token_s - self.request.arrival_s

    @property
    def latency_s(self) -> float:
        """From its arrival to its last token."""
        return self.finished_s - self.request.arrival_s

    @property
    def time_per_token_s(self) -> float | None:
        """Of the tokens after the first; None if there are none."""
        after = self.request.new_tokens - 1
        return (self.finished_s - self.first_token_s) / after if after else None


@dataclass(slots=True, eq=False, kw_only=True)
class Server:
    """One replica with its sequences and its queue."""

    setting: ServedSetting
    times: StepTimes
    tokens: StepTokens
    generator: np.random.Generator
    batch_size: int
    """Most sequences decoded together."""
    waiting: deque[Request] = field(default_factory=deque)
    running: list[ServedSequence] = field(default_factory=list)
    served: list[ServedSequence] = field(default_factory=list)
    now_s: float = 0.0
    """When its last prefill or step ended."""

    @property
    def backlog(self) -> int:
        """Sequences that run or wait."""
        return len(self.running) + len(self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request; an idle server starts on it at its arrival."""
        if not self.backlog:
            self.now_s = max(self.now_s, request.arrival_s)
        self.waiting.append(request)

    def run(self, until_s: float = math.inf) -> None:
        """Decode until the queue is empty, or until the first step that ends after `until_s`."""
        while self.backlog and self.now_s <= until_s:
            self._advance()

    def _advance(self) -> None:
        """Go on until others may join."""
        joining = self._prefill()
        if self.times.first_token_with_prompt:
            self._step()
            for sequence in joining:
                sequence.add(1, self.now_s)
        elif not joining:
            self._step()
        running = [*self.running, *joining]
        self.running = [sequence for sequence in running if math.isnan(sequence.finished_s)]
        self.served += [sequence for sequence in running if not math.isnan(sequence.finished_s)]

    def _prefill(self) -> list[ServedSequence]:
        """Prefill the next prompt, on an engine all that wait and have room."""
        room = min(len(self.waiting), self.batch_size - len(self.running))
        joining = []
        for _ in range(room if self.times.first_token_with_prompt else min(1, room)):
            request = self.waiting.popleft()
            self.now_s += self.times.prefill_s(request.prompt_tokens, self.setting.draft_tokens)
            joining.append(ServedSequence(request, places=self.tokens.start(self.generator)))
        return joining

    def _step(self) -> None:
        if not self.running:
            return
        tree = self.setting.trees[len(self.running) - 1]
        contexts = [sequence.request.prompt_tokens + sequence.tokens for sequence in self.running]
        self.now_s += self.times.step_s(tree, contexts)
        for sequence, context in zip(self.running, contexts, strict=True):
            tokens = self.tokens.step(tree, sequence.places, self.generator, context)
            sequence.steps += 1
            sequence.step_tokens += sequence.add(tokens, self.now_s)


def serve(requests: Sequence[Request], servers: Sequence[Server]) -> list[ServedSequence]:
    """Return every request served, server by server.

    Args:
        requests: by arrival; each goes to the server with the smallest backlog.
        servers: without a backlog.
    """
    for request in requests:
        for server in servers:
            server.run(request.arrival_s)
        min(servers, key=lambda server: server.backlog).add(request)
    for server in servers:
        server.run()
    return [sequence for server in servers for sequence in server.served]
