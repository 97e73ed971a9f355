"""A child process that ends with treeopt, however treeopt ends: its standard input is a pipe that only treeopt holds."""

import json
import os
import re
import subprocess
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import Any

import psutil

from treeopt.errors import EngineError, printable

LAST_LINES, ERROR_LINES = 5, 2
MAX_LOG_LINES = 1000
ERROR = re.compile(r"^[\d.]+ E |fail|error|not compatible", re.IGNORECASE)
TIMESTAMP = re.compile(r"^[\d.]+ [A-Z] ")
"""How llama.cpp's log lines begin: time and level."""
GRACE_S = 2.0
"""Wait after closing a child's input, before it is killed."""
KILL_TIMEOUT_S = 30.0
"""Longest wait for killed processes: freeing the memory of a GPU takes seconds."""
POLL_S = 0.02


class Child:
    """A program that prints one line of JSON when it is ready, and then serves until its standard input ends.

    Args:
        title: name of the engine in errors.
        command: program and arguments.
        timeout_s: longest wait for the line.

    Raises EngineError if the program ends first, or exceeds the time limit.
    """

    def __init__(self, title: str, command: Sequence[str], *, timeout_s: float) -> None:
        self._title = title
        self._log: deque[str] = deque(maxlen=MAX_LOG_LINES)
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
        self._readers = [Thread(target=read, daemon=True) for read in (self._read_output, self._read_log)]
        for reader in self._readers:
            reader.start()
        try:
            self.ready = self._wait_until_ready(timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the program and its descendants; returns when they are gone."""
        descendants = find_descendants(self._process.pid)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        kill(descendants | find_descendants(self._process.pid))
        for reader in self._readers:
            reader.join(GRACE_S)  # a process in a session of its own may still hold the other end
        for reader, stream in zip(self._readers, (self._process.stdout, self._process.stderr), strict=True):
            if stream is not None and not reader.is_alive():
                stream.close()

    def errors(self) -> list[str]:
        """Return the lines of its log that report an error, in order."""
        return [TIMESTAMP.sub("", line) for line in tuple(self._log) if ERROR.search(line)]

    def _wait_until_ready(self, timeout_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=timeout_s)
        except Empty:
            raise EngineError(
                f"{self._title}: expected it to start within {timeout_s:g} s. It did not: {self._summarise_log()}"
            ) from None
        if not line:
            self._process.wait()
            self._readers[1].join(GRACE_S)
            raise EngineError(f"{self._title}: expected it to start. It ended: {self._summarise_log()}")
        ready: dict[str, Any] = json.loads(line)
        return ready

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        self._lines.put(next((line for line in self._process.stdout if line.startswith("{")), ""))
        for _ in self._process.stdout:
            pass

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(printable(line.strip()))

    def _summarise_log(self) -> str:
        lines = self.errors()[:ERROR_LINES] or tuple(self._log)[-LAST_LINES:]
        return " / ".join(lines) or "it printed nothing. Start it by hand to see more."


def find_descendants(pid: int) -> set[psutil.Process]:
    """Return the descendants of a process group's leader and the other members of its group, without the leader.

    A process whose parent has ended is found by its group only.
    """
    processes = set(_group_members(pid))
    with suppress(psutil.NoSuchProcess):
        processes |= set(psutil.Process(pid).children(recursive=True))
    return {process for process in processes if process.pid != pid}


def kill(processes: Collection[psutil.Process]) -> None:
    """Kill processes; returns when they are gone, or after `KILL_TIMEOUT_S` seconds."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    deadline_s = time.monotonic() + KILL_TIMEOUT_S
    while any(map(_is_alive, processes)) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)


def _group_members(group: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == group:
                yield process


def _is_alive(process: psutil.Process) -> bool:
    """Return whether a process still holds memory, which a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
