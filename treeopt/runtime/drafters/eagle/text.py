"""A head at one text: a cache of true slots, those that are still to be fed, and passes over the nodes behind them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.eagle.head import Draft, EagleHead
from treeopt.runtime.drafters.eagle.layer import text_place
from treeopt.runtime.drafters.eagle.passes import NodesPass, RootPass
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.model import Output, States, states_together
from treeopt.runtime.models.passes import Pass, PassNodes
from treeopt.runtime.models.together import PassCall


class EagleText:
    """A head that drafts below one text's root.

    The cache holds a slot for every token of the text but the first, made from the target's states and from nothing
    else: what a step drafted is dropped, and the slots of what it accepted are fed anew (Li et al., 2025).  The root's
    slot stands behind `cache.length`, as a draft model's root does, and the drafted nodes behind it.

    Args:
        head: the head.
        cache: with room for the longest text and all nodes fed in a step.
        nodes: most nodes fed in a step, the root included.
    """

    behind = False

    def __init__(self, head: EagleHead, cache: KVCache, nodes: int) -> None:
        self.head = head
        self.cache = cache
        self.root = -1
        feedback = torch.zeros((nodes, head.config.hidden), dtype=head.dtype, device=head.device)
        self.passes = EaglePasses(head, cache, feedback)
        self._pending: list[tuple[States, list[int]]] = []
        self._logits: Tensor | None = None

    @property
    def ready(self) -> bool:
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
                x = self.head.fuse(states.rows(slice(before)))
                self.head.hidden(x, self._on_device(tokens[1:-1]), text_place(self.cache, before), begins=[0])
                self.cache.length = before
            self._pending = [(states.row(before), [self.root])]

    def unread(self) -> PassCall:
        """Return the pass over the pending slots; where there are none, the root's logits are known."""
        if self._logits is not None:
            known = Output(self._logits)
            return PassCall(lambda _: known, torch.empty(0, dtype=torch.int64))
        states = states_together([states for states, _ in self._pending])
        return PassCall(RootPass(self.head, self.cache, states, self._take), self._on_device(self._following))

    def read(self) -> None:
        if self._pending:
            self.cache.length += len(self._following) - 1
            self._pending = []

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

    @property
    def _following(self) -> list[int]:
        """The token behind each pending slot."""
        return [token for _, following in self._pending for token in following]

    def _take(self, root: Draft) -> None:
        self.passes.feedback[:1] = root.feedback
        self._logits = root.logits

    def _on_device(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens).to(self.head.device, non_blocking=True)


def texts_of(head: EagleHead, capacity: int, nodes: int, texts: int) -> list[EagleText]:
    """Return a head at so many texts, each up to `capacity` tokens long, with so many nodes fed in a step."""
    return [EagleText(head, cache, nodes) for cache in head.new_caches(capacity + nodes, texts)]


@dataclass(frozen=True, slots=True)
class EaglePasses:
    """Makes passes of a head over nodes of a tree: each takes its parent's feedback for the target's state."""

    head: EagleHead
    cache: KVCache
    """Of one text."""
    feedback: Tensor
    """(most nodes, hidden): of the nodes fed in this step, in the order they were fed; the root's stands first."""

    def make(self, passes: Sequence[PassNodes]) -> list[Pass]:
        longest = self.cache.capacity - len(self.feedback)
        return [NodesPass(self.head, self.cache, self.feedback, nodes, longest) for nodes in passes]

    def once(self, nodes: PassNodes) -> Pass:
        return NodesPass(self.head, self.cache, self.feedback, nodes, self.cache.length)

    def clean(self) -> None:
        self.cache.wipe()
