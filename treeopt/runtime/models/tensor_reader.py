"""Reading the weights of a checkpoint by name, each checked and at most once."""

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from treeopt.errors import FormatError, TreeoptError
from treeopt.files.json_file import read_object
from treeopt.files.torch_pickle import StoredTensor, inspect_torch_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
INDEX_MAX_BYTES = 64_000_000
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class SafetensorsFile:
    """A safetensors file; tensors on a CPU are views of the mapped file."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path = path
        self._file = open_safetensors(path, str(device))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._file.get_tensor(name)
        return tensor


class TorchFile:
    """A file that `torch.save` wrote, read tensor by tensor without running its pickle; opening it reads the shapes only.

    Raises FormatError for a truncated file and for one that contains anything but tensors by name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                content, self._starts = inspect_torch_file(path, file)
        except OSError as error:
            raise FormatError(path, "content", f"cannot be read ({error.strerror}).") from None
        if not isinstance(content, dict) or not all(isinstance(value, StoredTensor) for value in content.values()):
            raise FormatError(path, "content", "expected tensors by name: take a checkpoint of weights alone.")
        for name, tensor in content.items():
            if prod(tensor.shape) > tensor.storage.items:  # a stride of 0
                reason = f"expected at most {tensor.storage.items} numbers, all stored. Got shape {tensor.shape}"
                raise FormatError(path, str(name), f"{reason}: take a checkpoint without expanded tensors.")
        self._tensors: dict[str, StoredTensor] = {str(name): tensor for name, tensor in content.items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def read(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        dtype, items = getattr(torch, tensor.storage.dtype), tensor.span
        if items == 0:
            return torch.empty(tensor.shape, dtype=dtype)
        data = bytearray(items * tensor.storage.item_bytes)
        with self.path.open("rb") as file:
            file.seek(self._starts[tensor.storage.key] + tensor.offset * tensor.storage.item_bytes)
            if file.readinto(data) != len(data):
                raise OSError("the file is cut off")
        return torch.frombuffer(data, dtype=dtype).as_strided(tensor.shape, tensor.strides)


class LoadedTensors:
    def __init__(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        self.path = name
        self._tensors = tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self._tensors[name]


TensorSource = SafetensorsFile | TorchFile | LoadedTensors


class TensorReader:
    """Reads tensors by name onto one device, weights in one dtype; errors name the checkpoint's path."""

    def __init__(
        self, path: Path | str, sources: Mapping[str, TensorSource], *, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._path = path
        self._sources = sources
        self._device = device
        self._dtype = dtype
        self.unread = dict.fromkeys(sources)
        """Names of the tensors that were not read yet, in the order of the checkpoint."""

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

        Raises TreeoptError if there is neither, FormatError for a file that is truncated or contains code.
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
        """Return the shape of a tensor without reading it; raises FormatError if it is missing."""
        return self._find_source(name).shape(name)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a weight; raises FormatError if it is missing, or has another shape or an integer dtype."""
        source, tensor = self._read(name, shape)
        if tensor.dtype not in FLOATS:
            reason = f"expected float32, bfloat16 or float16. Got {tensor.dtype}: take weights that are not quantised."
            raise FormatError(source.path, name, reason)
        # a view of a mapped file would keep all of it in memory
        copied = not isinstance(source, LoadedTensors) and tensor.device.type == "cpu"
        return tensor.to(self._device, self._dtype, copy=copied).contiguous()

    def get_integers(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return an int64 tensor on the CPU; raises FormatError if it is missing, or has another shape or dtype."""
        source, tensor = self._read(name, shape)
        if tensor.dtype not in (torch.int64, torch.int32):
            reason = f"expected int64 {shape}. Got {tensor.dtype} {tuple(tensor.shape)}: take a complete checkpoint."
            raise FormatError(source.path, name, reason)
        return tensor.to("cpu", torch.int64, copy=True)

    def _find_source(self, name: str, expected: str = "") -> TensorSource:
        if name not in self._sources:
            raise FormatError(self._path, name, f"this tensor is missing{expected}: take a complete checkpoint.")
        return self._sources[name]

    def _read(self, name: str, shape: tuple[int, ...]) -> tuple[TensorSource, Tensor]:
        source = self._find_source(name, f". Expected shape {shape}")
        try:
            stored = source.shape(name)
            if stored != shape:
                reason = f"expected shape {shape}. Got {stored}: take the weights that belong to config.json."
                raise FormatError(source.path, name, reason)
            self.unread.pop(name, None)
            return source, source.read(name)
        except (SafetensorError, OSError) as error:
            raise FormatError(source.path, name, f"cannot be read ({error}). Is the file complete?") from None


def find_weight_files(folder: Path) -> dict[str, Path]:
    """Return the safetensors file of each tensor, after reading the headers of all files.

    Raises TreeoptError without weights, FormatError for a file that is missing, truncated or inconsistent with the index.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():  # which transformers prefers as well
        return dict.fromkeys(open_safetensors(single).keys(), single)
    if index.is_file():
        return _find_indexed_files(index)
    raise TreeoptError(
        f"{folder}: no {SINGLE}. Expected weights in safetensors: convert a {PICKLE} with transformers' save_pretrained."
    )


def count_numbers(files: Mapping[str, Path]) -> int:
    """Return the numbers in all tensors, given the safetensors file of each; only headers are read."""
    opened = {path: open_safetensors(path) for path in {*files.values()}}
    return sum(prod(opened[path].get_slice(name).get_shape()) for name, path in files.items())


def open_safetensors(path: Path, device: str = "cpu") -> Any:
    """Open a safetensors file; raises FormatError if its header is invalid or does not fit its length."""
    if not path.is_file():
        raise FormatError(path, "header", "cannot be read (no such file). Is the download complete?")
    try:
        return safe_open(path, framework="pt", device=device)
    except (SafetensorError, OSError) as error:
        raise FormatError(path, "header", f"cannot be read ({error}). Is the file complete?") from None


def _find_indexed_files(index: Path) -> dict[str, Path]:
    """Return the file of each tensor that an index lists; every file contains its tensors."""
    weight_map = read_object(index, limit_bytes=INDEX_MAX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise FormatError(index, "weight_map", "expected the file of each tensor.")
    names_in: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        path = index.parent / file
        if path.parent != index.parent:
            raise FormatError(index, "weight_map", f"expected files of this folder. Got {file!r}.")
        if path not in names_in:
            names_in[path] = set(open_safetensors(path).keys())
        if name not in names_in[path]:
            raise FormatError(path, name, f"this weight is not in the file, although {index.name} lists it there.")
    return {name: index.parent / file for name, file in weight_map.items()}
