"""The output that a command names is replaced; what it reads, and files that nobody named, are not."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.invented import call, invented, saved
from treeopt.trees import TokenTree

FOREIGN = "the only copy of somebody's work\n"
REFUSAL = "exists, and no option names it. Replace it with --force, or move it away."
CHECKPOINT = "exists, and holds what an interrupted run measured. Continue with --resume, or start over with --force."


@pytest.fixture
def files(folder: Path) -> Path:
    """Make a profile, a tree, and files of the user's own."""
    saved(folder, invented())
    TokenTree([-1, 0, 0, 1]).save(folder / "tree.json")
    for name in ("mine", "mine.svg", "mine.json"):
        (folder / name).write_text(FOREIGN)
    return folder


def contents() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.usefixtures("files")
def test_the_named_output_is_replaced() -> None:
    commands = [
        ("show", "tree.json", "-o", "mine.svg"),
        ("show", "tree.json", "-o", "mine.json"),
        ("import", "tree.json", "-o", "mine"),
        ("solve", "-o", "mine"),
        ("solve", "--save", "mine"),
        ("solve", "--plot", "mine.svg"),
        ("export", "tree.json", "--to", "nxdi", "-o", "mine"),
    ]
    for command in commands:
        assert call(*command).exit_code == 0, command
        assert FOREIGN.encode() not in Path(command[-1]).read_bytes()
        Path(command[-1]).write_text(FOREIGN)
        assert call(*command, *(["--force"] if command[0] == "export" else [])).exit_code == 0, command
        assert FOREIGN.encode() not in Path(command[-1]).read_bytes()


@pytest.mark.usefixtures("files")
def test_default_outputs_are_replaced() -> None:
    for _ in range(2):
        assert call("solve").exit_code == 0


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    "name", ["other.yaml.partial", "other.yaml.partial.1", "other.yaml.record.partial", "other.record.npz"]
)
def test_files_beside_a_profile_are_replaced_with_force_only(name: str) -> None:
    Path(name).write_text(FOREIGN)
    before = contents()
    result = call("profile", "-o", "other.yaml", "--record")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"Error: {name}: {CHECKPOINT if '.partial' in name else REFUSAL}\n"
    assert contents() == before
    with_force = call("profile", "-o", "other.yaml", "--record", "--force", "--lossy", "--rules", "none")
    assert "exists" not in with_force.stderr  # the next check speaks


@pytest.mark.usefixtures("files")
def test_what_is_read_is_never_written_over() -> None:
    Path("curve.csv").write_text("tokens,seconds\n1,0.1\n")
    Path("link.json").symlink_to("tree.json")
    Path("hard.json").hardlink_to("tree.json")
    Path("prompts.txt").write_text("a\n\nb\n\nc\n")
    commands = [
        ("show", "tree.json", "-o", "tree.json"),
        ("show", "link.json", "-o", "tree.json"),
        ("show", "tree.json", "-o", "hard.json"),
        ("import", "tree.json", "-o", "./tree.json"),
        ("solve", "-o", "profile.yaml"),
        ("solve", "--save", "profile.yaml"),
        ("export", "tree.json", "--to", "nxdi", "-o", "tree.json"),
        ("export", "tree.json", "--to", "vllm", "-o", "profile.yaml"),
        ("profile", "-o", "prompts.txt", "--prompts", "prompts.txt"),
        ("profile", "-o", "curve.csv", "--latency", "curve.csv"),
        ("bench", "tree", "tree.json", "-o", "tree.json"),
        ("bench", "tree", "tree.json", "-o", "profile.yaml"),
    ]
    before = contents()
    for command in commands:
        result = call(*command)
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert "is read, and would be overwritten. Choose another name." in result.stderr, command
        assert contents() == before, command


@pytest.mark.usefixtures("files")
def test_two_outputs_are_two_files() -> None:
    commands = [
        ("solve", "-o", "a.json", "--save", "./a.json"),
        ("solve", "--save", "a.svg", "--plot", "a.svg"),
        ("profile", "-o", "a.yaml", "--record", "a.yaml.partial"),
        ("bench", "grid", "-o", "a.svg", "--plot", "a.svg"),
    ]
    before = contents()
    for command in commands:
        result = call(*command)
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert "expected a different file for each. Got" in result.stderr, command
        assert contents() == before, command
    for command in (("solve", "--save", "-"), ("solve", "--plot", "-"), ("bench", "grid", "--plot", "-")):
        result = call(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "expected a file. Got -, standard output." in result.stderr


@pytest.mark.usefixtures("files")
def test_streams_and_devices_stay_possible() -> None:
    for command in (
        ("show", "tree.json", "-o", "-"),
        ("import", "tree.json", "-o", "/dev/null"),
        ("solve", "-o", "/dev/null", "--save", "/dev/null"),
        ("export", "tree.json", "--to", "vllm", "-o", "/dev/null"),
    ):
        assert call(*command).exit_code == 0, command
    assert not Path("/dev/null.provenance.json").exists()


class TestExports:
    @pytest.mark.usefixtures("files")
    def test_decoding_code_of_ones_own_is_spared(self) -> None:
        own = Path("ex/custom_generate/generate.py")
        own.parent.mkdir(parents=True)
        own.write_text(FOREIGN)
        assert call("export", "profile.yaml", "--to", "hf", "-o", "ex/a.json").exit_code == 0
        assert own.read_text() == FOREIGN

    @pytest.mark.usefixtures("files")
    def test_two_exports_into_one_folder_keep_to_themselves(self) -> None:
        Path("ex").mkdir()
        saying = [
            call("export", "tree.json", "--to", "hf", "-o", f"ex/{name}") for name in ("a.json", "b.json", "a.txt")
        ]
        assert 'custom_generate="ex/a.json.hf"' in saying[0].stdout
        first = Path("ex/a.json.hf/custom_generate/generate.py").read_text()
        assert "[-1, 0, 0, 1]" in first
        TokenTree([-1, 0]).save("tree.json")
        assert call("export", "tree.json", "--to", "hf", "-o", "ex/b.json", "--force").exit_code == 0
        assert Path("ex/a.json.hf/custom_generate/generate.py").read_text() == first
        assert "[-1, 0]" in Path("ex/b.json.hf/custom_generate/generate.py").read_text()

    @pytest.mark.usefixtures("files")
    def test_every_file_is_named_after_the_one_that_was_asked_for(self) -> None:
        before = set(contents())
        for name in ("vllm", "sglang", "llama-cpp", "eagle", "hf", "nxdi"):
            written = f"p.{name}"
            result = call("export", "profile.yaml", "--to", name, "-o", written)
            new = set(contents()) - before
            assert all(str(path).startswith(written) for path in new), new
            assert all(str(path) in result.stdout for path in new), new
            before |= new

    @pytest.mark.usefixtures("files")
    @pytest.mark.parametrize("name", ["e.json.synthetic.json", "e.json.provenance.json"])
    def test_side_files_are_replaced_with_force_only(self, name: str) -> None:
        Path(name).write_text(FOREIGN)
        before = contents()
        command = ("export", "profile.yaml", "--to", "vllm", "-o", "e.json")
        result = call(*command)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"Error: {name}: {REFUSAL}\n"
        assert contents() == before
        assert call(*command, "--force").exit_code == 0
        assert FOREIGN.encode() not in Path(name).read_bytes()

    @pytest.mark.usefixtures("files")
    def test_an_input_is_not_replaced_even_with_force(self) -> None:
        shutil.copy("profile.yaml", "e.json.synthetic.json")
        before = contents()
        result = call("export", "e.json.synthetic.json", "--to", "vllm", "-o", "e.json", "--force")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "is read, and would be overwritten" in result.stderr
        assert contents() == before

    @pytest.mark.usefixtures("files")
    def test_the_sidecar_lists_every_file(self) -> None:
        assert call("export", "profile.yaml", "--to", "vllm", "-o", "a.json").exit_code == 0
        sidecar = json.loads(Path("a.json.provenance.json").read_text())
        assert set(sidecar["files"]) == {"a.json", "a.json.synthetic.json"}
