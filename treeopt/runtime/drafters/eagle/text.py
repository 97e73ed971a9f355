"""A head at one text: a cache of true slots, those that are still to be fed, and passes over the nodes behind them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.runtime.drafters.drafter import States, Step
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.eagle.layer import place_of, text_place
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.mask import TreeMask
from treeopt.runtime.models.model import Output, states_together
from treeopt.runtime.models.passes import Pass, PassNodes
from treeopt.runtime.models.together import PassCall


class EagleText:
    """A head that drafts below one text's root.

    The cache holds a slot for every token of the text but the first, made from the target's states and from nothing
    else: what a step drafted is dropped, and the slots of what it accepted are fed anew (Li et al., 2025).  The root's
    slot stands behind `cache.length`, as a draft model's root does, and the drafted nodes behind it.

    Args:
        head: the head.
        capacity: longest text.
        nodes: most nodes fed in a step, the root included.
    """

    behind = False

    def __init__(self, head: EagleHead, capacity: int, nodes: int) -> None:
        self.head = head
        self.cache = head.new_cache(capacity + nodes)
        self.root = -1
        self.passes = EaglePasses(head, self.cache, capacity, nodes)
        self._pending: list[tuple[States, list[int]]] = []
        self._logits: Tensor | None = None

    @property
    def ready(self) -> bool:
        """See `TextDraft`."""
        return bool(self._pending) or self._logits is not None

    @torch.inference_mode()
    def begin(self, tokens: Sequence[int], states: States | None) -> None:
        """Begin a text: feed all slots but the last, which is the root's."""
        self.cache.clear()
        self.root = tokens[-1]
        self._pending, self._logits = [], None
        if states is not None:
            before = len(tokens) - 2
            if before:
                self._feed(states.rows(slice(before)), tokens[1:-1])
                self.cache.length = before
            self._pending = [(states.row(before), [self.root])]

    def unread(self) -> PassCall:
        """Return a pass that is `feed_root`, and no tokens: it reads the target's states, and commits what it read."""
        return PassCall(lambda _: Output(self.feed_root()), torch.empty(0, dtype=torch.int64))

    def read(self) -> None:
        """See `TextDraft`; there is nothing left to do."""

    def feed_root(self) -> Tensor:
        """Feed the pending slots and return the logits (1, V) after the last, the root's."""
        if self._pending:
            states = states_together([states for states, _ in self._pending])
            tokens = [token for _, following in self._pending for token in following]
            draft = self.head.output(self._feed(states, tokens)[-1:])
            self.cache.length += len(tokens) - 1
            self.passes.feedback[:1] = draft.feedback
            self._pending, self._logits = [], draft.logits
        assert self._logits is not None  # a draft that is not ready is not asked
        return self._logits

    @torch.inference_mode()
    def accept(self, step: Step, fed: Sequence[int]) -> None:  # noqa: ARG002
        """Move on to a new root: the slots of the accepted path are pending, whatever was fed of it in the step."""
        assert step.states is not None  # heads want them
        if self._logits is not None:
            self.cache.length += 1  # the root's own slot was true
            self._logits = None
        path = torch.tensor(step.path).to(self.head.device, non_blocking=True)
        self._pending.append((step.states.rows(path), step.tokens))
        self.root = step.tokens[-1]

    def _feed(self, states: States, tokens: Sequence[int]) -> Tensor:
        """Write slots behind the text, and return the residual stream of each."""
        following = torch.tensor(tokens).to(self.head.device, non_blocking=True)
        place = text_place(self.cache.rotations, self.cache.length, len(tokens), self.head.dtype)
        return self.head.hidden(self.head.fuse(states), following, self.cache, place)


class EaglePasses:
    """Makes passes of a head over nodes of a tree: each takes its parent's feedback for the target's state.

    Args:
        head: the head.
        cache: of one text.
        capacity: longest text.
        nodes: most nodes fed in a step.
    """

    def __init__(self, head: EagleHead, cache: KVCache, capacity: int, nodes: int) -> None:
        self._head = head
        self._cache = cache
        self._capacity = capacity
        self.feedback = torch.zeros((nodes, head.config.hidden), dtype=head.dtype, device=head.device)
        """Of the nodes fed in this step, in the order they were fed; the root's stands first."""

    def make(self, passes: Sequence[PassNodes]) -> list[Pass]:
        """See `Passes`."""
        return [self._make(nodes, self._capacity) for nodes in passes]

    def once(self, nodes: PassNodes) -> Pass:
        """See `Passes`."""
        return self._make(nodes, self._cache.length)

    def clean(self) -> None:
        """See `Passes`; here nothing is to do, because a pass sees no slot that was not fed in its step."""

    def _make(self, nodes: PassNodes, capacity: int) -> Pass:
        head, cache, start, stop = self._head, self._cache, nodes.start, nodes.start + len(nodes.depth)
        depth = torch.tensor(nodes.depth, dtype=torch.int64, device=head.device)
        parents = torch.from_numpy(_parents(nodes)).to(head.device)
        mask = TreeMask(torch.from_numpy(nodes.visible.copy()), capacity, dtype=head.dtype, device=head.device)

        def run(tokens: Tensor) -> Output:
            length = cache.length
            place = place_of(cache.rotations, length + depth, length + start, mask.behind(length))
            draft = head.output(head.hidden(self.feedback[parents], tokens, cache, place))
            self.feedback[start:stop] = draft.feedback
            return Output(draft.logits)

        return run


def _parents(nodes: PassNodes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return of each node how many were fed before its parent, which is the last that it sees; 0 of the root."""
    above = nodes.visible.copy()
    rows, columns = above.shape
    above[np.arange(rows), nodes.start + np.arange(rows)] = False
    last: np.ndarray[tuple[int], np.dtype[np.int64]] = columns - 1 - above[:, ::-1].argmax(1)
    return np.where(above.any(1), last, 0)
