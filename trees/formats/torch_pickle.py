"""A check of torch files before they are loaded: the operations of the pickle are read, not executed.

`torch.load(weights_only=True)` runs no code either, but lets a small file ask for any amount of memory.
"""

import io
import pickletools
import re
import warnings
import zipfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from treeopt.errors import FormatError
from treeopt.trees.formats.topology import short

MAX_PICKLE_BYTES = 400_000
"""Several times the lists of the largest growmap."""
LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""First bytes of torch files from before they were zip archives."""
LEGACY_PICKLES = 5

_HARMLESS = re.compile(
    r"collections OrderedDict|torch Size|torch [A-Z][A-Za-z0-9]+Storage|torch\._utils _rebuild_(tensor(_v2)?|parameter)"
)
_BUILD = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}
"""Other operations that name a class, which torch does not use."""
_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, OSError, EOFError, RuntimeError, zipfile.BadZipFile)


def check_torch_file(path: Path, file: BinaryIO) -> None:
    """Raise FormatError if a file is broken, unpacks to more than its size, or contains more than numbers and tensors.

    Args:
        path: for the error.
        file: the open file; it is read from its start, and its position afterwards is undefined.
    """
    start = file.read(len(LEGACY_START))
    file.seek(0)
    try:
        if start[:2] == b"PK":
            _check_pickles(path, _pickle_in_archive(path, file), 1)
        elif start == LEGACY_START:
            _check_pickles(path, file, LEGACY_PICKLES)
        else:
            raise _fault(path, "a bare pickle, which may hold code and was not opened")
    except _UNREADABLE as error:
        raise _fault(path, f"a torn one ({short(str(error))})") from None


def _pickle_in_archive(path: Path, file: BinaryIO) -> BinaryIO:
    file_bytes = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        items = archive.infolist()
        packed = any(item.compress_type != zipfile.ZIP_STORED for item in items)
        if packed or sum(item.file_size for item in items) > file_bytes:
            raise _fault(path, "an archive that is compressed, which torch's never are")
        pickles = [item for item in items if item.filename.endswith("data.pkl")]
        if len(pickles) != 1:
            raise _fault(path, f"an archive with {len(pickles)} files named data.pkl")
        return io.BytesIO(archive.read(pickles[0]))


def _check_pickles(path: Path, stream: BinaryIO, count: int) -> None:
    """Check every operation of `count` consecutive pickles."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for a wrong escape in text that is not ours
        operations = chain.from_iterable(pickletools.genops(stream) for _ in range(count))
        _check_operations(path, operations, stream)


def _check_operations(path: Path, operations: Iterable[tuple[Any, Any, Any]], stream: BinaryIO) -> None:
    for code, argument, _ in operations:
        if stream.tell() > MAX_PICKLE_BYTES:
            raise _fault(path, f"a pickle of more than {MAX_PICKLE_BYTES} bytes, as models have")
        if code.name in _BUILD or (code.name == "GLOBAL" and not _HARMLESS.fullmatch(str(argument))):
            named = short(str(argument or code.name).replace(" ", "."))
            raise _fault(path, f"a pickle that asks for {named}, which may be code and was not run")


def _fault(path: Path, what: str) -> FormatError:
    return FormatError(path, "content", f"expected a torch file of numbers, lists and tensors. Got {what}.")
