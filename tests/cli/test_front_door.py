"""Help of every command, names from files, and inputs that are pipes or devices."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import invented, leaf_commands, refused, saved, succeed
from treeopt.cli.main import main
from treeopt.files import pipes
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, load


@pytest.fixture(autouse=True)
def files(folder: Path) -> Path:
    saved(folder, invented())
    TokenTree([-1, 0, 0, 1]).save(folder / "tree.json")
    return folder


def test_help_lists_and_explains_every_option_once() -> None:
    context = main.make_context("treeopt", [], resilient_parsing=True)
    for name, command in leaf_commands().items():
        options = [param for param in command.params if param.param_type_name == "option"]
        for option in options:
            assert getattr(option, "help", None), (name, option.name)
            assert "LEAST" not in option.make_metavar(context)
        lines = succeed(*name.split(), "--help").stdout.splitlines()
        flags = [line.split()[0].rstrip(",") for line in lines if line.startswith("  -")]
        assert sorted(flags) == sorted([*(option.opts[0] for option in options), "-h"]), name


class TestNames:
    @pytest.mark.parametrize("control", ["\x1b[2J", "\x07", "\x9b", "\u202e", "\x00"])
    def test_control_characters_in_files_do_not_reach_the_terminal(self, files: Path, control: str) -> None:
        text = (files / "profile.yaml").read_text()
        escaped = json.dumps(f"in{control}vented")
        (files / "profile.yaml").write_text(text.replace("processor: invented", f"processor: {escaped}"))
        line = refused("solve", "--plot", "a.svg")
        assert "machine.processor: expected printable text. Got \\" in line
        tree = {"format": "treeopt-tree", "version": 1, "parents": [-1], "provenance": {"rule": f"a{control}"}}
        Path("tree.json").write_text(json.dumps(tree))
        assert "provenance.rule: expected printable text" in refused("show", "tree.json")
        tree["provenance"] = {f"a{control}": "b"}
        Path("tree.json").write_text(json.dumps(tree))
        assert control not in line + refused("show", "tree.json")

    def test_files_with_any_name_are_read_again(self, files: Path) -> None:
        strange = os.fsdecode(b"p\xff\x1b.yaml")
        (files / "profile.yaml").rename(strange)
        succeed("solve", "--profile", strange, "--save", "s.npz")
        succeed("show", "tree.json")
        pair = replace(invented().pair, target=os.fsdecode(b"a\xff"), draft="b\x1b[31m")
        replace(invented(), pair=pair).save("named.yaml")
        assert Profile.load("named.yaml").pair.draft == "b\\x1b[31m"
        succeed("solve", "--profile", "named.yaml")


class TestPipesAndDevices:
    @pytest.fixture
    def pipe(self) -> Path:
        os.mkfifo("pipe")
        return Path("pipe")

    @pytest.mark.parametrize("command", [("show",), ("compare",), ("run", "--prompt", "x"), ("export", "--to", "vllm")])
    def test_devices_are_refused(self, command: tuple[str, ...]) -> None:
        assert "/dev/zero: " in refused(*command, "/dev/zero")

    def test_a_pipe_without_a_writer_is_refused(self, pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipes, "WRITER_WAIT_S", 0.05)
        for command in (("import",), ("show",), ("compare",), ("solve", "--profile")):
            assert "expected a pipe with a writer" in refused(*command, pipe)

    def test_a_pipe_is_read_once(self, pipe: Path) -> None:
        succeed("solve", "-o", "best.json", "--save", "solution.npz")
        for command, name in (
            (("import", pipe, "-o", "new.json"), "tree.json"),
            (("import", pipe, "--budget", 4, "-o", "new.json"), "solution.npz"),
            (("show", pipe), "tree.json"),
            (("compare", pipe), "tree.json"),
            (("solve", "--profile", pipe, "-o", "again.json"), "profile.yaml"),
        ):
            writer = threading.Thread(target=pipe.write_bytes, args=(Path(name).read_bytes(),), daemon=True)
            writer.start()
            succeed(*command)
            writer.join(5)
        assert load("again.json") == load("best.json")
        assert load("new.json").nodes == 4

    def test_an_export_needs_a_file_that_can_be_read_again(self, pipe: Path) -> None:
        assert "pipe: expected a file, because its checksum is noted" in refused("export", pipe, "--to", "nxdi")

    @pytest.mark.process
    def test_standard_input_and_process_substitution(self) -> None:
        line = f'"{sys.executable}" -m treeopt import /dev/stdin -o - <tree.json; "{sys.executable}" -m treeopt import <(cat tree.json) -o -'
        done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=False)
        assert done.stdout == 2 * Path("tree.json").read_bytes(), done.stderr
