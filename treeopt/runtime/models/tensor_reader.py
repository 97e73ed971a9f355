"""Reading the weights of a checkpoint by name, each checked and at most once."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime.models.torch_file import TorchFile
from treeopt.runtime.models.weight_files import INDEX, SINGLE, find_weight_files, open_safetensors

PICKLE = "pytorch_model.bin"
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class TensorSource(Protocol):
    """Where tensors are stored."""

    @property
    def path(self) -> Path | str:
        """Return the file or the model that errors name."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a shape without reading the tensor."""

    def read(self, name: str) -> Tensor:
        """Return a tensor as it is stored."""


class SafetensorsFile:
    """A safetensors file; what it reads on a CPU is a view of the mapped file."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path = path
        self._file = open_safetensors(path, str(device))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor


class LoadedTensors:
    """Tensors in memory."""

    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.path = name
        self._tensors = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


class TensorReader:
    """Reads tensors by name onto one device, weights in one dtype.

    Args:
        path: of the checkpoint, for errors.
        sources: where each tensor is stored.
        device: of the weights.
        dtype: of the weights.
    """

    def __init__(
        self, path: Path | str, sources: Mapping[str, TensorSource], *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._path = path
        self._sources = sources
        self._device = device
        self._dtype = dtype

    @classmethod
    def open_files(
        cls, folder: Path, files: Mapping[str, Path], *, device: torch.device, dtype: torch.dtype
    ) -> "TensorReader":
        """Return a reader of safetensors files; `files` contains the file of each tensor."""
        opened = {path: SafetensorsFile(path, device) for path in dict.fromkeys(files.values())}
        return cls(folder, {name: opened[path] for name, path in files.items()}, device=device, dtype=dtype)

    @classmethod
    def open_folder(cls, folder: Path, *, device: torch.device, dtype: torch.dtype) -> "TensorReader":
        """Return a reader of a folder's safetensors files, or of its `pytorch_model.bin`.

        Raises TreeoptError where there is neither, FormatError for a file that is torn or contains code.
        """
        if any((folder / name).is_file() for name in (SINGLE, INDEX)):
            return cls.open_files(folder, find_weight_files(folder), device=device, dtype=dtype)
        if not (folder / PICKLE).is_file():
            raise TreeoptError(f"{folder}: no {SINGLE} and no {PICKLE}. Expected weights next to config.json.")
        file = TorchFile(folder / PICKLE)
        return cls(folder, dict.fromkeys(file, file), device=device, dtype=dtype)

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it; raises FormatError where it is missing."""
        return self._source(name).shape(name)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a weight; raises FormatError where it is missing or has another shape or no dtype of weights."""
        source, tensor = self._read(name, shape)
        if tensor.dtype not in FLOATS:
            reason = f"expected float32, bfloat16 or float16. Got {tensor.dtype}: take weights that are not quantised."
            raise FormatError(source.path, name, reason)
        # a view of a mapped file would keep all of it in memory
        copied = not isinstance(source, LoadedTensors) and tensor.device.type == "cpu"
        return tensor.to(self._device, self._dtype, copy=copied).contiguous()

    def get_integers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return int64 numbers on the CPU; raises FormatError where they are missing or something else."""
        source, tensor = self._read(name, shape)
        if tensor.dtype not in (torch.int64, torch.int32):
            reason = f"expected int64 {shape}. Got {tensor.dtype} {tuple(tensor.shape)}: take a complete checkpoint."
            raise FormatError(source.path, name, reason)
        return tensor.to("cpu", torch.int64, copy=True)

    def _source(self, name: str, expected: str = "") -> TensorSource:
        if name not in self._sources:
            raise FormatError(self._path, name, f"this tensor is missing{expected}: take a complete checkpoint.")
        return self._sources[name]

    def _read(self, name: str, shape: tuple[int, ...]) -> tuple[TensorSource, Tensor]:
        source = self._source(name, f". Expected shape {shape}")
        try:
            stored = source.shape(name)
            if stored != shape:
                reason = f"expected shape {shape}. Got {stored}: take the weights that belong to config.json."
                raise FormatError(source.path, name, reason)
            return source, source.read(name)
        except (SafetensorError, OSError) as error:
            raise FormatError(source.path, name, f"cannot be read ({error}). Is the file complete?") from None
