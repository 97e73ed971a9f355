"""What a user meets first: help, refusals in the words of the options, ranges, and inputs that are no files."""

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import call, invented, leaf_commands, saved
from treeopt.cli.main import main
from treeopt.files import pipes
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, load


@pytest.fixture
def files(folder: Path) -> Path:
    saved(folder, invented())
    TokenTree([-1, 0, 0, 1]).save(folder / "tree.json")
    return folder


def refused(*command: object, code: int = 1) -> str:
    """Return the one line that a command is refused with."""
    result = call(*command)
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert "None" not in line
    return line


class TestHelp:
    def test_every_option_is_explained(self) -> None:
        for name, command in leaf_commands().items():
            for param in command.params:
                if param.param_type_name == "option":
                    assert getattr(param, "help", None), (name, param.name)
                    assert "LEAST" not in param.make_metavar(main.make_context("treeopt", [], resilient_parsing=True))

    def test_every_option_is_listed_once(self) -> None:
        for name, command in leaf_commands().items():
            lines = call(*name.split(), "--help").stdout.splitlines()
            flags = [line.split()[0].rstrip(",") for line in lines if line.startswith("  -")]
            assert sorted(flags) == sorted(
                [param.opts[0] for param in command.params if param.param_type_name == "option"] + ["-h"]
            ), name


@pytest.mark.usefixtures("files")
class TestRefusals:
    def test_they_name_options_and_not_arguments(self) -> None:
        for command, said in (
            (("solve", "--depth", 9), "--depth: the acceptance table was measured to depth 4. Got 9"),
            (("solve", "--batch-size", 2), "Profile there. Or allow it with --extrapolate."),
            (("compare", "tree.json", "--batch-size", 2), "Measured: 256 tokens x 1. Profile there."),
            (("export", "tree.json", "--to", "vllm", "--method", "medusa"), "--method: expected one of vLLM's"),
            (("export", "tree.json", "--to", "vllm", "--engine-version", "new"), "--engine-version: expected numbers"),
        ):
            assert said in refused(*command), command

    def test_a_file_that_is_called_as_an_argument_is_no_option(self) -> None:
        assert refused("solve", "--plot", "budget").startswith("Error: budget: expected a file name ending in .svg")
        assert refused("solve", "--plot", "max_depth").startswith(
            "Error: max_depth: expected a file name ending in .svg"
        )

    def test_they_tell_what_was_asked_and_leave_out_what_was_not(self) -> None:
        assert "temperature 0.7 was not measured. Measured: sequoia at 0." in refused("solve", "--temperature", 0.7)
        assert ": rule traversal was not measured. Measured: sequoia at 0." in refused("solve", "--rule", "traversal")
        both = refused("compare", "tree.json", "--rule", "target", "--temperature", 0.7)
        assert "rule target at temperature 0.7 was not measured" in both

    def test_an_unknown_rule_is_told_all_that_can_be(self) -> None:
        for command in (("compare", "tree.json"), ("run", "tree.json", "--prompt", "x")):
            line = refused(*command, "--rule", "foo", code=2).replace("'", "")
            assert "sequoia, specinfer, target, traversal, typical" in line
        assert "rule foo was not measured. Measured: sequoia at 0." in refused("solve", "--rule", "foo")

    def test_a_profile_is_not_a_tree_and_the_right_command_is_named(self) -> None:
        for command in (("import",), ("compare",), ("run", "--prompt", "x")):
            line = refused(*command, "profile.yaml")
            assert "profile.yaml: expected a tree. Got a profile" in line
            assert "treeopt solve --profile profile.yaml" in line
        assert "is a profile, which has no tree" in call("show", "profile.yaml", "--budget", 3).stderr

    def test_values_out_of_range_are_usage_errors_that_name_the_range(self) -> None:
        run = ("run", "tree.json", "--prompt", "x")
        huge = 10**22
        for command, said in (
            ((*run, "--seed", huge), "--seed"),
            ((*run, "--seed", "9" * 5000), "--seed"),
            ((*run, "--seed", "1.0"), "expected a whole number"),
            ((*run, "--seed", -1), "expected a whole number from 0 to 9223372036854775807. Got '-1'"),
            ((*run, "--threads", 1_000_000), f"from 1 to {os.cpu_count()}, the processors of this machine"),
            ((*run, "--threads", 0), f"from 1 to {os.cpu_count()}"),
            ((*run, "--max-new-tokens", huge), "from 1 to 999999999. Got"),
            ((*run, "--top-k", huge), "from 0 to 999999999. Got"),
            ((*run, "--top-p", "nan"), "expected a number above 0 and at most 1"),
            ((*run, "--temperature", "nan"), "expected 0, which is greedy, or a number"),
            ((*run, "--temperature", "0,1"), "expected 0, which is greedy, or a number"),
            ((*run, "--draft-temperature", "0"), "expected a number of at least"),
            (("solve", "--temperature", "nan"), "expected 0, which is greedy, or a number"),
            (("solve", "--batch-size", huge, "--extrapolate"), "from 1 to 999999999. Got"),
            (("solve", "--context-tokens", huge), "from 1 to 999999999. Got"),
            (("solve", "--budget", huge), "from 1 to 999999999. Got"),
            (("solve", "--depth", huge), "from 0 to 999999999. Got"),
            (("solve", "--level-width", huge), "from 1 to 999999999. Got"),
            (("show", "tree.json", "--rows", huge), "from 9 to 999999999. Got"),
            (("export", "tree.json", "--to", "medusa", "--heads", huge), "from 1 to 999999999. Got"),
            (("compare", "tree.json", "--batch-size", huge), "from 1 to 999999999. Got"),
            (("profile", "--rounds", huge), "from 1 to 999999999. Got"),
        ):
            assert said in refused(*command, code=2), command

    def test_text_that_is_no_utf_8_is_a_usage_error(self) -> None:
        broken = os.fsdecode(b"a\xff")
        for command in (
            ("run", "tree.json", "--prompt", broken),
            ("run", "tree.json", "--prompt", "x", "--stop", broken),
            ("run", "tree.json", "--prompt", "x", "--device", broken),
            ("export", "tree.json", "--to", "llama-cpp", "--draft-model", broken),
            ("export", "tree.json", "--to", "medusa", "--list-name", broken),
            ("show", "tree.json", "--name", broken),
            ("profile", "--rules", broken),
        ):
            assert "expected UTF-8 text. Got the byte 0xff after 1 characters." in refused(*command, code=2), command


class TestTexts:
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
        for found in (line, refused("show", "tree.json")):
            assert control not in found

    def test_what_is_written_can_be_read_whatever_the_names_are(self, files: Path) -> None:
        strange = os.fsdecode(b"p\xff\x1b.yaml")
        (files / "profile.yaml").rename(strange)
        assert call("solve", "--profile", strange, "--save", "s.npz").exit_code == 0
        assert call("show", "tree.json").exit_code == 0
        named = replace(invented(), pair=replace(invented().pair, target=os.fsdecode(b"a\xff"), draft="b\x1b[31m"))
        named.save("named.yaml")
        assert Profile.load("named.yaml").pair.draft == "b\\x1b[31m"
        assert call("solve", "--profile", "named.yaml").exit_code == 0

    def test_one_thread_is_one(self, files: Path) -> None:
        one = replace(invented(), machine=replace(invented().machine, threads=1))
        saved(files, one)
        assert "invented (1 thread): " in call("solve").stdout

    def test_csv_of_acceptance_is_refused(self, files: Path) -> None:
        (files / "x.csv").write_text("rank,depth,rate\n0,1,0.8\n")
        (files / "t.csv").write_text("tokens,seconds\n1,0.1\n2,0.1\n")
        line = refused(
            "profile", "-o", "p.yaml", "--latency", "t.csv", "--draft-latency", "t.csv", "--acceptance", "x.csv"
        )
        assert "x.csv: content: expected acceptance as one of acceptance-vector" in line
        assert "Got text that begins with 'rank,depth,rate'" in line


class TestRun:
    """With the bundled pair, which was trained on texts of 1,024 tokens, one a character."""

    @pytest.fixture(autouse=True)
    def chain(self, folder: Path) -> None:
        del folder
        TokenTree([-1, 0]).save("tree.json")

    def test_the_default_takes_what_room_there_is(self) -> None:
        result = call("run", "tree.json", "--prompt", "x" * 1015)
        assert result.exit_code == 0, result.stderr
        (told,) = re.findall(r"^(\d+) tokens? in", result.stderr, re.MULTILINE)
        assert 1 <= int(told) <= 9

    def test_a_prompt_that_leaves_no_room_is_told_what_is_the_most(self) -> None:
        line = refused("run", "tree.json", "--prompt", "x" * 6000)
        assert re.search(r"--prompt: expected at most 1023 tokens, .* Got 6000: give a shorter one\.", line)

    def test_more_than_there_is_room_for_is_refused(self) -> None:
        line = refused("run", "tree.json", "--prompt", "x" * 1000, "--max-new-tokens", 100)
        assert re.search(r"--max-new-tokens: expected at most 24 after a prompt of 1000 tokens, .* Got 100: ask", line)

    def test_an_empty_prompt_is_refused_by_its_option(self) -> None:
        assert refused("run", "tree.json", "--prompt", "").startswith("Error: --prompt: expected at least one token")


@pytest.mark.usefixtures("files")
class TestInputsThatAreNoFiles:
    @pytest.fixture
    def pipe(self) -> Path:
        os.mkfifo("pipe")
        return Path("pipe")

    @pytest.mark.parametrize("command", [("import",), ("show",), ("compare",), ("run", "--prompt", "x")])
    def test_devices(self, command: tuple[str, ...]) -> None:
        assert "/dev/zero: is a device. Expected a file, or a pipe." in refused(*command, "/dev/zero")

    def test_devices_in_the_place_of_other_files(self) -> None:
        for command in (
            ("solve", "--profile", "/dev/zero"),
            ("export", "tree.json", "--to", "sglang", "--record", "/dev/zero"),
            ("export", "/dev/zero", "--to", "vllm"),
        ):
            assert "/dev/zero: " in refused(*command)

    def test_a_pipe_that_nobody_writes_into(self, pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pipes, "WRITER_WAIT_S", 0.05)
        for command in (("import",), ("show",), ("compare",), ("solve", "--profile")):
            assert "expected a pipe with a writer" in refused(*command, pipe)

    def test_a_pipe_is_read_once_whatever_is_in_it(self, pipe: Path) -> None:
        assert call("solve", "-o", "best.json", "--save", "solution.npz").exit_code == 0
        for command, name in (
            (("import", pipe, "-o", "new.json"), "tree.json"),
            (("import", pipe, "--budget", 4, "-o", "new.json"), "solution.npz"),
            (("show", pipe), "tree.json"),
            (("compare", pipe), "tree.json"),
            (("solve", "--profile", pipe, "-o", "again.json"), "profile.yaml"),
        ):
            writer = threading.Thread(target=pipe.write_bytes, args=(Path(name).read_bytes(),), daemon=True)
            writer.start()
            result = call(*command)
            assert result.exit_code == 0, (command, result.output)
            writer.join(5)
        assert load("again.json") == load("best.json")
        assert load("new.json").nodes == 4

    def test_an_export_needs_a_file_that_can_be_read_again(self, pipe: Path) -> None:
        line = refused("export", pipe, "--to", "nxdi")
        assert "pipe: expected a file, because its checksum is noted" in line

    @pytest.mark.process
    def test_standard_input_and_process_substitution(self) -> None:
        line = f'"{sys.executable}" -m treeopt import /dev/stdin -o - <tree.json; "{sys.executable}" -m treeopt import <(cat tree.json) -o -'
        done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=False)
        assert done.stdout == 2 * Path("tree.json").read_bytes(), done.stderr
