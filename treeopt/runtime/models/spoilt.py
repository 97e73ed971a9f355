"""A model with noise on its weights: what becomes of a draft that was made for another target."""

from pathlib import Path

import torch
from torch import Tensor

from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.weights import FolderTensors, Tensors, build_model


class NoisyTensors:
    """Weights with noise on every matrix.

    Args:
        tensors: the weights.
        noise: standard deviation, as a share of that of the matrix's own entries.
        seed: of the noise.
    """

    def __init__(self, tensors: Tensors, noise: float, *, seed: int = 0) -> None:
        self._tensors, self._noise = tensors, noise
        self._generator = torch.Generator().manual_seed(seed)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one weight; see `Tensors`."""
        tensor = self._tensors.get(name, shape)
        if tensor.ndim < 2:
            return tensor
        added = torch.randn(shape, generator=self._generator).to(tensor.device, tensor.dtype)
        return tensor + self._noise * float(tensor.float().std()) * added


def spoilt_model(
    folder: Path | str,
    noise: float,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """Return the model of a folder with noise on its weights; arguments as for `NoisyTensors`, errors as `load_model`."""
    found = ModelFolder.of(folder)
    tensors = FolderTensors(found.path, found.weight_files, dtype, torch.device(device))
    return build_model(found.config, NoisyTensors(tensors, noise, seed=seed), name=f"{found.path.name} spoilt")
