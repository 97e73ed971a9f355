"""Numpy archives (`.npz`) read without pickle: nothing in them is executed, and every array is checked when it is taken."""

import io
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from treeopt.arrays import Array, Int32
from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import MISSING

T = TypeVar("T")

MAX_ARRAYS = 100_000
MAX_REASON = 120
"""Characters of a library's reason that are told; some quote the file."""

_UNREADABLE = (
    *(ValueError, TypeError, KeyError, SyntaxError, OSError, EOFError),
    *(NotImplementedError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""What `zipfile` and numpy raise for archives that are torn or made to deceive."""


class Arrays:
    """The arrays of one file, each checked when it is taken.

    Every method raises FormatError naming the file, the array and what was expected.
    """

    def __init__(self, path: Path | str, arrays: Mapping[str, Array]) -> None:
        self._path = path
        self._arrays = arrays

    @classmethod
    def read(cls, path: Path | str, data: bytes, *, limit_bytes: int) -> "Arrays":
        """Return the arrays of an archive's bytes, which unpacked may be `limit_bytes` at most."""
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
        """The names of all arrays."""
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
        """Return one text."""
        return str(self.take(name, "U", 0))

    def integer(self, name: str) -> int:
        """Return one whole number."""
        return int(self.take(name, "i", 0))

    def indices(self, name: str, dimensions: int, least: int, end: int) -> Int32:
        """Return an array of whole numbers from `least` to `end` - 1."""
        array = self.take(name, "i", dimensions)
        if array.size and not least <= array.min() <= array.max() < end:
            raise self.error(name, f"expected {least} to {end - 1}. Got {array.min()} to {array.max()}.")
        return np.ascontiguousarray(array, np.int32)

    def build(self, name: str, make: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Return what `make` makes of arrays already taken, its refusal told as this array's."""
        try:
            return make(*arguments, **keywords)
        except InvalidValueError as error:
            raise self.error(name, str(error)) from None

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def error(self, name: str, reason: str) -> FormatError:
        """Return the error for one array."""
        return FormatError(self._path, name, reason)


def _array(data: bytes) -> Array:
    """Return the array of one `.npy` file; ValueError where its header promises more than is there."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for headers that look like those of Python 2
        shape, _, dtype = header(file)
    promised = dtype.itemsize
    for length in shape:
        promised *= length
    if dtype.hasobject or promised != len(data) - file.tell():
        raise ValueError(f"{len(data) - file.tell()} bytes where shape {shape}, {dtype} needs {promised}")
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.lib.format.read_array(file, allow_pickle=False)
