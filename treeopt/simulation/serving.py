"""The servers: each decodes the texts that it has step by step, and takes in those that wait between two steps.

So servers decode batches since Orca (Yu et al., 2022): texts join and leave at any step.  One round of a server is

    read the prompts of those that join;  one step of all its texts;  those that are finished leave
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from treeopt.simulation.arrivals import Arrival
from treeopt.simulation.served import ServedText
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.step_seconds import StepSeconds
from treeopt.simulation.step_tokens import Place, StepTokens


@dataclass(slots=True, eq=False)
class _Running:
    """A text that is decoded."""

    asked: Arrival
    place: Place
    tokens: int = 0
    steps: int = 0
    with_prompt: int = 0
    """Tokens that came with the prompt."""
    first_token_s: float | None = None

    def add(self, tokens: int, now_s: float) -> None:
        """Take in tokens, at most as many as were asked for."""
        self.tokens = min(self.tokens + tokens, self.asked.new_tokens)
        if self.first_token_s is None and self.tokens:
            self.first_token_s = now_s

    @property
    def finished(self) -> bool:
        """Whether it has all its tokens."""
        return self.tokens == self.asked.new_tokens


@dataclass(slots=True, eq=False, kw_only=True)
class Server:
    """One replica, its texts and its queue."""

    setting: ServedSetting
    seconds: StepSeconds
    tokens: StepTokens
    noise: np.random.Generator
    most_texts: int
    waiting: deque[Arrival] = field(default_factory=deque)
    running: list[_Running] = field(default_factory=list)
    ready_s: float = 0.0
    """When its round ends."""

    @property
    def texts(self) -> int:
        """Those that it decodes or that wait for it."""
        return len(self.running) + len(self.waiting)

    def round(self) -> list[ServedText]:
        """Go through one round, and return the texts that it finished."""
        self._read()
        self._step()
        finished = [each for each in self.running if each.finished]
        self.running = [each for each in self.running if not each.finished]
        return [
            ServedText(
                each.asked,
                each.first_token_s or self.ready_s,
                self.ready_s,
                each.steps,
                each.asked.new_tokens - each.with_prompt,
            )
            for each in finished
        ]

    def _read(self) -> None:
        while self.waiting and len(self.running) < self.most_texts:
            joining = _Running(self.waiting.popleft(), self.tokens.start(self.noise))
            self.ready_s += self.seconds.reading_s(joining.asked.prompt_tokens)
            if self.seconds.first_token_with_prompt:
                joining.with_prompt = 1
                joining.add(1, self.ready_s)
            self.running.append(joining)

    def _step(self) -> None:
        stepping = [each for each in self.running if not each.finished]
        if not stepping:
            return
        tree = self.setting.trees[len(stepping) - 1]
        context = sum(each.asked.prompt_tokens + each.tokens for each in stepping) / len(stepping)
        self.ready_s += self.seconds.step_s(tree, len(stepping), context)
        for each in stepping:
            of_text = each.asked.prompt_tokens + each.tokens
            tokens, each.place = self.tokens.step(tree, each.place, self.noise, of_text)
            each.steps += 1
            each.add(tokens, self.ready_s)


def serve(texts: Sequence[Arrival], servers: Sequence[Server]) -> list[ServedText]:
    """Return every text served, in the order in which they were finished.

    Args:
        texts: by time of arrival; each goes to the server with the fewest texts.
        servers: with nothing to do yet.
    """
    served: list[ServedText] = []
    busy: list[tuple[float, int]] = []  # when its round ends, and which server: a heap
    for asked in texts:
        while busy and busy[0][0] <= asked.arrival_s:
            served += _next_round(servers, busy)
        number = min(range(len(servers)), key=lambda each: servers[each].texts)
        server = servers[number]
        if not server.texts:
            server.ready_s = max(server.ready_s, asked.arrival_s)
            heapq.heappush(busy, (server.ready_s, number))
        server.waiting.append(asked)
    while busy:
        served += _next_round(servers, busy)
    return served


def _next_round(servers: Sequence[Server], busy: list[tuple[float, int]]) -> list[ServedText]:
    """Let the server whose round ended first go through another."""
    _, number = heapq.heappop(busy)
    finished = servers[number].round()
    if servers[number].texts:
        heapq.heappush(busy, (servers[number].ready_s, number))
    return finished
