"""The tensors of a folder with a head: safetensors, or a pickle that may hold tensors and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.weight_files import file_of_each, opened
from treeopt.trees.formats.torch_pickle import check_torch_file

SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLE = "pytorch_model.bin"
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MAX_REASON = 120
T = TypeVar("T")


class HeadTensors:
    """Tensors by name, on one device, weights in one dtype.

    Args:
        folder: with `model.safetensors`, in shards too, or with `pytorch_model.bin`.
        device: where tensors are wanted.
        dtype: of weights.

    Raises TreeoptError where there is no such file, FormatError where one cannot be read; nothing in it is executed.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.folder = folder
        self._device = device
        self._dtype = dtype
        self._read = _read_safetensors if any((folder / name).is_file() for name in SAFETENSORS) else _read_pickle
        self._tensors: dict[str, Any] = self._read(folder)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Any:
        """Yield the names."""
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, without its data; raises FormatError naming it where it is missing."""
        return self._read_part(
            name, lambda file: tuple(file.get_slice(name).get_shape()), lambda each: tuple(each.shape)
        )

    def stored(self, name: str) -> Tensor:
        """Return a tensor as it is stored; raises FormatError naming it where it is missing."""
        tensor: Tensor = self._read_part(name, lambda file: file.get_tensor(name), lambda each: each)
        return tensor

    def _read_part(self, name: str, of_file: Callable[[Any], T], of_tensor: Callable[[Tensor], T]) -> T:
        """Return a tensor, or its shape, of the safetensors file that contains it, or of the pickle that was read."""
        if name not in self._tensors:
            raise FormatError(self.folder, name, "this tensor is missing. Take a complete checkpoint of a head.")
        source = self._tensors[name]
        if isinstance(source, Tensor):
            return of_tensor(source)
        try:
            return of_file(opened(source))
        except (SafetensorError, OSError) as error:
            raise FormatError(source, name, f"cannot be read ({error}). Is the file complete?") from None

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a weight; raises FormatError naming it where it is missing or has another shape."""
        tensor = self.stored(name)
        if tuple(tensor.shape) != shape:
            raise FormatError(self.folder, name, f"expected shape {shape}. Got {tuple(tensor.shape)}.")
        if tensor.dtype not in FLOATS:
            raise FormatError(self.folder, name, f"expected float32, bfloat16 or float16. Got {tensor.dtype}.")
        return tensor.to(self._device, self._dtype, copy=True).contiguous()


def _read_safetensors(folder: Path) -> dict[str, Any]:
    """Return the file of each tensor."""
    return dict(file_of_each(folder))


def _read_pickle(folder: Path) -> dict[str, Any]:
    """Return the tensors of a pickle; nothing else is loaded, and no more memory taken than the file has bytes."""
    path = folder / PICKLE
    if not path.is_file():
        raise TreeoptError(f"{folder}: no {SAFETENSORS[0]} and no {PICKLE}. Expected the folder of an EAGLE head.")
    try:
        with path.open("rb") as file:
            check_torch_file(path, file)
            file.seek(0)
            found = torch.load(file, map_location="cpu", weights_only=True)
    except FormatError:
        raise
    except Exception as error:  # noqa: BLE001, a torn or hostile pickle raises whatever its bytes lead to
        reason = " ".join(str(error).split())[:MAX_REASON]
        raise FormatError(
            path, "content", f"expected tensors and nothing else ({reason}): take a checkpoint that holds no code."
        ) from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise FormatError(path, "content", "expected tensors by name.")
    return found
