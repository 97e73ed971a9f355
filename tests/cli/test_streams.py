"""Whatever standard output and standard error are, a command ends with its text or with one line, never a traceback."""

import codecs
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.invented import call, invented, saved
from treeopt.cli.streams import guard_streams, nearest
from treeopt.trees import TokenTree

ENCODINGS = ("latin-1", "cp1252", "cp437", "ascii", "utf-8")
TREE = [-1, 0, 0, 0, 1, 1, 2]


@pytest.fixture
def files(folder: Path) -> Path:
    saved(folder, invented())
    TokenTree(TREE).save(folder / "tree.json")
    return folder


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a shell in which `treeopt` is the command."""
    program = f'"{sys.executable}" -m treeopt'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("treeopt ", f"{program} ")],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


class Written(io.TextIOWrapper):
    """A stream of some encoding whose bytes can be looked at."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    @property
    def content(self) -> bytes:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_command_prints_in_every_encoding(files: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    from treeopt.cli.main import main

    TokenTree(TREE).save(files / "kapüt─.json")
    commands = [
        *(["--help"], ["export", "--list"], ["show", "--help"], ["profile", "--help"], ["export", "--help"]),
        *(["show", "tree.json"], ["show", "kapüt─.json"], ["show", "missing─.json"]),
        *(["solve"], ["solve", "-o", "tréé.json"], ["solve", "--json"], ["solve", "-o", "-"]),
        *(["compare", "tree.json", "kapüt─.json"], ["export", "tree.json", "--to", "exllamav3"], ["import", "none─"]),
        ["export", "tree.json", "--to", "vllm", "--draft-model", "modèle─"],
    ]
    for command in commands:
        streams = Written(encoding), Written(encoding)
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        with pytest.raises(SystemExit):
            main(command)
        is_file = "-" in command or "--draft-model" in command  # its bytes are the same everywhere
        texts = [streams[0].content.decode("utf-8" if is_file else encoding), streams[1].content.decode(encoding)]
        assert any(texts)
        assert "Traceback" not in "".join(texts)


def test_diagrams_take_the_nearest_characters_that_there_are(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from treeopt.cli.main import main

    shown = {}
    for encoding in ENCODINGS:
        stream = Written(encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit):
            main(["show", str(files / "tree.json")])
        shown[encoding] = stream.content.decode(encoding)
    assert "tree    ● ───┬─ ●" in shown["utf-8"]
    assert "tree    o ───┬─ o" in shown["cp437"]
    assert "        ▄▄▄     ███" in shown["utf-8"].replace("▃", "▄")
    for encoding in ("latin-1", "cp1252", "ascii"):
        assert "tree    o ---+- o ---+- o" in shown[encoding]
        assert "             |       `- o" in shown[encoding]
        assert "        ___     ###     ###" in shown[encoding]
    for encoding in ENCODINGS:
        assert [len(line) for line in shown[encoding].splitlines()] == [
            len(line) for line in shown["utf-8"].splitlines()
        ]


def test_bars_stay_in_order_in_every_encoding() -> None:
    for encoding in ENCODINGS:
        heights = ["_", "▁", "▂", "▃", "=", "▄", "▅", "▆", "▇", "#", "█"]
        bars = [heights.index(nearest(bar, encoding)) for bar in "▁▂▃▄▅▆▇█"]
        assert bars == sorted(bars)
        assert len(set(bars)) >= 3


def test_names_that_are_no_text_are_told(files: Path) -> None:
    """A file's name may hold bytes that no encoding has; Python keeps them as code points that cannot be printed."""
    name = os.fsdecode(b"a\xff.json")
    TokenTree(TREE).save(files / name)
    for command in (
        ("show", name, "-o", "b.json"),
        ("import", name, "-o", os.fsdecode(b"c\xfe.json")),
        ("show", "b.json"),
    ):
        assert call(*command).exit_code == 0, command
    assert call("show", os.fsdecode(b"missing\xff")).exit_code == 1


def test_streams_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Written("ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with guard_streams():
        assert codecs.lookup(stream.encoding).name == "treeopt-ascii"
    assert (stream.encoding, stream.errors) == ("ascii", "strict")


@pytest.mark.process
class TestProcesses:
    """With streams as shells make them; each line starts a process, so few are in the fast tests."""

    @pytest.mark.parametrize(
        ("command", "streams", "said"),
        [
            ("show tree.json", ">/dev/full", "No space left on device"),
            ("--help", ">&-", "is closed"),
            *(
                pytest.param(command, streams, said, marks=pytest.mark.slow)
                for command, streams, said in (
                    ("solve --json", ">&-", "is closed"),
                    ("import tree.json -o -", ">/dev/full", "No space left on device"),
                    ("run tree.json --prompt x --max-new-tokens 4", ">/dev/full", "No space left on device"),
                )
            ),
        ],
    )
    @pytest.mark.usefixtures("files")
    def test_what_cannot_be_written_ends_with_one_line(self, command: str, streams: str, said: str) -> None:
        done = shell(f"treeopt {command} {streams}", PYTHONUNBUFFERED="")
        errors = [line for line in done.stderr.decode().splitlines() if line.startswith("Error")]
        assert (done.returncode, len(errors)) == (1, 1), done.stderr
        assert errors[0].startswith("Error: standard output: ")
        assert said in errors[0]

    @pytest.mark.parametrize("unbuffered", ["1", pytest.param("", marks=pytest.mark.slow)])
    def test_a_reader_who_has_seen_enough_is_told_nothing(self, files: Path, unbuffered: str) -> None:
        """Without a buffer of its own, Python would not notice what a write leaves over."""
        TokenTree([-1, *[0] * 12_000]).save(files / "wide.json")  # more text than a pipe holds
        done = shell("treeopt show wide.json --rows 12010 | head -1", PYTHONUNBUFFERED=unbuffered)
        assert done.stdout == b"12001 nodes, depth 1\n"
        assert (done.returncode, done.stderr) == (1, b"")

    @pytest.mark.usefixtures("files")
    def test_a_closed_standard_error_takes_nothing_from_the_result(self) -> None:
        done = shell("treeopt show tree.json -o a.json 2>&- && treeopt show a.json 2>&-")
        assert (done.returncode, done.stdout[:7]) == (0, b"7 nodes")

    @pytest.mark.parametrize(
        "streams",
        [
            ">/dev/full 2>/dev/full",
            *(pytest.param(x, marks=pytest.mark.slow) for x in ("2>&-", "2>/dev/full", ">&- 2>&-")),
        ],
    )
    def test_where_nothing_can_be_told_there_is_still_the_exit_code(self, files: Path, streams: str) -> None:
        del files
        done = shell(f"treeopt show missing.json {streams}")
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")

    @pytest.mark.usefixtures("files")
    def test_an_encoding_that_the_environment_sets(self) -> None:
        done = shell("treeopt show tree.json", PYTHONIOENCODING="ascii")
        assert done.stdout.decode("ascii").startswith("7 nodes")
        assert (done.returncode, done.stderr) == (0, b"")

    def test_version_names_the_program(self) -> None:
        assert shell("treeopt --version").stdout.startswith(b"treeopt, version ")
