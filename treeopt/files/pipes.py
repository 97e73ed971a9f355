"""Reading pipes up to a size limit, with a timeout for the first writer."""

import os
import select
import time
from pathlib import Path

from treeopt.errors import TreeoptError

CHUNK_BYTES = 65_536
WRITER_WAIT_S = 5.0
"""Timeout until a writer opens the pipe; after that, writing may take any time."""
_POLL_S = 0.05


def read_pipe(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a pipe, at most one byte more than the limit.

    Raises TreeoptError if no writer opens it in time, OSError if it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = _read(handle, limit_bytes)
    finally:
        os.close(handle)
    if data is None:
        raise TreeoptError(
            f"{path}: expected a pipe with a writer. Got none within {WRITER_WAIT_S:g} s: start its writer first."
        )
    return data


def _read(handle: int, limit_bytes: int) -> bytes | None:
    """Return the data until the last writer closes the pipe, None if no writer opens it in time."""
    data, writer_seen, deadline_s = bytearray(), False, time.monotonic() + WRITER_WAIT_S
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while len(data) <= limit_bytes:
        hung_up = any(event & select.POLLHUP for _, event in poll.poll(1000 * _POLL_S))
        try:
            chunk = os.read(handle, min(CHUNK_BYTES, limit_bytes + 1 - len(data)))
        except BlockingIOError:  # a writer has opened the pipe and written nothing yet
            writer_seen = True
            continue
        data += chunk
        writer_seen = writer_seen or hung_up or bool(chunk)
        if not chunk and writer_seen:
            break
        if not writer_seen and time.monotonic() > deadline_s:
            return None
    return bytes(data)
