"""Numpy archives (`.npz`), read without pickle and with a check of every array."""

import io
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from treeopt.arrays import Array, Int32
from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import MISSING

T = TypeVar("T")

MAX_ARRAYS = 100_000
MAX_REASON = 120
"""Most characters of a library's error, which may quote the file."""

_UNREADABLE = (
    *(ValueError, TypeError, KeyError, SyntaxError, OSError, EOFError),
    *(NotImplementedError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""What `zipfile` and numpy raise for broken archives."""


class Arrays:
    """The arrays of a file; every method raises FormatError naming the file, the array and what was expected."""

    def __init__(self, path: Path | str, arrays: Mapping[str, Array]) -> None:
        self._path = path
        self._arrays = arrays

    @classmethod
    def read(cls, path: Path | str, data: bytes, *, limit_bytes: int) -> "Arrays":
        """Return the arrays of an archive of at most `limit_bytes` uncompressed."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                items = archive.infolist()
                unpacked_bytes = sum(item.file_size for item in items)
                if len(items) > MAX_ARRAYS or unpacked_bytes > limit_bytes:
                    raise FormatError(
                        path,
                        "content",
                        f"{len(items)} arrays of {unpacked_bytes} bytes, more than a file like this has.",
                    )
                arrays = {item.filename.removesuffix(".npy"): _array(archive.read(item)) for item in items}
        except _UNREADABLE as error:
            reason = " ".join(str(error).split())[:MAX_REASON]
            raise FormatError(path, "content", f"expected a numpy archive ({reason}). Is it complete?") from None
        return cls(path, arrays)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._arrays)

    def take(self, name: str, kind: str, dimensions: int | None = None, *, finite: bool = True) -> Array:
        """Return an array of one kind, `f`, `i`, `u`, `b` or `U`, with `dimensions` dimensions.

        Args:
            name: of the array.
            kind: as in `numpy.dtype.kind`.
            dimensions: None for any number.
            finite: refuse NaN and infinities.
        """
        if name not in self._arrays:
            raise self.error(name, MISSING)
        array = self._arrays[name]
        if array.dtype.kind != kind or dimensions not in (None, array.ndim):
            raise self.error(
                name, f"expected kind {kind!r}, {dimensions} dimensions. Got {array.dtype}, shape {array.shape}."
            )
        if finite and kind == "f" and not np.all(np.isfinite(array)):
            raise self.error(name, "expected finite numbers.")
        return array

    def text(self, name: str) -> str:
        return str(self.take(name, "U", 0))

    def integer(self, name: str) -> int:
        return int(self.take(name, "i", 0))

    def indices(self, name: str, dimensions: int, least: int, end: int) -> Int32:
        """Return an array of whole numbers from `least` to `end` - 1."""
        array = self.take(name, "i", dimensions)
        if array.size and not least <= array.min() <= array.max() < end:
            raise self.error(name, f"expected {least} to {end - 1}. Got {array.min()} to {array.max()}.")
        return np.ascontiguousarray(array, np.int32)

    def build(self, name: str, make: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Return `make(...)`, and raise its InvalidValueError as this array's FormatError."""
        try:
            return make(*arguments, **keywords)
        except InvalidValueError as error:
            raise self.error(name, str(error)) from None

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def error(self, name: str, reason: str) -> FormatError:
        return FormatError(self._path, name, reason)


def _array(data: bytes) -> Array:
    """Return the array of a `.npy` file; raises ValueError if its header describes more bytes than follow."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers of Python 2
        shape, _, dtype = header(file)
        expected_bytes, actual_bytes = dtype.itemsize * prod(shape), len(data) - file.tell()
        if dtype.hasobject or expected_bytes != actual_bytes:
            raise ValueError(f"{actual_bytes} bytes where shape {shape}, {dtype} needs {expected_bytes}")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
