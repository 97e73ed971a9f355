"""The decoder layers of a head: attention behind a text that is cached, and the MLP."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.runtime.models.attention import Place, SharedPlace
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.rotary import rotate
from treeopt.runtime.models.tensor_reader import TensorReader as HeadTensors
from treeopt.runtime.models.weights import gate_up, head_norms, query_key_value


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

    def __call__(self, x: Tensor, residual: Tensor, number: int, place: Place) -> Tensor:
        """Return the residual stream (n, hidden) after the layer.

        Args:
            x: (n, inputs), what attention reads.
            residual: (n, hidden), what attention's output is added to.
            number: of the layer, 0 first.
            place: of the n slots.
        """
        config, rows = self.config, len(x)
        turned_heads = config.heads + config.key_value_heads
        joined = self.query_key_value(x).view(1, rows, turned_heads + config.key_value_heads, config.head_size)
        turned = joined[:, :, :turned_heads]
        if self.head_norms is not None:
            turned = F.rms_norm(turned, (config.head_size,), None, config.norm_epsilon) * self.head_norms
        turned = rotate(turned, place.rotations).transpose(1, 2)
        key, value = turned[:, config.heads :], joined[:, :, turned_heads:].transpose(1, 2)
        attended = place.attend(number, turned[:, : config.heads], key, value)
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


def place_of(cache: KVCache, positions: Tensor, first: int, mask: Tensor | None) -> SharedPlace:
    """Return the place of slots at some positions, int64 (n,), which are written from entry `first` of a cache on.

    `mask`, (n, first + n), is added to the attention scores; None where all see every entry up to the last.
    """
    slots = slice(first, first + len(positions))
    return SharedPlace(cache, cache.rotations[positions], slots, slots.stop, mask)


def text_place(cache: KVCache, rows: int) -> SharedPlace:
    """Return the place of so many slots that go on with a text, each seeing those before it."""
    first, stop = cache.length, cache.length + rows
    slots, turned = slice(first, stop), cache.rotations[first:stop]
    if first == 0 or rows == 1:
        return SharedPlace(cache, turned, slots, stop, causal=rows > 1)
    dtype, device = cache.layers[0][0].dtype, turned.device
    mask = torch.zeros((rows, stop), dtype=dtype, device=device)
    mask[:, first:] = torch.full((rows, rows), float("-inf"), dtype=dtype, device=device).triu(1)
    return SharedPlace(cache, turned, slots, stop, mask)
