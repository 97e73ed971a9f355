"""What a draft learns from: pieces of texts, the positions in them where it was wrong, and what the target says there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from treeopt.runtime.decoding.observer import DecodedStep


@dataclass(slots=True)
class Excerpt:
    """A piece of a text, and positions in it."""

    first: int
    """Place of its first token in the text."""
    tokens: list[int] = field(default_factory=list)
    """From there up to the last position."""
    rows: list[int] = field(default_factory=list)
    """Of the tokens, those behind which the draft was wrong, in rising order."""
    logits: list[Tensor] = field(default_factory=list)
    """The target's (V,) after each of these tokens, of the token that follows it."""


class Lessons:
    """What was met since it was last learnt from, in bounded memory.

    Args:
        window_tokens: most tokens of an excerpt; half of them may stand before its first position.
    """

    def __init__(self, window_tokens: int) -> None:
        self._window = window_tokens
        self._open: dict[int, Excerpt] = {}
        self._closed: list[Excerpt] = []
        self.positions = 0
        """How many there are."""

    def add(self, told: DecodedStep) -> None:
        """Take the positions of a step where the draft was wrong."""
        text = [*told.tokens[-self._window :], *told.step.tokens]
        start = len(told.tokens) + len(told.step.tokens) - len(text)  # of this end in the whole text
        for offset, node in wrong_positions(told):
            position = len(told.tokens) - 1 + offset
            excerpt = self._excerpt(told.text, position, text[: position + 1 - start], start)
            excerpt.tokens = text[excerpt.first - start : position + 1 - start]
            excerpt.rows.append(position - excerpt.first)
            with torch.inference_mode(mode=False):
                excerpt.logits.append(told.step.logits[node].clone())  # the next pass may write over it
            self.positions += 1

    def take(self) -> list[Excerpt]:
        """Return all excerpts and forget them."""
        found = [*self._closed, *self._open.values()]
        self._open, self._closed, self.positions = {}, [], 0
        return found

    def _excerpt(self, number: int, position: int, text: Sequence[int], start: int) -> Excerpt:
        """Return the excerpt that a position of a text belongs to, given the text's end, which starts at a place."""
        known = self._open.get(number)
        if known is not None:
            same = start <= known.first and position < known.first + self._window
            if same and _continues(known.tokens, text[known.first - start :]):
                return known
            self._closed.append(known)
        self._open[number] = Excerpt(max(start, position + 1 - self._window // 2))
        return self._open[number]


def _continues(tokens: list[int], text: Sequence[int]) -> bool:
    """Return whether a text goes on behind some tokens: numbers of texts come again in another decoder."""
    return len(text) > len(tokens) and list(text[: len(tokens)]) == tokens


def wrong_positions(told: DecodedStep) -> Iterator[tuple[int, int]]:
    """Yield where the first token drafted after an accepted one was not accepted: how far behind the root, and the node.

    That is what the draft would have got right with a single sequence.  Where nothing was drafted, or the draft was cut
    because it is not finite, it was not wrong.
    """
    tree, path = told.proposal.tree, told.step.path
    counts, ranks = tree.child_counts, tree.rank
    last = len(path) - 1
    for offset, node in enumerate(path):
        if not counts[node] or (offset == last and told.step.cut):
            continue
        if offset == last or ranks[path[offset + 1]] != 0:
            yield offset, node
