"""Tensors of a file that `torch.save` wrote, read one by one without running its pickle."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from treeopt.errors import FormatError
from treeopt.trees.formats.torch_pickle import StoredTensor, extent, inspect_torch_file


class TorchFile:
    """Tensors by name; opening the file reads their shapes only.

    Raises FormatError for a torn file and for one that contains anything but tensors by name.
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
        """Return a tensor; only its own part of the file is read."""
        tensor = self._tensors[name]
        dtype, items = getattr(torch, tensor.storage.dtype), extent(tensor)
        if items == 0:
            return torch.empty(tensor.shape, dtype=dtype)
        data = bytearray(items * tensor.storage.item_bytes)
        with self.path.open("rb") as file:
            file.seek(self._starts[tensor.storage.key] + tensor.offset * tensor.storage.item_bytes)
            if file.readinto(data) != len(data):
                raise OSError("the file is cut off")
        return torch.frombuffer(data, dtype=dtype).as_strided(tensor.shape, tensor.strides)
