"""Diagrams are as wide as their terminal, and have a fixed width without one."""

import fcntl
import io
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import invented, solved, succeed
from treeopt.cli.terminal import diagram_width
from treeopt.trees import TreeFile, chain
from treeopt.trees.text_diagram import MIN_WIDTH, WIDTH


@pytest.mark.parametrize(("columns", "width"), [(80, 80), (10, MIN_WIDTH), (250, 250), (0, WIDTH)], ids=str)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch, stream: str, columns: int, width: int) -> None:
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(master), os.fdopen(terminal, "w") as opened:
        monkeypatch.setattr(sys, stream, opened)
        monkeypatch.setattr(sys, "stderr" if stream == "stdout" else "stdout", io.StringIO())
        assert diagram_width(err=stream == "stderr") == width
        assert diagram_width(err=stream == "stdout") == WIDTH


def test_commands_draw_at_that_width(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TreeFile(tree=chain(60), reach=0.9 ** np.arange(61)).save(folder / "chain.json")
    assert 92 < max(map(len, succeed("show", "chain.json").stdout.splitlines())) <= WIDTH
    for command in ("show", "solve"):
        monkeypatch.setattr(f"treeopt.cli.{command}.diagram_width", lambda **_: MIN_WIDTH)
    _, solve_diagram = solved(folder, invented(), "--budget", 32).split("\ndepth ")
    for diagram in (succeed("show", "chain.json").stdout, solve_diagram.partition("\nWritten")[0]):
        assert 18 < max(map(len, diagram.splitlines())) <= MIN_WIDTH
