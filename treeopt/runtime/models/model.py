"""What decoding and measuring need of a model: the built-in transformer offers it, and so does transformers' adapter."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


class ModelSizes(Protocol):
    """What a decoder must know of a model before it runs it."""

    @property
    def vocabulary(self) -> int:
        """Logits of a token, V; a padded tail is counted."""

    @property
    def max_positions(self) -> int:
        """Longest text the model can be used for."""

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end a text."""


class TextCache(Protocol):
    """Keys and values of texts of one length, tree nodes behind them; `treeopt.runtime.models.kv_cache` says how they lie."""

    length: int
    """Committed tokens."""
    capacity: int
    """Tokens that fit in, tree nodes included."""

    def keep(self, path: Sequence[int]) -> None:
        """Commit the tree nodes at the offsets `path` from `length`, rising from 0, and drop the others."""

    def wipe(self) -> None:
        """Set what stands behind the committed tokens to 0, where a pass left something that is not finite."""

    def clear(self) -> None:
        """Forget every token."""


class LanguageModel(Protocol):
    """Tokens in, logits out; a cache belongs to the caller, and only to the model that made it.

    Tokens are int64 (n,), or (batch, n) with a cache for as many texts of one length.
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    """Where tokens go in and logits come out."""
    parameters: int

    @property
    def config(self) -> ModelSizes:
        """Its sizes."""

    def new_cache(self, capacity: int, batch_size: int = 1) -> TextCache:
        """Return an empty cache for `capacity` tokens of each text, tree nodes included."""

    def prefill(self, tokens: Tensor, cache: Any) -> Tensor | None:
        """Commit a text to an empty cache; return the last hidden state where the model tells it, else None."""

    def forward(self, tokens: Tensor, positions: Tensor, cache: Any, mask: Tensor | None, *, start: int = 0) -> Tensor:
        """Return logits, tokens.shape + (V,), of tokens that stand behind the committed ones.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text; siblings share one.
            cache: keys and values are written to slots length + start …; its length does not change.
            mask: (n, length + start + n) to add to the attention scores, or None when each token sees every slot.
            start: tree nodes that were fed before in this step.
        """


@runtime_checkable
class HiddenModel(LanguageModel, Protocol):
    """A model that also tells the hidden states which its logits are made of, for drafters that are heads on them."""

    def hidden(self, tokens: Tensor, positions: Tensor, cache: Any, mask: Tensor | None, *, start: int = 0) -> Tensor:
        """Return the last hidden states, tokens.shape + (hidden,), of which `logits` makes what `forward` returns."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of last hidden states."""


@runtime_checkable
class SizedModel(LanguageModel, Protocol):
    """A model that tells how much memory it will take."""

    def cache_bytes(self, capacity: int, batch_size: int = 1) -> int:
        """Return the bytes of what `new_cache` returns."""

    def pass_bytes(self, tokens: int) -> int:
        """Return the most bytes that a pass over so many tokens takes for a moment, logits left out."""


@runtime_checkable
class StaticModel(LanguageModel, Protocol):
    """A model whose pass can also be captured as a CUDA graph."""

    def forward_static(self, tokens: Tensor, positions: Tensor, cache: Any, slots: Tensor, mask: Tensor) -> Tensor:
        """Return what `forward` does, in shapes and work on the device that no text length changes.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text.
            cache: its length is not read.
            slots: int64 (n,), where each token's keys and values are written.
            mask: (n, extent) to add to the attention scores of the first `extent` slots.
        """
