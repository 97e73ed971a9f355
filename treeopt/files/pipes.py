"""Reading pipes: to their end, never more than a limit, and never waiting for a writer that does not come."""

import os
import select
import time
from pathlib import Path

from treeopt.errors import TreeoptError

CHUNK_BYTES = 65_536
WRITER_WAIT_S = 5.0
"""How long somebody has to open the other end of a pipe; once that has happened, writing may take any time."""
_PAUSE_S = 0.05


def read_pipe(path: Path, limit_bytes: int) -> bytes:
    """Return what is written into a pipe, at most one byte more than the limit.

    Raises TreeoptError where nobody opens its other end, OSError when it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        data = _read(handle, limit_bytes)
    finally:
        os.close(handle)
    if data is None:
        raise TreeoptError(
            f"{path}: expected a pipe that somebody writes into. Got none within {WRITER_WAIT_S:g} s: start its writer "
            "first."
        )
    return data


def _read(handle: int, limit_bytes: int) -> bytes | None:
    """Return what comes until the writer ends, None where there is no writer in time."""
    data, writer_seen, until_s = bytearray(), False, time.monotonic() + WRITER_WAIT_S
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while len(data) <= limit_bytes:
        hung_up = any(event & select.POLLHUP for _, event in poll.poll(1000 * _PAUSE_S))
        try:
            chunk = os.read(handle, min(CHUNK_BYTES, limit_bytes + 1 - len(data)))
        except BlockingIOError:  # a writer is there, and has written nothing yet
            writer_seen = True
            continue
        data += chunk
        writer_seen = writer_seen or hung_up or bool(chunk)
        if not chunk and writer_seen:
            break
        if not writer_seen and time.monotonic() > until_s:
            return None
    return bytes(data)
