"""The servers: each decodes the texts that it has step by step, and takes in those that wait between two steps.

So servers decode batches since Orca (Yu et al., 2022): texts join and leave at any step.  Either

    the prompt of one that joins is read, all others wait;  where nobody joins, one step of all texts

as in treeopt's decoder, where the first token of a text comes with its first step, or, as in engines, in one round

    the prompts of all that join are read beside one step of the others, and bring the first token of each
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
    def ended(self) -> bool:
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
    """When it may go on."""

    @property
    def texts(self) -> int:
        """Those that it decodes or that wait for it."""
        return len(self.running) + len(self.waiting)

    def advance(self) -> list[ServedText]:
        """Go on until others may join, and return the texts that have ended."""
        joining = self._joining()
        if self.seconds.first_token_with_prompt:
            self._step()
            for each in joining:
                each.with_prompt = 1
                each.add(1, self.ready_s)
        elif not joining:
            self._step()
        self.running += joining
        ended = [each for each in self.running if each.ended]
        self.running = [each for each in self.running if not each.ended]
        return [
            ServedText(
                each.asked,
                each.first_token_s or self.ready_s,
                self.ready_s,
                each.steps,
                each.asked.new_tokens - each.with_prompt,
            )
            for each in ended
        ]

    def _joining(self) -> list[_Running]:
        """Read the next prompt, of an engine all of those that wait and have room."""
        room = min(len(self.waiting), self.most_texts - len(self.running))
        joining = []
        for _ in range(room if self.seconds.first_token_with_prompt else min(1, room)):
            asked = self.waiting.popleft()
            self.ready_s += self.seconds.reading_s(asked.prompt_tokens, self.setting.draft_tokens)
            joining.append(_Running(asked, self.tokens.start(self.noise)))
        return joining

    def _step(self) -> None:
        if not self.running:
            return
        tree = self.setting.trees[len(self.running) - 1]
        contexts = [each.asked.prompt_tokens + each.tokens for each in self.running]
        self.ready_s += self.seconds.step_of_s(tree, contexts)
        for each, context in zip(self.running, contexts, strict=True):
            tokens, each.place = self.tokens.step(tree, each.place, self.noise, context)
            each.steps += 1
            each.add(tokens, self.ready_s)


def serve(texts: Sequence[Arrival], servers: Sequence[Server]) -> list[ServedText]:
    """Return every text served, in the order in which they were finished.

    Args:
        texts: by time of arrival; each goes to the server with the fewest texts.
        servers: with nothing to do yet.
    """
    served: list[ServedText] = []
    busy: list[tuple[float, int]] = []  # when it may go on, and which server: a heap
    for asked in texts:
        while busy and busy[0][0] <= asked.arrival_s:
            served += _advance_next(servers, busy)
        number = min(range(len(servers)), key=lambda each: servers[each].texts)
        server = servers[number]
        if not server.texts:
            server.ready_s = max(server.ready_s, asked.arrival_s)
            heapq.heappush(busy, (server.ready_s, number))
        server.waiting.append(asked)
    while busy:
        served += _advance_next(servers, busy)
    return served


def _advance_next(servers: Sequence[Server], busy: list[tuple[float, int]]) -> list[ServedText]:
    """Let the server go on that may first."""
    _, number = heapq.heappop(busy)
    ended = servers[number].advance()
    if servers[number].texts:
        heapq.heappush(busy, (servers[number].ready_s, number))
    return ended
