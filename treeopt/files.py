"""Reading and writing files so that nobody ever finds half of one."""

import os
import sys
import tempfile
from pathlib import Path

from treeopt.errors import InvalidValueError, TreeoptError

STANDARD_STREAM = "-"


def file_path(path: Path | str) -> Path:
    """Return the path of a file; raises InvalidValueError for what is none."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidValueError(f"path: expected text or a pathlib.Path. Got {path!r:.60}: name a file.")
    return Path(path)


def read_bytes(path: Path | str, *, limit_bytes: int) -> bytes:
    """Return the bytes of a file of at most `limit_bytes`.

    Raises TreeoptError naming the file and what to do when it is missing, unreadable or too large.
    """
    path = file_path(path)
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except FileNotFoundError:
        raise TreeoptError(f"{path}: no such file. Check the path, or make the file first.") from None
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be read ({error.strerror}). Expected a readable file.") from None
    if len(data) > limit_bytes:
        raise TreeoptError(f"{path}: larger than {limit_bytes} bytes, the limit for files of this kind.")
    return data


def read_text(path: Path | str, *, limit_bytes: int) -> str:
    """Return the UTF-8 text of a file of at most `limit_bytes`; raises TreeoptError as `read_bytes` does."""
    data = read_bytes(path, limit_bytes=limit_bytes)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TreeoptError(f"{path}: not UTF-8 text (byte {error.start}). Is it another kind of file?") from None


def check_writable(path: Path | str) -> None:
    """Raise TreeoptError now when `path` could not be written later; call it before any long work."""
    if str(path) == STANDARD_STREAM:
        return
    path = Path(path)
    try:
        if path.is_dir():
            raise TreeoptError(f"{path}: is a folder. Expected the path of a file to write.")
        if _is_device(path):
            return
        folder = _final(path).parent
        if not folder.is_dir():
            raise TreeoptError(f"{path}: its folder does not exist. Create {folder} first.")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TreeoptError(f"{path}: its folder cannot be written ({error.strerror}). Choose another.") from None


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write a whole file or nothing: temporary file in the same folder, flush, rename; '-' is standard output.

    Raises TreeoptError naming the file and the reason. A link is followed; a device or a pipe is written in place.
    """
    if str(path) == STANDARD_STREAM:
        sys.stdout.write(data.decode("utf-8"))
        return
    path = file_path(path)
    check_writable(path)
    try:
        if _is_device(path):
            path.write_bytes(data)
        else:
            _replace(_final(path), data)
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Is the disk full?") from None


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _is_device(path: Path) -> bool:
    """Whether `path` is there but is no regular file; a rename would put one in the place of /dev/null."""
    return path.exists() and not path.is_file()


def _final(path: Path) -> Path:
    return Path(os.path.realpath(path))  # what a link points to; a rename would replace the link itself


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
