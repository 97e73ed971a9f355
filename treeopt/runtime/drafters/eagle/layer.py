"""The decoder layers of a head: attention behind a text that is cached, and the MLP."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.drafters.eagle.tensors import HeadTensors
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.rotary import rotate
from treeopt.runtime.models.weights import gate_up, head_norms, query_key_value


class Place(NamedTuple):
    """Where the slots of a pass stand, and what they see."""

    rotations: Tensor
    """Of each slot's position."""
    first: int
    """Entry of the cache that the first slot's keys and values are written to."""
    mask: Tensor | None
    """(n, first + n) to add to the attention scores; None where all see every entry up to the last."""
    causal: bool = False
    """Whether each sees those before it and no other, from the first entry on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayer:
    """Weights of one layer but for the norm of what attention reads."""

    config: ModelConfig
    query_key_value: Linear
    head_norms: Tensor | None
    attention_output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear

    def __call__(self, x: Tensor, residual: Tensor, keys: Tensor, values: Tensor, place: Place) -> Tensor:
        """Return the residual stream (n, hidden) after the layer.

        Args:
            x: (n, inputs), what attention reads.
            residual: (n, hidden), what attention's output is added to.
            keys: (1, key_value_heads, capacity, head_size), written to.
            values: as `keys`.
            place: of the n slots.
        """
        config, rows = self.config, len(x)
        turned_heads = config.heads + config.key_value_heads
        joined = self.query_key_value(x).view(1, rows, turned_heads + config.key_value_heads, config.head_size)
        turned = joined[:, :, :turned_heads]
        if self.head_norms is not None:
            turned = F.rms_norm(turned, (config.head_size,), None, config.norm_epsilon) * self.head_norms
        turned = rotate(turned, place.rotations).transpose(1, 2)
        stop = place.first + rows
        keys[:, :, place.first : stop] = turned[:, config.heads :]
        values[:, :, place.first : stop] = joined[:, :, turned_heads:].transpose(1, 2)
        attended = F.scaled_dot_product_attention(
            turned[:, : config.heads],
            keys[:, :, :stop],
            values[:, :, :stop],
            attn_mask=place.mask,
            is_causal=place.causal,
            enable_gqa=True,
        )
        hidden = residual + self.attention_output(attended.transpose(1, 2).reshape(rows, -1))
        gate, up = self.gate_up(rms_norm(hidden, self.mlp_norm, config)).chunk(2, dim=-1)
        return hidden + self.down(F.silu(gate) * up)


def rms_norm(x: Tensor, weight: Tensor, config: ModelConfig) -> Tensor:
    """Return x (n, width) brought to a root mean square of 1, times a weight (width,)."""
    return F.rms_norm(x, x.shape[-1:], weight, config.norm_epsilon)


def head_layer(tensors: HeadTensors, config: ModelConfig, prefix: str, inputs: int) -> HeadLayer:
    """Return a layer whose attention reads so many inputs; biases and norms of queries are there where stored."""
    hidden, inner, attention, mlp = config.hidden, config.intermediate, f"{prefix}.self_attn", f"{prefix}.mlp"
    out = f"{attention}.o_proj"
    return HeadLayer(
        config=config,
        query_key_value=Linear(
            query_key_value(tensors, config, attention, "weight", inputs),
            query_key_value(tensors, config, attention, "bias") if f"{attention}.q_proj.bias" in tensors else None,
        ),
        head_norms=head_norms(tensors, config, attention) if f"{attention}.q_norm.weight" in tensors else None,
        attention_output=Linear(
            tensors.get(f"{out}.weight", (hidden, config.heads * config.head_size)),
            tensors.get(f"{out}.bias", (hidden,)) if f"{out}.bias" in tensors else None,
        ),
        mlp_norm=tensors.get(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
        gate_up=Linear(
            gate_up(tensors, mlp, "weight", inner, hidden),
            gate_up(tensors, mlp, "bias", inner) if f"{mlp}.gate_proj.bias" in tensors else None,
        ),
        down=Linear(
            tensors.get(f"{mlp}.down_proj.weight", (hidden, inner)),
            tensors.get(f"{mlp}.down_proj.bias", (hidden,)) if f"{mlp}.down_proj.bias" in tensors else None,
        ),
    )


def place_of(rotations: Tensor, positions: Tensor, first: int, mask: Tensor | None) -> Place:
    """Return the place of slots at some positions, int64 (n,)."""
    return Place(rotations[positions], first, mask)


def text_place(rotations: Tensor, first: int, rows: int, dtype: torch.dtype) -> Place:
    """Return the place of slots that go on with a text of `first` slots, each seeing those before it."""
    turned = rotations[first : first + rows]
    if first == 0 or rows == 1:
        return Place(turned, first, None, causal=rows > 1)
    mask = torch.zeros((rows, first + rows), dtype=dtype, device=rotations.device)
    mask[:, first:] = torch.full((rows, rows), float("-inf"), dtype=dtype, device=mask.device).triu(1)
    return Place(turned, first, mask)
