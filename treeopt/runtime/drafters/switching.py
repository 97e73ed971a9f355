"""A static tree and, from one step to the next, another drafter in its place; neither loses what it knows of a text."""

from collections.abc import Sequence

import torch

from treeopt.runtime.drafters.drafter import Drafter, Proposal, Step
from treeopt.runtime.drafters.plain import PlainDrafter
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.models.model import NOTHING, States


class SwitchingDrafter:
    """Drafts a static tree, or what another drafter brings while one is in its place.

    The other one begins every text, with all that is committed, when it is taken.  Meanwhile the draft model keeps what it
    read of a text, and reads what it missed in one pass when it drafts again; texts that begin meanwhile it reads then.
    Tokens of all texts that are decoded are kept for this.

    Args:
        static: drafts the static tree.
    """

    wants = NOTHING

    def __init__(self, static: PlainDrafter | StaticTreeDrafter) -> None:
        self._static = static
        self._other: Drafter | None = None
        self._tokens: dict[int, list[int]] = {}
        """Of every text that is decoded."""
        self._unread: set[int] = set()
        """Texts that the static drafter has not begun."""

    @property
    def max_tokens(self) -> int:
        return max(self._static.max_tokens, 1 if self._other is None else self._other.max_tokens)

    @property
    def sampled(self) -> bool:
        return self._static.sampled if self._other is None else self._other.sampled

    @torch.inference_mode()
    def take(self, other: Drafter | None) -> None:
        """Have another drafter draft from the next step on, in all texts; None is the static tree."""
        if self._other is not None and self._other is not other:
            for text in self._tokens:
                self._other.end(text)
        if other is not None:
            for text, tokens in self._tokens.items():
                other.begin(text, tokens, None)
        else:
            for text in self._unread:
                self._static.begin(text, self._tokens[text], None)
            self._unread.clear()
        self._other = other

    def begin(self, text: int, tokens: Sequence[int], states: States | None) -> None:
        self._tokens[text] = list(tokens)
        if self._other is None:
            self._static.begin(text, tokens, states)
        else:
            self._unread.add(text)
            self._other.begin(text, tokens, states)

    def reserve(self, texts: int) -> None:
        if isinstance(self._static, StaticTreeDrafter):
            self._static.reserve(texts)

    def propose(self, texts: Sequence[int], noise: Sequence[torch.Generator]) -> list[Proposal]:
        return (self._static if self._other is None else self._other).propose(texts, noise)

    def accept(self, texts: Sequence[int], steps: Sequence[Step]) -> None:
        for text, step in zip(texts, steps, strict=True):
            self._tokens[text] += step.tokens
        if self._other is None:
            self._static.accept(texts, steps)
            return
        for text, step in zip(texts, steps, strict=True):
            if text not in self._unread:
                self._static.miss(text, step)
        self._other.accept(texts, steps)

    def end(self, text: int) -> None:
        self._tokens.pop(text, None)
        self._unread.discard(text)
        self._static.end(text)
        if self._other is not None:
            self._other.end(text)
