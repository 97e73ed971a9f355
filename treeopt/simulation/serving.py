"""Servers with continuous batching (Orca: Yu et al., 2022): sequences join and leave between any two steps.

As in treeopt's decoder, a round either prefills one waiting prompt while all sequences wait, or, if none is waiting, is a step
of all sequences; the first token comes with the first step.  As in engines, a round prefills all waiting prompts and is a step
of all other sequences; the first token comes with prefill.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from treeopt.simulation.arrivals import Request
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.step_times import StepTimes
from treeopt.simulation.step_tokens import ReplayPosition, StepTokens


@dataclass(slots=True, eq=False)
class ServedSequence:
    """A request that is or was served; times are seconds since the start of the simulation."""

    request: Request
    first_token_s: float = math.nan
    finished_s: float = math.nan
    steps: int = 0
    step_tokens: int = 0
    """Tokens committed by its steps: all, or all but the one of prefill."""
    positions: list[ReplayPosition] = field(default_factory=list)
    """Its positions in the measured sequences."""
    tokens: int = 0

    def add(self, tokens: int, now_s: float) -> int:
        """Add tokens up to the requested length, and return how many were added."""
        if not self.tokens:
            self.first_token_s = now_s
        tokens = min(tokens, self.request.new_tokens - self.tokens)
        self.tokens += tokens
        if self.tokens == self.request.new_tokens:
            self.finished_s = now_s
        return tokens

    @property
    def time_to_first_token_s(self) -> float:
        """From the arrival, including the wait."""
        return self.first_token_s - self.request.arrival_s

    @property
    def latency_s(self) -> float:
        """From the arrival to the last token."""
        return self.finished_s - self.request.arrival_s

    @property
    def time_per_token_s(self) -> float | None:
        """For the tokens after the first; None without any."""
        later_tokens = self.request.new_tokens - 1
        return (self.finished_s - self.first_token_s) / later_tokens if later_tokens else None


@dataclass(slots=True, eq=False, kw_only=True)
class Server:
    """One replica with its running sequences and its queue."""

    setting: ServedSetting
    times: StepTimes
    tokens: StepTokens
    generator: np.random.Generator
    batch_size: int
    """Largest number of sequences decoded together."""
    waiting: deque[Request] = field(default_factory=deque)
    running: list[ServedSequence] = field(default_factory=list)
    served: list[ServedSequence] = field(default_factory=list)
    now_s: float = 0.0
    """End of its last prefill or step."""

    @property
    def backlog(self) -> int:
        """Number of running and waiting sequences."""
        return len(self.running) + len(self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request; an idle server starts at its arrival."""
        if not self.backlog:
            self.now_s = max(self.now_s, request.arrival_s)
        self.waiting.append(request)

    def run(self, until_s: float = math.inf) -> None:
        """Decode until the queue is empty, or until the first step that ends after `until_s`."""
        while self.backlog and self.now_s <= until_s:
            self._run_round()

    def _run_round(self) -> None:
        joined = self._prefill()
        if self.times.first_token_with_prompt:
            self._step()
            for sequence in joined:
                sequence.add(1, self.now_s)
        elif not joined:
            self._step()
        running = [*self.running, *joined]
        self.running = [sequence for sequence in running if math.isnan(sequence.finished_s)]
        self.served += [sequence for sequence in running if not math.isnan(sequence.finished_s)]

    def _prefill(self) -> list[ServedSequence]:
        """Prefill the next prompt, on an engine all waiting prompts that fit into the batch."""
        free_slots = min(len(self.waiting), self.batch_size - len(self.running))
        joined = []
        for _ in range(free_slots if self.times.first_token_with_prompt else min(1, free_slots)):
            request = self.waiting.popleft()
            self.now_s += self.times.prefill_s(request.prompt_tokens, self.setting.draft_tokens)
            joined.append(ServedSequence(request, positions=self.tokens.start(self.generator)))
        return joined

    def _step(self) -> None:
        if not self.running:
            return
        tree = self.setting.trees[len(self.running) - 1]
        contexts = [sequence.request.prompt_tokens + sequence.tokens for sequence in self.running]
        self.now_s += self.times.step_s(tree, contexts)
        for sequence, context in zip(self.running, contexts, strict=True):
            tokens = self.tokens.step(tree, sequence.positions, self.generator, context)
            sequence.steps += 1
            sequence.step_tokens += sequence.add(tokens, self.now_s)


def serve(requests: Sequence[Request], servers: Sequence[Server]) -> list[ServedSequence]:
    """Serve all requests and return their sequences, server by server.

    Args:
        requests: by arrival; each is queued at the server with the smallest backlog.
        servers: idle.
    """
    for request in requests:
        for server in servers:
            server.run(request.arrival_s)
        min(servers, key=lambda server: server.backlog).add(request)
    for server in servers:
        server.run()
    return [sequence for server in servers for sequence in server.served]
