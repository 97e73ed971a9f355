"""Where the tokens of a pass stand, in one cache or in one for each text, and what they attend to."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.model import TextRows


class Place(Protocol):
    """Where the tokens of a pass stand."""

    @property
    def rotations(self) -> Tensor:
        """Of each token's position."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write a layer's keys and values, and return what the queries attend to.

        Args:
            layer: number of the layer, 0 first.
            query: (batch, heads, n, head_size).
            key: (batch, key_value_heads, n, head_size).
            value: as `key`.

        Returns what `query` has the shape of.
        """


class SharedPlace(NamedTuple):
    """The tokens of all texts of one cache, behind one length."""

    cache: KVCache
    rotations: Tensor
    """Of each token's position."""
    slots: slice | Tensor
    """Where keys and values are written."""
    extent: int
    """Slots that may be seen, from the first."""
    mask: Tensor | None = None
    causal: bool = False
    """Whether each token sees those before it, and no other."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Place`."""
        keys, values = self.cache.layers[layer]
        keys[:, :, self.slots] = key
        values[:, :, self.slots] = value
        return F.scaled_dot_product_attention(
            query,
            keys[:, :, : self.extent],
            values[:, :, : self.extent],
            attn_mask=self.mask,
            is_causal=self.causal,
            enable_gqa=True,
        )


class WholeText(NamedTuple):
    """The tokens of texts from their beginning, each of which sees those before it; nothing is kept of them."""

    rotations: Tensor
    """Of each token's position."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # noqa: ARG002
        """See `Place`."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


class RaggedPlace:
    """The tokens of several texts, one text after the other, each behind a cache of its own.

    Every text attends on its own, over no more slots than it has.  What a pass over several texts saves is reading the
    weights for each; the keys and values of each text are read in any case, and padding would only add to them.

    Args:
        parts: of each text; the caches hold one text each.
    """

    def __init__(self, parts: Sequence[TextRows]) -> None:
        longest = max((part.cache for part in parts), key=lambda cache: cache.capacity)
        self.rotations: Tensor = longest.rotations[torch.cat([part.positions for part in parts])]
        self._caches = [part.cache.layers for part in parts]
        self._masks = [part.mask for part in parts]
        self._sizes = [part.tokens.shape[0] for part in parts]
        firsts = [part.cache.length + part.start for part in parts]
        self._slots = [slice(first, first + size) for first, size in zip(firsts, self._sizes, strict=True)]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Place`; there is one batch of all texts' tokens."""
        found = []
        shared = (each.split(self._sizes, 2) for each in (query, key, value))
        for cache, slots, mask, q, k, v in zip(self._caches, self._slots, self._masks, *shared, strict=True):
            keys, values = cache[layer]
            keys[:, :, slots] = k
            values[:, :, slots] = v
            seen = slice(slots.stop)
            found.append(
                F.scaled_dot_product_attention(q, keys[:, :, seen], values[:, :, seen], attn_mask=mask, enable_gqa=True)
            )
        return torch.cat(found, 2)
