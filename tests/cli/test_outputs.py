"""Outputs that a command names are replaced; its inputs, and files that no option names, are not."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.invented import invented, refused, saved, succeed
from treeopt.trees import TokenTree

FOREIGN = "the only copy of somebody's work\n"
REFUSAL = "exists, and no option names it. Replace it with --force, or move it away."
CHECKPOINT = "exists, and holds what an interrupted run measured. Continue with --resume, or start over with --force."


@pytest.fixture(autouse=True)
def files(folder: Path) -> Path:
    """Write a profile, a tree, and files of the user."""
    saved(folder, invented())
    TokenTree([-1, 0, 0, 1]).save(folder / "tree.json")
    for name in ("mine", "mine.svg", "mine.json"):
        (folder / name).write_text(FOREIGN)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "show tree.json -o mine.svg",
        "show tree.json -o mine.json",
        "import tree.json -o mine",
        "solve -o mine",
        "solve --save mine",
        "solve --plot mine.svg",
        "export tree.json --to nxdi -o mine",
    ],
)
def test_named_output_is_replaced(command: str) -> None:
    succeed(*command.split())
    assert FOREIGN.encode() not in Path(command.split()[-1]).read_bytes()


def test_default_outputs_are_replaced() -> None:
    for _ in range(2):
        succeed("solve")
        succeed("report")


@pytest.mark.parametrize(
    "name", ["other.yaml.partial", "other.yaml.partial.1", "other.yaml.record.partial", "other.record.npz"]
)
def test_side_files_of_a_profile_are_replaced_with_force_only(name: str) -> None:
    Path(name).write_text(FOREIGN)
    reason = CHECKPOINT if ".partial" in name else REFUSAL
    assert refused("profile", "-o", "other.yaml", "--record") == f"Error: {name}: {reason}"
    later = ("--rounds", 9, "--time-budget", "9s")  # refused after the outputs were checked
    assert "--time-budget" in refused("profile", "-o", "other.yaml", "--record", "--force", *later, code=2)


@pytest.mark.parametrize(
    "command",
    [
        "show tree.json -o tree.json",
        "show link.json -o tree.json",
        "show tree.json -o hard.json",
        "import tree.json -o ./tree.json",
        "solve -o profile.yaml",
        "solve --save profile.yaml",
        "report tree.json -o tree.json",
        "export tree.json --to nxdi -o tree.json",
        "export tree.json --to vllm -o profile.yaml",
        "profile -o prompts.txt --prompts prompts.txt",
        "profile -o curve.csv --latency curve.csv",
        "run tree.json --prompts prompts.txt -o prompts.txt",
        "bench tree tree.json -o profile.yaml",
    ],
)
def test_inputs_are_never_replaced(command: str) -> None:
    Path("curve.csv").write_text("tokens,seconds\n1,0.1\n")
    Path("link.json").symlink_to("tree.json")
    Path("hard.json").hardlink_to("tree.json")
    Path("prompts.txt").write_text("a\n\nb\n\nc\n")
    assert "is read, and would be overwritten. Choose another name." in refused(*command.split(), code=2)


@pytest.mark.parametrize(
    "command",
    [
        "solve -o a.json --save ./a.json",
        "solve --save a.svg --plot a.svg",
        "profile -o a.yaml --record a.yaml.partial",
        "bench grid -o a.svg --plot a.svg",
    ],
)
def test_two_outputs_need_two_files(command: str) -> None:
    assert "expected a different file for each. Got" in refused(*command.split(), code=2)


@pytest.mark.parametrize(
    "command",
    ["import tree.json -o /dev/null", "solve -o /dev/null --save /dev/null", "export tree.json --to vllm -o /dev/null"],
)
def test_devices_are_valid_outputs(command: str) -> None:
    succeed(*command.split())
    assert not Path("/dev/null.provenance.json").exists()


class TestExports:
    def test_two_exports_into_one_folder_are_independent(self) -> None:
        own = Path("ex/custom_generate/generate.py")
        own.parent.mkdir(parents=True)
        own.write_text(FOREIGN)
        first, _ = (succeed("export", "tree.json", "--to", "hf", "-o", f"ex/{name}.json") for name in "ab")
        assert 'custom_generate="ex/a.json.hf"' in first.stdout
        code = Path("ex/a.json.hf/custom_generate/generate.py").read_text()
        assert "[-1, 0, 0, 1]" in code
        TokenTree([-1, 0]).save("tree.json")
        succeed("export", "tree.json", "--to", "hf", "-o", "ex/b.json", "--force")
        assert Path("ex/a.json.hf/custom_generate/generate.py").read_text() == code
        assert "[-1, 0]" in Path("ex/b.json.hf/custom_generate/generate.py").read_text()
        assert own.read_text() == FOREIGN

    @pytest.mark.parametrize("name", ["vllm", "sglang", "llama-cpp", "eagle", "hf", "nxdi"])
    def test_every_file_begins_with_the_name_of_the_output_and_is_printed(self, files: Path, name: str) -> None:
        before = set(files.rglob("*"))
        result = succeed("export", "profile.yaml", "--to", name, "-o", "out")
        new = [str(path.relative_to(files)) for path in set(files.rglob("*")) - before if path.is_file()]
        assert all(path.startswith("out") and path in result.stdout for path in new), new

    @pytest.mark.parametrize("name", ["e.json.synthetic.json", "e.json.provenance.json"])
    def test_side_files_are_replaced_with_force_only(self, name: str) -> None:
        Path(name).write_text(FOREIGN)
        command = ("export", "profile.yaml", "--to", "vllm", "-o", "e.json")
        assert refused(*command) == f"Error: {name}: {REFUSAL}"
        succeed(*command, "--force")
        assert FOREIGN.encode() not in Path(name).read_bytes()

    def test_an_input_is_not_replaced_even_with_force(self) -> None:
        shutil.copy("profile.yaml", "e.json.synthetic.json")
        command = ("export", "e.json.synthetic.json", "--to", "vllm", "-o", "e.json", "--force")
        assert "is read, and would be overwritten" in refused(*command, code=2)

    def test_sidecar_lists_every_file(self) -> None:
        succeed("export", "profile.yaml", "--to", "vllm", "-o", "a.json")
        sidecar = json.loads(Path("a.json.provenance.json").read_text())
        assert set(sidecar["files"]) == {"a.json", "a.json.synthetic.json"}
