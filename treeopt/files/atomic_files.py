"""Reading files up to a size limit, and writing them atomically."""

import gzip
import io
import os
import secrets
import stat
import sys
import tempfile
import zlib
from glob import escape
from pathlib import Path

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.files.pipes import read_pipe

STANDARD_STREAM = "-"
GZIP_START = b"\x1f\x8b"


def file_path(path: Path | str) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InvalidValueError(f"path: expected text or a pathlib.Path. Got {path!r:.60}: name a file.")
    return Path(path)


def read_bytes(path: Path | str, *, limit_bytes: int) -> bytes:
    """Return the bytes of a file or a pipe of at most `limit_bytes`.

    Raises TreeoptError if it is missing, unreadable, too large, a device, or a pipe without a writer.
    """
    path = file_path(path)
    try:
        data = _read(path, limit_bytes)
    except FileNotFoundError:
        raise TreeoptError(f"{path}: no such file. Check the path, or make the file first.") from None
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be read ({error.strerror}). Expected a readable file.") from None
    if data is None or len(data) > limit_bytes:
        raise TreeoptError(f"{path}: larger than {limit_bytes} bytes, the limit for files of this kind.")
    return data


def read_unpacked(path: Path | str, *, limit_bytes: int) -> bytes:
    """Return the bytes of a file, unpacked if it is a gzip archive, of at most `limit_bytes` packed and unpacked.

    Raises TreeoptError as `read_bytes` does, and for a broken archive.
    """
    data = read_bytes(path, limit_bytes=limit_bytes)
    if not data.startswith(GZIP_START):
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            data = file.read(limit_bytes + 1)
    except (OSError, EOFError, zlib.error):
        raise TreeoptError(f"{path}: cannot be unpacked. Is the gzip archive complete?") from None
    if len(data) > limit_bytes:
        raise TreeoptError(f"{path}: larger than {limit_bytes} bytes unpacked, the limit for files of this kind.")
    return data


def read_text(path: Path | str, *, limit_bytes: int) -> str:
    """Return the UTF-8 text of a file of at most `limit_bytes`; raises TreeoptError as `read_bytes` does."""
    data = read_bytes(path, limit_bytes=limit_bytes)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TreeoptError(f"{path}: not UTF-8 text (byte {error.start}). Is it another kind of file?") from None


def _read(path: Path, limit_bytes: int) -> bytes | None:
    """Return at most one byte more than the limit, None if the file's size exceeds it."""
    status = path.stat()
    if stat.S_ISFIFO(status.st_mode):
        return read_pipe(path, limit_bytes)
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise TreeoptError(f"{path}: is a device. Expected a file, or a pipe.")
    if stat.S_ISREG(status.st_mode) and status.st_size > limit_bytes:
        return None
    with path.open("rb") as file:
        return file.read(limit_bytes + 1)


def is_stream(path: Path | str) -> bool:
    """Return whether a path is '-', a device or a pipe, which is written in place."""
    if str(path) == STANDARD_STREAM:
        return True
    path = Path(path)
    return path.exists() and not path.is_file() and not path.is_dir()


def check_writable(path: Path | str) -> None:
    """Raise TreeoptError if `path` cannot be written; call it before long work."""
    if str(path) == STANDARD_STREAM:
        return
    path = Path(path)
    try:
        if path.is_dir():
            raise TreeoptError(f"{path}: is a folder. Expected the path of a file to write.")
        if is_stream(path):
            return
        folder = _resolve(path).parent
        if not folder.is_dir():
            raise TreeoptError(f"{path}: its folder does not exist. Create {folder} first.")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TreeoptError(f"{path}: its folder cannot be written ({error.strerror}). Choose another.") from None


def write_bytes(path: Path | str, data: bytes) -> None:
    """Write a file atomically: temporary file in the same folder, flush, rename; '-' is standard output.

    An existing file keeps its permissions. A link is followed; a device or a pipe is written in place.

    Raises TreeoptError if the file cannot be written, and OSError for standard output, as `print` does.
    """
    if str(path) == STANDARD_STREAM:
        _write_to_stdout(data)
        return
    path = file_path(path)
    check_writable(path)
    try:
        if is_stream(path):
            path.write_bytes(data)
        else:
            _replace(_resolve(path), data)
    except OSError as error:
        raise TreeoptError(f"{path}: cannot be written ({error.strerror}). Is the disk full?") from None


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def _write_to_stdout(data: bytes) -> None:
    """Write bytes independently of the encoding of standard output."""
    if sys.stdout is None:
        raise TreeoptError("standard output: is closed. Name a file.")
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(data.decode("utf-8"))
    else:
        sys.stdout.flush()
        buffer.write(data)
        buffer.flush()


def _replace(path: Path, data: bytes) -> None:
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, mode)  # those of a new file follow the umask
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _resolve(path: Path) -> Path:
    return Path(os.path.realpath(path))  # a rename would replace a link, not its target


def numbered_files(path: Path) -> list[Path]:
    """Return the files with a path's name and a number, such as `profile.yaml.partial.1`, sorted."""
    files = path.parent.glob(f"{escape(path.name)}.*")
    return sorted(file for file in files if file.suffix[1:].isdecimal())
