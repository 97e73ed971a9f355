"""The replay buffer of a learning draft model: windows of sequences, their rejected positions, and the target's logits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from treeopt.runtime.decoding.observer import StepEvent


@dataclass(slots=True)
class ReplayWindow:
    """A window of a sequence with rejected positions."""

    first: int
    """Position of its first token in the sequence."""
    tokens: list[int] = field(default_factory=list)
    """Up to the last rejected position."""
    rows: list[int] = field(default_factory=list)
    """Indices of the tokens after which the draft was rejected, in rising order."""
    logits: list[Tensor] = field(default_factory=list)
    """The target's (V,) after each of these tokens."""


class ReplayBuffer:
    """Rejected positions since the last update; at most half of a window precedes its first rejected position."""

    def __init__(self, window_tokens: int) -> None:
        self._window_tokens = window_tokens
        self._open: dict[int, ReplayWindow] = {}
        """The newest window of each sequence."""
        self._closed: list[ReplayWindow] = []
        self.positions = 0

    def add(self, event: StepEvent) -> None:
        """Add the rejected positions of a step."""
        tokens = [*event.tokens[-self._window_tokens :], *event.step.tokens]
        start = len(event.tokens) + len(event.step.tokens) - len(tokens)
        for offset, node in rejected_positions(event):
            position = len(event.tokens) - 1 + offset
            window = self._window_for(event.sequence, position, tokens[: position + 1 - start], start)
            window.tokens = tokens[window.first - start : position + 1 - start]
            window.rows.append(position - window.first)
            with torch.inference_mode(mode=False):
                window.logits.append(event.step.logits[node].clone())  # the next pass may overwrite it
            self.positions += 1

    def take(self) -> list[ReplayWindow]:
        """Return all windows and empty the buffer."""
        windows = [*self._closed, *self._open.values()]
        self._open, self._closed, self.positions = {}, [], 0
        return windows

    def _window_for(self, sequence: int, position: int, tokens: Sequence[int], start: int) -> ReplayWindow:
        """Return the window of a position, given the last tokens of the sequence, the first of which is at `start`."""
        window = self._open.get(sequence)
        if window is not None:
            fits = start <= window.first and position < window.first + self._window_tokens
            if fits and _continues(window.tokens, tokens[window.first - start :]):
                return window
            self._closed.append(window)
        self._open[sequence] = ReplayWindow(max(start, position + 1 - self._window_tokens // 2))
        return self._open[sequence]


def _continues(prefix: list[int], tokens: Sequence[int]) -> bool:
    """Return whether tokens continue a prefix: another decoder may use the same sequence numbers."""
    return len(tokens) > len(prefix) and list(tokens[: len(prefix)]) == prefix


def rejected_positions(event: StepEvent) -> Iterator[tuple[int, int]]:
    """Yield offset from the root and node, for each node of the accepted path whose first child was not accepted.

    A single draft sequence would have been rejected there.  Nodes where nothing was drafted, or the draft was truncated,
    do not count.
    """
    tree, path = event.proposal.tree, event.step.path
    counts, ranks = tree.child_counts, tree.rank
    last = len(path) - 1
    for offset, node in enumerate(path):
        if not counts[node] or (offset == last and event.step.truncated):
            continue
        if offset == last or ranks[path[offset + 1]] != 0:
            yield offset, node
