"""Pipes are read to their end, devices are refused, and nothing waits forever."""

import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from treeopt.errors import TreeoptError
from treeopt.files import pipes
from treeopt.files.atomic_files import read_bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.fixture
def inherited() -> Iterator[tuple[Path, int]]:
    """Return the path under which a process finds a pipe that it inherited, as /dev/stdin, and the writing end."""
    reading, writing = os.pipe()
    yield Path(f"/dev/fd/{reading}"), writing
    os.close(reading)


def written(path: Path, *pieces: bytes, pause_s: float = 0.0) -> threading.Thread:
    """Start to write pieces into a named pipe, with a pause before each."""

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for piece in pieces:
                time.sleep(pause_s)
                file.write(piece)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_a_pipe_is_read_to_its_end(pipe: Path) -> None:
    writer = written(pipe, b"a" * 100_000, b"b")
    assert read_bytes(pipe, limit_bytes=200_000) == b"a" * 100_000 + b"b"
    writer.join(5)


def test_slow_writers(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once somebody has opened the pipe to write, it takes as long as it takes."""
    monkeypatch.setattr(pipes, "WRITER_WAIT_S", 0.05)
    writer = written(pipe, b"slow", b"ly", pause_s=0.2)
    time.sleep(0.01)
    assert read_bytes(pipe, limit_bytes=10) == b"slowly"
    writer.join(5)


def test_timeout_without_a_writer(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipes, "WRITER_WAIT_S", 0.05)
    with pytest.raises(TreeoptError, match=r"pipe: expected a pipe with a writer. Got none within 0.05 s"):
        read_bytes(pipe, limit_bytes=10)


def test_a_silent_writer(pipe: Path) -> None:
    written(pipe).join(0.01)
    assert read_bytes(pipe, limit_bytes=10) == b""


def test_an_inherited_pipe_is_read(inherited: tuple[Path, int]) -> None:
    path, writing = inherited
    os.write(writing, b"text")
    os.close(writing)
    assert read_bytes(path, limit_bytes=10) == b"text"
    assert read_bytes(path, limit_bytes=10) == b""


def test_size_limit_of_pipes(pipe: Path) -> None:
    def forever() -> None:
        with pipe.open("wb", buffering=0) as file, suppress(BrokenPipeError):
            while True:
                file.write(bytes(65536))

    writer = threading.Thread(target=forever, daemon=True)
    writer.start()
    tracemalloc.start()
    with pytest.raises(TreeoptError, match="larger than 1000000 bytes"):
        read_bytes(pipe, limit_bytes=1_000_000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    writer.join(5)
    assert peak_bytes < 4_000_000


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/urandom"])
def test_devices_are_refused(device: str) -> None:
    with pytest.raises(TreeoptError, match=f"{device}: is a device. Expected a file, or a pipe."):
        read_bytes(device, limit_bytes=10)


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(10**12)

    def opened(*_: object) -> bytes:
        raise AssertionError("was read")

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(TreeoptError, match="larger than 1000000000 bytes"):
        read_bytes(tmp_path / "large", limit_bytes=1_000_000_000)
