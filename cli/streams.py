"""Standard output and standard error that accept any text in any encoding, and whose failures print one line."""

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, TextIO

import click

FAILED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE})


@contextmanager
def guard_streams() -> Iterator[None]:
    """Let a command print any text; if output cannot be written, print one line and exit with 1.

    A closed pipe exits with 1 and no message, because its reader has stopped. A closed standard error is no failure.
    """
    with ExitStack() as inside:
        if sys.stderr is None:
            sys.stderr = inside.enter_context(open(os.devnull, "w", encoding="utf-8"))
            inside.callback(setattr, sys, "stderr", None)
        if sys.stdout is None:
            _fail("is closed: redirect it, to /dev/null if nobody reads it")
        stdout = inside.enter_context(_buffered_stdout())  # click replaces it after a broken pipe
        for stream in (stdout, sys.stderr):
            inside.enter_context(_replace_missing_characters(stream))
        try:
            try:
                yield
            finally:
                stdout.flush()  # errors at interpreter exit cannot be caught
        except OSError as error:
            if error.errno not in FAILED or error.filename is not None:
                raise
            _discard(stdout)
            if error.errno == errno.EPIPE:
                raise SystemExit(1) from None
            _fail(f"cannot be written ({error.strerror}): redirect it to where there is room")


def _fail(problem: str) -> NoReturn:
    try:
        click.echo(f"Error: standard output: {problem}.", err=True)
    except OSError:  # standard error cannot be written either
        _discard(sys.stderr)
    raise SystemExit(1)


def _discard(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that the interpreter does not flush it into an error at exit."""
    try:
        handle = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, handle)
    os.close(null)


@contextmanager
def _buffered_stdout() -> Iterator[TextIO]:
    """Add a buffer to standard output if it has none (python -u), which would silently lose the rest of a partial write."""
    stream = sys.stdout
    raw = getattr(stream, "buffer", None)
    if not isinstance(raw, io.RawIOBase):
        yield stream
        return
    buffered = io.TextIOWrapper(io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors)
    sys.stdout = buffered
    try:
        yield buffered
    finally:
        sys.stdout = stream
        with suppress(OSError):
            buffered.detach().detach()  # leaves the file open


@contextmanager
def _replace_missing_characters(stream: Any) -> Iterator[None]:
    """Let a stream write a question mark for each character that its encoding lacks."""
    if not hasattr(stream, "reconfigure"):
        yield
        return
    errors = stream.errors
    stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        with suppress(OSError):  # its content cannot be written, which was reported before
            stream.reconfigure(errors=errors)
