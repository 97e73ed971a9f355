"""Diagrams are as wide as the terminal that they are printed on, and as ever where there is none."""

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import call, invented, solved
from treeopt.cli.terminal import diagram_width
from treeopt.trees import TreeFile, chain
from treeopt.trees.text_diagram import MIN_WIDTH, WIDTH


@pytest.fixture
def terminal() -> Iterator[int]:
    """Yield the file descriptor of a terminal."""
    master, slave = pty.openpty()
    yield slave
    os.close(master)
    os.close(slave)


def resize(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


@pytest.mark.parametrize(("columns", "width"), [(80, 80), (40, 40), (10, MIN_WIDTH), (250, 250), (0, WIDTH)], ids=str)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_the_terminal_says_how_wide(
    terminal: int, monkeypatch: pytest.MonkeyPatch, stream: str, columns: int, width: int
) -> None:
    resize(terminal, columns)
    with os.fdopen(os.dup(terminal), "w") as opened:
        monkeypatch.setattr(sys, stream, opened)
        monkeypatch.setattr(sys, "stderr" if stream == "stdout" else "stdout", io.StringIO())
        assert diagram_width(err=stream == "stderr") == width
        assert diagram_width(err=stream == "stdout") == WIDTH


def test_commands_draw_as_wide(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TreeFile(tree=chain(60), reach=0.9 ** np.arange(61)).save(folder / "chain.json")
    shown = call("show", "chain.json").stdout
    assert 92 < max(map(len, shown.splitlines())) <= WIDTH
    for command in ("show", "solve"):
        monkeypatch.setattr(f"treeopt.cli.{command}.diagram_width", lambda **_: MIN_WIDTH)
    narrow = call("show", "chain.json").stdout
    _, diagram = solved(folder, invented(), "--budget", 32).split("\ndepth ")
    for drawn in (narrow, diagram.partition("\nWritten")[0]):
        assert 18 < max(map(len, drawn.splitlines())) <= MIN_WIDTH
