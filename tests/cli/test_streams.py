"""Commands end with their text or with one line, whatever standard output and standard error are."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.invented import call, invented, saved, succeed
from treeopt.cli.main import main
from treeopt.trees import TokenTree

ENCODINGS = ("latin-1", "cp1252", "cp437", "ascii", "utf-8")
WRITTEN = {"ascii": "utf-8"}
"""What click writes to streams of an encoding, if it is another one."""
TREE = [-1, 0, 0, 0, 1, 1, 2]


@pytest.fixture(autouse=True)
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


class Recorder(io.TextIOWrapper):
    """A stream of some encoding that keeps its bytes."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    @property
    def content(self) -> bytes:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_command_prints_in_every_encoding(files: Path, monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    TokenTree(TREE).save(files / "kapüt─.json")
    commands = [
        *(["export", "--list"], ["profile", "--help"], ["show", "tree.json"], ["show", "missing─.json"]),
        *(["solve", "-o", "tréé.json"], ["solve", "--json"], ["solve", "-o", "-"], ["import", "none─"]),
        *(["compare", "tree.json", "kapüt─.json"], ["export", "tree.json", "--to", "exllamav3"]),
        ["export", "tree.json", "--to", "vllm", "--draft-model", "modèle─"],
    ]
    for command in commands:
        streams = Recorder(encoding), Recorder(encoding)
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        with pytest.raises(SystemExit):
            main(command)
        is_file = "-" in command or "--draft-model" in command  # its bytes are the same everywhere
        written = WRITTEN.get(encoding, encoding)
        texts = [streams[0].content.decode("utf-8" if is_file else written), streams[1].content.decode(written)]
        assert any(texts)
        assert "Traceback" not in "".join(texts)


def test_missing_characters_are_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for encoding in ENCODINGS:
        stream = Recorder(encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit):
            main(["show", "tree.json"])
        assert (stream.encoding, stream.errors) == (encoding, "strict")
        shown[encoding] = stream.content.decode(WRITTEN.get(encoding, encoding))
    assert "tree    ● ───┬─ ●" in shown["ascii"] == shown["utf-8"]
    assert "tree    ? ───┬─ ?" in shown["cp437"]
    assert "tree    ? ????? ?" in shown["latin-1"] == shown["cp1252"]


def test_names_that_no_encoding_has_are_printed(files: Path) -> None:
    name = os.fsdecode(b"a\xff.json")
    TokenTree(TREE).save(files / name)
    succeed("show", name, "-o", "b.json")
    succeed("import", name, "-o", os.fsdecode(b"c\xfe.json"))
    assert call("show", os.fsdecode(b"missing\xff")).exit_code == 1


@pytest.mark.process
class TestProcesses:
    """Streams as shells make them; each line starts a process, so the fast tests have few."""

    @pytest.mark.parametrize(
        ("command", "streams", "reason"),
        [
            ("show tree.json", ">/dev/full", "No space left on device"),
            ("--help", ">&-", "is closed"),
            pytest.param("import tree.json -o -", ">/dev/full", "No space left on device", marks=pytest.mark.slow),
            pytest.param(
                "run tree.json --prompt x --max-new-tokens 4",
                ">/dev/full",
                "No space left on device",
                marks=pytest.mark.slow,
            ),
        ],
    )
    def test_output_that_cannot_be_written_is_one_error_line(self, command: str, streams: str, reason: str) -> None:
        done = shell(f"treeopt {command} {streams}", PYTHONUNBUFFERED="")
        errors = [line for line in done.stderr.decode().splitlines() if line.startswith("Error")]
        assert (done.returncode, len(errors)) == (1, 1), done.stderr
        assert errors[0].startswith("Error: standard output: ")
        assert reason in errors[0]

    @pytest.mark.parametrize("unbuffered", ["1", pytest.param("", marks=pytest.mark.slow)])
    def test_closed_pipe_ends_silently(self, files: Path, unbuffered: str) -> None:
        """Without a buffer of its own, Python would not notice a partial write."""
        TokenTree([-1, *[0] * 12_000]).save(files / "wide.json")  # more text than a pipe holds
        done = shell("treeopt show wide.json --rows 12010 | head -1", PYTHONUNBUFFERED=unbuffered)
        assert done.stdout == b"12001 nodes, depth 1\n"
        assert (done.returncode, done.stderr) == (1, b"")

    def test_closed_standard_error_is_no_failure(self) -> None:
        done = shell("treeopt show tree.json 2>&-")
        assert (done.returncode, done.stdout[:7]) == (0, b"7 nodes")

    @pytest.mark.parametrize(
        "streams",
        [
            ">/dev/full 2>/dev/full",
            *(pytest.param(x, marks=pytest.mark.slow) for x in ("2>&-", "2>/dev/full", ">&- 2>&-")),
        ],
    )
    def test_failure_without_streams_has_its_exit_code(self, streams: str) -> None:
        done = shell(f"treeopt show missing.json {streams}")
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
