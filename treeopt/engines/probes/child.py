"""A program that ends with treeopt, however treeopt ends: its standard input is a pipe that nobody else holds."""

import json
import re
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from queue import Empty, Queue
from threading import Thread
from typing import Any

from treeopt.engines.probes.process_tree import kill, started_by
from treeopt.errors import EngineError, printable

LAST_LINES, ERROR_LINES = 5, 2
MOST_LINES = 1000
"""Lines of its log that are kept."""
ERROR = re.compile(r"^[\d.]+ E |fail|error|not compatible", re.IGNORECASE)
TIMESTAMP = re.compile(r"^[\d.]+ [A-Z] ")
"""How llama.cpp's log lines begin: time and level."""
GRACE_S = 2.0
"""Wait for a child whose input has ended, before it is killed."""


class Child:
    """A Python module that is run in a process of its own, says one line of JSON when it is ready, and then serves.

    Args:
        title: the engine, for messages.
        command: program and arguments.
        timeout_s: longest wait for its line.

    Raises EngineError where it ends or says nothing in time.
    """

    def __init__(self, title: str, command: Sequence[str], *, timeout_s: float) -> None:
        self._title = title
        self._log: deque[str] = deque(maxlen=MOST_LINES)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._lines: Queue[str] = Queue()
        self._readers = [Thread(target=each, daemon=True) for each in (self._read, self._listen)]
        for each in self._readers:
            each.start()
        try:
            self.ready = self._first_line(timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it and all that it started; return when they are gone."""
        started = started_by(self._process.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        kill(started | started_by(self._process.pid))
        for each in self._readers:
            each.join(GRACE_S)  # a process in a session of its own may still hold the other end
        for reader, stream in zip(self._readers, (self._process.stdout, self._process.stderr), strict=True):
            if stream is not None and not reader.is_alive():
                stream.close()

    def _first_line(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except Empty:
            raise EngineError(
                f"{self._title}: expected it to start within {timeout_s:g} s. It did not: {self._message()}"
            ) from None
        if not line:
            self._process.wait()
            self._readers[1].join(GRACE_S)
            raise EngineError(f"{self._title}: expected it to start. It ended: {self._message()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines.put(next((line for line in self._process.stdout if line.startswith("{")), ""))
        for _ in self._process.stdout:
            pass

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(printable(line.strip()))

    def errors(self) -> list[str]:
        """Return the lines of its log that report an error, in order."""
        return [TIMESTAMP.sub("", line) for line in tuple(self._log) if ERROR.search(line)]

    def _message(self) -> str:
        lines = self.errors()[:ERROR_LINES] or tuple(self._log)[-LAST_LINES:]
        return " / ".join(lines) or "it printed nothing. Start it by hand to see more."


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
