"""Models of common shapes with random weights: latency does not depend on the weights."""

from dataclasses import replace

import torch
from torch import Tensor

from treeopt.runtime import Transformer
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.weights import build_model

DEVIATION = 0.02
"""Standard deviation of all weights except norms, which are 1."""

_LLAMA = ModelConfig(
    vocabulary=32_000,
    hidden=768,
    intermediate=3072,
    layers=2,
    heads=12,
    key_value_heads=12,
    head_size=64,
    norm_epsilon=1e-6,
    rope_base=10_000.0,
    max_positions=8192,  # longer than some were trained for, so that all run at every context length
    tied_head=False,
    end_tokens=(),
)
_SMALL = replace(_LLAMA, tied_head=True)

SHAPES = {
    "tiny": replace(_LLAMA, vocabulary=50, hidden=16, intermediate=24, heads=2, key_value_heads=1, head_size=8),
    "30m": replace(_SMALL, hidden=512, intermediate=1376, layers=4, heads=8, key_value_heads=8),
    "110m": replace(_SMALL, intermediate=2048, layers=12),
    "68m": _LLAMA,
    "160m": replace(_LLAMA, layers=12),
    "1b": replace(_SMALL, hidden=2048, intermediate=8192, layers=16, heads=32, key_value_heads=8),
    "7b": replace(_LLAMA, hidden=4096, intermediate=11_008, layers=32, heads=32, key_value_heads=32, head_size=128),
    "13b": replace(_LLAMA, hidden=5120, intermediate=13_824, layers=40, heads=40, key_value_heads=40, head_size=128),
}
"""llama-68m, llama-160m, Llama-3.2-1B, Llama-2-7B and -13B, and three smaller models, all with one vocabulary."""


def random_model(shape: str, *, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Transformer:
    return build_model(SHAPES[shape], RandomTensors(dtype, device, seed), name=f"llama-{shape}-random")


class RandomTensors:
    """Random weights, drawn on the device."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self._dtype, self._device = dtype, device
        self._generator = torch.Generator(device).manual_seed(seed)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self._dtype, device=self._device)
        weight = torch.empty(shape, dtype=self._dtype, device=self._device)
        return weight.normal_(std=DEVIATION, generator=self._generator)
