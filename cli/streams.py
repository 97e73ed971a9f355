"""Standard output and standard error: they take any text, whatever their encoding, and their failures are one line."""

import codecs
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO

import click

NEAREST = {
    each[0]: each[1:]
    for each in [
        "─-",
        "│|",
        "├|",
        "┬+",
        "└`",
        "●o",
        "\u00d7x",
        "▁_",
        "▂_",
        "▃_",
        "▄=",
        "▅▄=",
        "▆▄=",
        "▇█#",
        "█#",
        "░.",
        "▒:",
        "▓=",
    ]
}
"""What stands for a character that an encoding lacks: the first of these that it has, so that bars stay in order."""
UNKNOWN = "?"
ASCII = "treeopt-ascii"
"""ASCII under another name: click writes UTF-8 to streams that are called ASCII."""
FAILED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE})


def nearest(text: str, encoding: str) -> str:
    """Return a text in the characters of an encoding, each that is missing as the nearest one there is.

    >>> nearest("─┬─ é ▃▆█ 中", "ascii"), nearest("─┬─ é ▃▆█ 中", "cp437")
    ('-+- e _=# ?', '─┬─ é _▄█ ?')
    """
    return "".join(_nearest_letter(letter, encoding) for letter in text)


@contextmanager
def guarded() -> Iterator[None]:
    """Run a command so that no encoding stops it, and that output which cannot be written ends it with one line and 1.

    A closed pipe ends it with 1 and no word: whoever read it has seen enough.  A closed standard error is no failure.
    """
    with ExitStack() as inside:
        if sys.stderr is None:
            sys.stderr = inside.enter_context(open(os.devnull, "w", encoding="utf-8"))
            inside.callback(setattr, sys, "stderr", None)
        if sys.stdout is None:
            _fail("is closed: redirect it, to /dev/null where nobody reads it")
        stdout = inside.enter_context(_buffered_stdout())  # click puts another in its place once a pipe is closed
        for stream in (stdout, sys.stderr):
            inside.enter_context(_any_text(stream))
        try:
            try:
                yield
            finally:
                stdout.flush()  # here, because nobody catches what goes wrong when the interpreter ends
        except OSError as error:
            if error.errno not in FAILED or error.filename is not None:
                raise
            _discard(stdout)
            full = f"cannot be written ({error.strerror}): redirect it to where there is room"
            _fail(None if error.errno == errno.EPIPE else full)


def _fail(problem: str | None) -> None:
    """End with 1, and tell the problem if there is one to be told."""
    if problem is not None:
        try:
            click.echo(f"Error: standard output: {problem}.", err=True)
        except OSError:  # standard error cannot be written either
            _discard(sys.stderr)
    raise SystemExit(1)


def _discard(stream: TextIO) -> None:
    """Let all that a stream still holds, and gets, go nowhere, so that the interpreter does not try to write it."""
    try:
        handle = stream.fileno()
    except (OSError, ValueError, AttributeError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, handle)
    os.close(nowhere)


@contextmanager
def _buffered_stdout() -> Iterator[TextIO]:
    """Give standard output a buffer where it has none (python -u): it would lose, unnoticed, what a write leaves over."""
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
            buffered.detach().detach()  # the file underneath stays open


@contextmanager
def _any_text(stream: Any) -> Iterator[None]:
    """Have a stream write the nearest characters in place of those that its encoding lacks."""
    encoding, errors = getattr(stream, "encoding", None), getattr(stream, "errors", None)
    if encoding is None or not hasattr(stream, "reconfigure"):
        yield
        return
    true_name = codecs.lookup(encoding).name
    codecs.register_error(f"treeopt-{true_name}", _replacer(true_name))
    stream.reconfigure(encoding=ASCII if true_name == "ascii" else encoding, errors=f"treeopt-{true_name}")
    try:
        yield
    finally:
        with suppress(OSError):  # what it still holds cannot be written, of which the command has been told
            stream.reconfigure(encoding=encoding, errors=errors)


def _replacer(encoding: str) -> Callable[[UnicodeError], tuple[str, int]]:
    """Return an error handler for one encoding: the error that it gets does not always name it."""

    def replaced(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return nearest(error.object[error.start : error.end], encoding), error.end

    return replaced


def _nearest_letter(letter: str, encoding: str) -> str:
    without_accents = "".join(part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part))
    for candidate in (letter, *NEAREST.get(letter, ""), without_accents, UNKNOWN):
        try:
            candidate.encode(encoding)
        except UnicodeEncodeError:
            continue
        return str(candidate)
    return ""


def _found_ascii(name: str) -> codecs.CodecInfo | None:
    if name.replace("_", "-") != ASCII:
        return None
    found = codecs.lookup("ascii")
    return codecs.CodecInfo(
        name=ASCII,
        encode=found.encode,
        decode=found.decode,
        incrementalencoder=found.incrementalencoder,
        incrementaldecoder=found.incrementaldecoder,
        streamreader=found.streamreader,
        streamwriter=found.streamwriter,
    )


codecs.register(_found_ascii)
