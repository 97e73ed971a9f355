"""Passes of a head over slots of a text, or of several texts at once: true ones up to the root, and drafted nodes."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Self

import numpy as np
import torch
from torch import Tensor

from treeopt.runtime.drafters.eagle.head import Draft, EagleHead
from treeopt.runtime.drafters.eagle.layer import place_of, text_place
from treeopt.runtime.models.attention import Place
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.mask import TreeMask
from treeopt.runtime.models.model import Output, RaggedOutputs, States, TextRows, states_together
from treeopt.runtime.models.passes import Pass, PassNodes, SharedPass
from treeopt.runtime.models.ragged_attention import ragged_place
from treeopt.runtime.models.together import joined, last_rows


class HeadPass(SharedPass):
    """Feeds slots of one text to a head; those of one kind and one head can be one pass.

    Args:
        head: the head.
        cache: of the text.
    """

    def __init__(self, head: EagleHead, cache: KVCache) -> None:
        self.head, self.cache = head, cache

    def __call__(self, tokens: Tensor) -> Output:
        """Return the logits after the slots that are asked about, fed with tokens int64 (rows,)."""
        return self._run([self], [tokens], self.place(len(tokens)))[0]

    def joins(self, other: Pass) -> bool:
        return type(other) is type(self) and other.head is self.head

    def together(self, passes: Sequence[Self], tokens: Sequence[Tensor]) -> list[Output]:
        config, fed = self.head.config, zip(passes, tokens, strict=True)
        place = ragged_place([each.rows(rows) for each, rows in fed], config.heads // config.key_value_heads)
        return self._run(passes, tokens, place)

    def _run(self, passes: Sequence[Self], tokens: Sequence[Tensor], place: Place) -> list[Output]:
        sizes = [len(each) for each in tokens]
        firsts = zip(passes, accumulate(sizes, initial=0), strict=False)
        begins = [row for each, row in firsts if each.begins]
        hidden = self.head.hidden(self.inputs(passes), joined(tokens), place, begins=begins)
        hidden, sizes = self.asked(hidden, sizes)
        draft = self.head.output(hidden)
        found = RaggedOutputs(Output(draft.logits), sizes)
        for each, output, feedback in zip(passes, found, draft.feedback.split(sizes), strict=True):
            each.take(Draft(output.logits, feedback))
        return found

    @property
    @abstractmethod
    def begins(self) -> bool:
        """Whether the first slot that is fed is the first of the text."""

    @abstractmethod
    def inputs(self, passes: Sequence[Self]) -> Tensor:
        """Return what the slots that passes feed hold, (all rows, hidden)."""

    @abstractmethod
    def rows(self, tokens: Tensor) -> TextRows:
        """Return what is fed in a pass over several texts."""

    @abstractmethod
    def place(self, rows: int) -> Place:
        """Return where so many slots stand in a pass over this text alone."""

    @abstractmethod
    def asked(self, hidden: Tensor, sizes: list[int]) -> tuple[Tensor, list[int]]:
        """Return the rows that logits are asked of, and how many each text has of them."""

    @abstractmethod
    def take(self, draft: Draft) -> None:
        """Keep what is said of them."""


class RootPass(HeadPass):
    """Feeds the true slots that a text has not been fed yet, the last of which is the root's, and asks about that one.

    Args:
        head: the head.
        cache: of the text.
        states: the target's, of each slot.
        take: called with what is said of the root's slot.
    """

    def __init__(self, head: EagleHead, cache: KVCache, states: States, take: Callable[[Draft], None]) -> None:
        super().__init__(head, cache)
        self.states, self._take = states, take

    @property
    def begins(self) -> bool:
        return self.cache.length == 0

    def inputs(self, passes: Sequence[Self]) -> Tensor:
        return self.head.fuse(states_together([each.states for each in passes]))

    def rows(self, tokens: Tensor) -> TextRows:
        count = len(tokens)
        return TextRows(tokens, np.arange(count), self.cache, np.tri(count, dtype=np.bool_) if count > 1 else None)

    def place(self, rows: int) -> Place:
        return text_place(self.cache, rows)

    def asked(self, hidden: Tensor, sizes: list[int]) -> tuple[Tensor, list[int]]:
        return last_rows(hidden, sizes), [1] * len(sizes)

    def take(self, draft: Draft) -> None:
        self._take(draft)


class NodesPass(HeadPass):
    """Feeds drafted nodes of a tree, each with its parent's feedback in place of the target's state.

    Args:
        head: the head.
        cache: of the text.
        feedback: (most nodes, hidden), of those fed in this step.
        nodes: what is fed.
        capacity: longest text.
    """

    begins = False

    def __init__(self, head: EagleHead, cache: KVCache, feedback: Tensor, nodes: PassNodes, capacity: int) -> None:
        super().__init__(head, cache)
        self._feedback, self._nodes, self._capacity = feedback, nodes, capacity
        self._parents = torch.from_numpy(nodes.parents).to(head.device)

    def inputs(self, passes: Sequence[Self]) -> Tensor:
        return joined([each._feedback[each._parents] for each in passes])

    def rows(self, tokens: Tensor) -> TextRows:
        nodes = self._nodes
        return TextRows(tokens, nodes.depth, self.cache, nodes.mask, nodes.start)

    def place(self, rows: int) -> Place:  # noqa: ARG002
        length = self.cache.length
        depth, mask = self._alone
        behind = None if mask is None else mask.behind(length)
        return place_of(self.cache, length + depth, length + self._nodes.start, behind)

    def asked(self, hidden: Tensor, sizes: list[int]) -> tuple[Tensor, list[int]]:
        return hidden, sizes

    def take(self, draft: Draft) -> None:
        start = self._nodes.start
        self._feedback[start : start + len(draft.feedback)] = draft.feedback

    @cached_property
    def _alone(self) -> tuple[Tensor, TreeMask | None]:
        """Depths and mask of a pass over this text alone; passes over several texts need neither."""
        return self._nodes.depth_and_mask(self._capacity, dtype=self.head.dtype, device=self.head.device)
