"""Standard output and standard error that accept any text in any encoding, and whose failures print one line."""

import codecs
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, TextIO

import click

NEAREST = {
    letters[0]: letters[1:]
    for letters in (
        *("─-", "│|", "├|", "┬+", "└`", "●o", "\u00d7x"),
        *("▁_", "▂_", "▃_", "▄=", "▅▄=", "▆▄=", "▇█#", "█#", "░.", "▒:", "▓="),
    )
}
"""Replacements for characters that an encoding lacks; the first one that it has is used, so that bars stay in order."""
UNKNOWN = "?"
ASCII = "treeopt-ascii"
"""An alias of ASCII: click writes UTF-8 to streams whose encoding is called ASCII."""
FAILED = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE})


def nearest(text: str, encoding: str) -> str:
    """Replace characters that an encoding lacks by the nearest ones that it has.

    >>> nearest("─┬─ é ▃▆█ 中", "ascii"), nearest("─┬─ é ▃▆█ 中", "cp437")
    ('-+- e _=# ?', '─┬─ é _▄█ ?')
    """
    return "".join(_nearest_letter(letter, encoding) for letter in text)


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
    """Let a stream write the nearest characters for those that its encoding lacks."""
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
        with suppress(OSError):  # its content cannot be written, which was reported before
            stream.reconfigure(encoding=encoding, errors=errors)


def _replacer(encoding: str) -> Callable[[UnicodeError], tuple[str, int]]:
    """Return an error handler for one encoding; the error that it receives does not always name it."""

    def replace(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return nearest(error.object[error.start : error.end], encoding), error.end

    return replace


def _nearest_letter(letter: str, encoding: str) -> str:
    base_letters = "".join(part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part))
    for candidate in (letter, *NEAREST.get(letter, ""), base_letters, UNKNOWN):
        try:
            candidate.encode(encoding)
        except UnicodeEncodeError:
            continue
        return str(candidate)
    return ""


def _find_ascii(name: str) -> codecs.CodecInfo | None:
    if name.replace("_", "-") != ASCII:
        return None
    ascii_codec = codecs.lookup("ascii")
    return codecs.CodecInfo(
        name=ASCII,
        encode=ascii_codec.encode,
        decode=ascii_codec.decode,
        incrementalencoder=ascii_codec.incrementalencoder,
        incrementaldecoder=ascii_codec.incrementaldecoder,
        streamreader=ascii_codec.streamreader,
        streamwriter=ascii_codec.streamwriter,
    )


codecs.register(_find_ascii)
