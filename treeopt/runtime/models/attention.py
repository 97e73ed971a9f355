"""Where the tokens of a pass stand, in one cache or in one for each text, and what they attend to."""

from typing import NamedTuple, Protocol

from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.kv_cache import KVCache


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

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write a layer's keys and values; arguments as for `attend`."""
        keys, values = self.cache.layers[layer]
        keys[:, :, self.slots] = key
        values[:, :, self.slots] = value

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.write(layer, key, value)
        keys, values = self.cache.layers[layer]
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
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
