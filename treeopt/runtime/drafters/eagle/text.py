"""A head at one text: a cache of true slots, those that are still to be fed, and the nodes after them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.memory import new_caches
from treeopt.runtime.models.model import Feed, Output, States, concatenate_states
from treeopt.runtime.models.nodes import PassNodes


class EagleText:
    """A head that drafts below one text's root.

    The cache holds a slot for every token of the text but the first, made from the target's states and from nothing
    else: what a step drafted is dropped, and the slots of what it accepted are fed anew (Li et al., 2025).  The root's
    slot stands at `cache.length`, as a draft model's root does, and the drafted nodes after it.

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
        self._feedback = torch.zeros((nodes, head.config.hidden), dtype=head.dtype, device=head.device)
        """Of the nodes fed in this step, in the order they were fed; the root's first."""
        self._pending: list[tuple[States, list[int]]] = []
        """States and following tokens of the true slots that are still to be committed, the root's last."""
        self._root_fed = False

    @property
    def ready(self) -> bool:
        return bool(self._pending)

    @torch.inference_mode()
    def begin(self, tokens: Sequence[int], states: States | None) -> None:
        """Begin a text: feed all slots but the last, which is the root's."""
        self.cache.clear()
        self.root = tokens[-1]
        self._pending, self._root_fed = [], False
        if states is not None:
            before = len(tokens) - 2
            self.head.read(states, self._on_device(tokens[1:-1]), self.cache)
            self._pending = [(states.row(before), [self.root])]

    @staticmethod
    def feed_roots(texts: "Sequence[EagleText]") -> list[Feed]:
        """Return the pending slots of each text."""
        head = texts[0].head
        states = concatenate_states([states for text in texts for states, _ in text._pending])
        tokens = [[token for _, following in text._pending for token in following] for text in texts]
        sizes = [len(each) for each in tokens]
        return [
            Feed(text.cache, text._on_device(following), PassNodes.chain(len(following)), x)
            for text, following, x in zip(texts, tokens, head.fuse(states).split(sizes), strict=True)
        ]

    def read(self, output: Output) -> None:
        """Commit the pending slots but for the root's, which was fed with them."""
        self._store_feedback(0, output)
        states, following = self._pending[-1]
        self.cache.length += sum(len(tokens) for _, tokens in self._pending) - 1
        self._pending = [(states.mapped(lambda each: each[-1:]), following[-1:])]
        self._root_fed = True

    def feed(self, tokens: Tensor, nodes: PassNodes) -> Feed:
        """Return drafted nodes, each with its parent's feedback in place of the target's state."""
        return Feed(self.cache, tokens, nodes, self._feedback[nodes.parents_on(self.head.device)])

    def fed(self, nodes: PassNodes, output: Output) -> None:
        """Store the feedback of drafted nodes for their children."""
        self._store_feedback(nodes.start, output)

    @torch.inference_mode()
    def accept(self, step: Step, fed: Sequence[int]) -> None:  # noqa: ARG002
        """Move on to a new root: the slots of the accepted path are pending, whatever was fed of it in the step."""
        assert step.states is not None  # heads want them
        if self._root_fed:
            self.cache.length += 1  # the root's own slot was true
            self._pending, self._root_fed = [], False
        path = torch.tensor(step.path).to(self.head.device, non_blocking=True)
        self._pending.append((step.states.rows(path), step.tokens))
        self.root = step.tokens[-1]

    def _store_feedback(self, first: int, output: Output) -> None:
        assert output.states is not None  # heads return feedback
        assert output.states.last is not None
        self._feedback[first : first + len(output.states.last)] = output.states.last

    def _on_device(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor(tokens, dtype=torch.int64).to(self.head.device, non_blocking=True)


def texts_of(head: EagleHead, capacity: int, nodes: int, texts: int) -> list[EagleText]:
    """Return a head at so many texts, each up to `capacity` tokens long, with so many nodes fed in a step."""
    return [EagleText(head, cache, nodes) for cache in new_caches(head, capacity + nodes, texts)]
