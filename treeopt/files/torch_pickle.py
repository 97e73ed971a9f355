"""Inspection of a torch file without running its pickle and without reading its tensors.

`torch.load(weights_only=True)` runs no code either, but a small file can make it allocate any amount of memory. Here the
operations of the pickle are interpreted: functions and classes are names, and a tensor is a view of a part of the file.
"""

import io
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from treeopt.arrays import Array
from treeopt.errors import FormatError
from treeopt.files.fields import abbreviate

MAX_PICKLE_BYTES = 400_000
"""Several times the pickle of the largest growmap."""
MAX_DIMENSIONS = 64
LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of torch files before torch 1.6, which were not zip archives."""
STORAGES = {
    "torch DoubleStorage": ("float64", 8),
    "torch FloatStorage": ("float32", 4),
    "torch HalfStorage": ("float16", 2),
    "torch BFloat16Storage": ("bfloat16", 2),
    "torch LongStorage": ("int64", 8),
    "torch IntStorage": ("int32", 4),
    "torch ShortStorage": ("int16", 2),
    "torch CharStorage": ("int8", 1),
    "torch ByteStorage": ("uint8", 1),
    "torch BoolStorage": ("bool", 1),
}
"""Dtype and bytes per entry of each storage class."""

_SIZE_END = 2**63
_SKIPPED = {"PROTO", "FRAME", "STOP"}
_LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE"}
_CONSTRUCTORS: dict[str, Callable[[], object]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_UNREADABLE = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OSError, EOFError, RuntimeError),
    *(struct.error, zipfile.BadZipFile),
)


class Storage(NamedTuple):
    """Contiguous numbers in a file."""

    key: str
    dtype: str
    item_bytes: int
    items: int


class StoredTensor(NamedTuple):
    """A tensor as a view of a storage, offset and strides in items; all of it lies inside the storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def __repr__(self) -> str:
        return f"tensor of {self.storage.dtype}, shape {self.shape}"

    @property
    def span(self) -> int:
        """Items from the first to the last."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))


class TorchContent(NamedTuple):
    """A torch file, its tensors not read."""

    content: object
    """The saved object, with a `StoredTensor` in place of each tensor."""
    starts: Mapping[str, int]
    """The first byte of each storage, by key."""


class _ByteRange(NamedTuple):
    start: int
    length: int


def inspect_torch_file(path: Path, file: BinaryIO) -> TorchContent:
    """Return the content of a torch file, without running code or reading a tensor.

    Raises FormatError for a truncated file, for one that would unpack to more than its own size, and for one that contains
    anything but numbers, strings, lists, dicts and tensors.
    """
    machine = _PickleMachine(path)
    try:
        start = file.read(len(LEGACY_START))
        file_bytes = file.seek(0, io.SEEK_END)
        file.seek(0)
        if start[:2] == b"PK":
            content, ranges = _inspect_archive(path, file, file_bytes, machine)
        elif start == LEGACY_START:
            content, ranges = _inspect_legacy(path, file, machine)
        else:
            raise _error(path, "a bare pickle, which may hold code and was not opened")
        for storage in machine.storages.values():
            stored, expected = ranges[storage.key], storage.items * storage.item_bytes
            if stored.length != expected or stored.start + expected > file_bytes:
                length = min(stored.length, file_bytes - stored.start)
                reason = f"expected a torch file with a storage of {expected} bytes. Got {length}. Is it complete?"
                raise FormatError(path, "content", reason)
    except _UNREADABLE as error:
        raise _error(path, f"a truncated or invalid one ({abbreviate(str(error))})") from None
    return TorchContent(content, {key: stored.start for key, stored in ranges.items()})


def view_tensor(data: bytes, starts: Mapping[str, int], value: object) -> object:
    """Return a tensor as a read-only array on the bytes of its file if numpy takes its sizes, any other value unchanged.

    `starts` are those of `TorchContent`. A bfloat16 tensor, a type that numpy lacks, becomes float32.
    """
    if not isinstance(value, StoredTensor):
        return value
    storage = value.storage
    items: Array
    if storage.dtype == "bfloat16":  # the first half of a float32
        halves = np.frombuffer(data, np.uint16, storage.items, starts[storage.key])
        items = (halves.astype(np.uint32) << 16).view(np.float32)
    else:
        items = np.frombuffer(data, storage.dtype, storage.items, starts[storage.key])
    strides = [stride * items.itemsize for stride in value.strides]
    try:
        return np.lib.stride_tricks.as_strided(items[value.offset :], value.shape, strides, writeable=False)
    except (ValueError, OverflowError):  # huge sizes or strides, which an empty or an expanded tensor may have
        return value


def _inspect_archive(
    path: Path, file: BinaryIO, file_bytes: int, machine: "_PickleMachine"
) -> tuple[object, dict[str, _ByteRange]]:
    """Return the content of a zip archive and the byte ranges of its storages."""
    with zipfile.ZipFile(file) as archive:
        items = archive.infolist()
        packed = any(item.compress_type != zipfile.ZIP_STORED for item in items)
        if packed or sum(item.file_size for item in items) > file_bytes:
            raise _error(path, "an archive that is compressed, which torch's never are")
        pickles = [item for item in items if item.filename.endswith("data.pkl")]
        if len(pickles) != 1:
            raise _error(path, f"an archive with {len(pickles)} files named data.pkl")
        _check_pickle_bytes(path, pickles[0].file_size)
        content = machine.run(io.BytesIO(archive.read(pickles[0])))
        folder = pickles[0].filename.removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist() and archive.read(f"{folder}byteorder") != b"little":
            raise _error(path, "numbers in big-endian order")
    prefix = f"{folder}data/"
    return content, {
        item.filename.removeprefix(prefix): _ByteRange(_data_start(file, item), item.file_size)
        for item in items
        if item.filename.startswith(prefix)
    }


def _data_start(file: BinaryIO, item: zipfile.ZipInfo) -> int:
    """Return the first byte of an entry's data, after its local header of 30 bytes, its name and its padding."""
    file.seek(item.header_offset + 26)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    return item.header_offset + 30 + int(name_bytes) + int(extra_bytes)


def _inspect_legacy(path: Path, file: BinaryIO, machine: "_PickleMachine") -> tuple[object, dict[str, _ByteRange]]:
    """Return the content of a file before torch 1.6: five pickles, then for each storage its number of items and its data."""
    stream = io.BytesIO(file.read(MAX_PICKLE_BYTES + 1))
    _, _, system, content, keys = [machine.run(stream) for _ in range(5)]
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise _error(path, "numbers in big-endian order")
    if not isinstance(keys, list) or len(keys) != len(machine.storages):
        raise _error(path, "another number of storages than its tensors need")
    ranges, start = {}, stream.tell()
    for key in keys:
        storage = machine.storages[key]
        file.seek(start)
        (items,) = struct.unpack("<q", file.read(8))
        ranges[storage.key] = _ByteRange(start + 8, items * storage.item_bytes)
        start += 8 + storage.items * storage.item_bytes
    return content, ranges


class _PickleMachine:
    """A pickle's stack machine with only the operations of torch files; a function or class stays a name."""

    def __init__(self, path: Path) -> None:
        self.storages: dict[str, Storage] = {}
        self._path = path
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, stream: BinaryIO) -> object:
        """Return the object of the next pickle in a stream."""
        self._stack, self._marks, self._memo = [], [], {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid escapes in strings
            for code, argument, _ in pickletools.genops(stream):
                _check_pickle_bytes(self._path, stream.tell())
                self._apply(code.name, argument)
        return self._stack.pop()

    def _apply(self, operation: str, argument: Any) -> None:
        stack = self._stack
        if operation in _LITERALS:
            stack.append(argument)
        elif operation in _CONSTRUCTORS:
            stack.append(_CONSTRUCTORS[operation]())
        elif operation in _TUPLES:
            stack[-_TUPLES[operation] :] = [tuple(stack[-_TUPLES[operation] :])]
        elif operation in _HANDLERS:
            _HANDLERS[operation](self, argument)
        elif operation not in _SKIPPED:
            raise self._refuse(operation)

    def _mark(self, _: Any) -> None:
        self._marks.append(len(self._stack))

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _get(self, number: int) -> None:
        self._stack.append(self._memo[number])

    def _tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._pop_to_mark()))

    def _append(self, _: Any) -> None:
        value = self._stack.pop()
        self._stack[-1].append(value)

    def _appends(self, _: Any) -> None:
        values = self._pop_to_mark()
        self._stack[-1].extend(values)

    def _set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def _set_items(self, _: Any) -> None:
        self._set(self._pop_to_mark())

    def _set(self, items: list[Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int):  # the hash of deeply nested tuples overflows the C stack
                raise TypeError("expected names as keys")
            self._stack[-1][key] = value

    def _global(self, name: str) -> None:
        if name not in STORAGES and name not in _FUNCTIONS:
            raise self._refuse(name)
        self._stack.append(_Name(name))

    def _build(self, _: Any) -> None:
        """Drop the attributes of an OrderedDict."""
        self._stack.pop()
        if not isinstance(self._stack[-1], dict):
            raise self._refuse("BUILD")

    def _reduce(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Name) or function.name not in _FUNCTIONS:
            raise self._refuse(getattr(function, "name", "REDUCE"))
        self._stack.append(_FUNCTIONS[function.name](*arguments))

    def _persistent_id(self, _: Any) -> None:
        tag, storage_class, key, _, items, *view = self._stack.pop()
        if tag != "storage" or type(key) is not str or view not in ([], [None]):
            raise TypeError("a storage of another kind")
        _check_sizes((items,))
        storage = Storage(key, *STORAGES[storage_class.name], items)
        if self.storages.setdefault(key, storage) != storage:
            raise TypeError("one storage with two sizes")
        self._stack.append(storage)

    def _pop_to_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _refuse(self, name: str) -> FormatError:
        quoted = abbreviate(name.replace(" ", "."))
        return _error(self._path, f"a pickle that asks for {quoted}, which may be code and was not run")


class _Name(NamedTuple):
    name: str


def _empty_dict(*arguments: object) -> dict[object, object]:
    if arguments:  # a list of items, which would be copied
        raise TypeError("expected no items")
    return {}


def _size(shape: Any) -> tuple[int, ...]:
    _check_sizes(shape)
    return tuple(shape)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: object) -> StoredTensor:
    for numbers in ((offset,), shape, strides):
        _check_sizes(numbers)
    tensor = StoredTensor(storage, offset, tuple(shape), tuple(strides))
    if not isinstance(storage, Storage) or len(shape) != len(strides):
        raise TypeError("a tensor of another kind")
    if offset + tensor.span > storage.items:
        raise ValueError(f"a tensor of shape {tensor.shape} in a storage of {storage.items}")
    return tensor


def _check_sizes(numbers: Any) -> None:
    if not isinstance(numbers, tuple | list) or len(numbers) > MAX_DIMENSIONS:
        raise TypeError("expected a size for each dimension")
    if not all(type(number) is int and 0 <= number < _SIZE_END for number in numbers):
        raise TypeError("expected sizes of at least 0")


def _check_pickle_bytes(path: Path, size: int) -> None:
    if size > MAX_PICKLE_BYTES:
        raise _error(path, f"a pickle of more than {MAX_PICKLE_BYTES} bytes, as models have")


def _error(path: Path, what: str) -> FormatError:
    return FormatError(path, "content", f"expected a torch file of numbers, lists and tensors. Got {what}.")


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "collections OrderedDict": _empty_dict,
    "torch Size": _size,
    "torch._utils _rebuild_tensor": _tensor,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
}
_HANDLERS: dict[str, Callable[[_PickleMachine, Any], None]] = {
    "MARK": _PickleMachine._mark,
    "BINPUT": _PickleMachine._put,
    "LONG_BINPUT": _PickleMachine._put,
    "BINGET": _PickleMachine._get,
    "LONG_BINGET": _PickleMachine._get,
    "TUPLE": _PickleMachine._tuple,
    "APPEND": _PickleMachine._append,
    "APPENDS": _PickleMachine._appends,
    "SETITEM": _PickleMachine._set_item,
    "SETITEMS": _PickleMachine._set_items,
    "GLOBAL": _PickleMachine._global,
    "BUILD": _PickleMachine._build,
    "REDUCE": _PickleMachine._reduce,
    "BINPERSID": _PickleMachine._persistent_id,
}
