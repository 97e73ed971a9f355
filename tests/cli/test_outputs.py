"""No output destroys what treeopt did not write, what the same command reads, or another of its outputs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import call, invented, saved
from tests.support.pages import HEADING
from treeopt.cli.outputs import Named, check_outputs
from treeopt.errors import TreeoptError
from treeopt.files.marks import written_by_treeopt
from treeopt.records.results import NotRun
from treeopt.report.methods_bench import methods_json
from treeopt.trees import TokenTree, save_figure

FOREIGN = "the only copy of somebody's work\n"
REFUSAL = "exists, and treeopt did not write it. Name another file, or remove it first."


@pytest.fixture
def files(folder: Path) -> Path:
    """Leave a profile, a tree, and a file of the user's own under every name that commands might write."""
    saved(folder, invented())
    TokenTree([-1, 0, 0, 1]).save(folder / "tree.json")
    for name in ("mine", "mine.svg", "mine.json", "mine.yaml.partial", "mine.yaml.record.npz"):
        (folder / name).write_text(FOREIGN)
    return folder


def contents() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


@pytest.mark.usefixtures("files")
def test_every_output_of_every_command_spares_a_users_file() -> None:
    commands = [
        ("show", "tree.json", "-o", "mine.svg"),
        ("show", "tree.json", "-o", "mine.json"),
        ("import", "tree.json", "-o", "mine"),
        ("solve", "-o", "mine"),
        ("solve", "--save", "mine"),
        ("solve", "--plot", "mine.svg"),
        ("export", "tree.json", "--to", "nxdi", "-o", "mine"),
        ("export", "profile.yaml", "--to", "vllm", "-o", "mine"),
        ("profile", "-o", "mine"),
        ("profile", "-o", "mine.yaml"),
        ("profile", "-o", "other.yaml", "--record", "mine"),
        ("bench", "tree.json", "-o", "mine"),
        ("bench", "--grid", "-o", "mine"),
        ("bench", "--grid", "--plot", "mine.svg"),
        ("bench", "--systems", "plain", "-o", "mine"),
        ("bench", "--systems", "plain", "--plot", "mine.svg"),
    ]
    before = contents()
    for command in commands:
        result = call(*command)
        assert (result.exit_code, result.stdout) == (1, ""), command
        assert result.stderr.count("\n") == 1, command
        assert REFUSAL in result.stderr, command
        assert contents() == before, command


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
        ("bench", "tree.json", "-o", "tree.json"),
        ("bench", "tree.json", "-o", "profile.yaml"),
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
        ("bench", "--grid", "-o", "a.svg", "--plot", "a.svg"),
    ]
    before = contents()
    for command in commands:
        result = call(*command)
        assert (result.exit_code, result.stdout) == (2, ""), command
        assert "expected a different file for each. Got" in result.stderr, command
        assert contents() == before, command
    for command in (("solve", "--save", "-"), ("solve", "--plot", "-"), ("bench", "--grid", "--plot", "-")):
        result = call(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "expected a file. Got -, standard output." in result.stderr


@pytest.mark.usefixtures("files")
def test_what_treeopt_wrote_is_written_again() -> None:
    commands = [
        ("show", "tree.json", "-o", "a.svg"),
        ("show", "tree.json", "-o", "a.png"),
        ("show", "tree.json", "-o", "a.pdf"),
        ("show", "tree.json", "-o", "a.json"),
        ("solve", "-o", "b.json", "--save", "b.npz", "--plot", "b.svg"),
        ("import", "b.json", "-o", "a.json"),
        ("export", "tree.json", "--to", "npz", "-o", "tree.npz"),
        ("export", "tree.json", "--to", "medusa", "-o", "choices.py"),
        ("export", "profile.yaml", "--to", "hf", "-o", "hf.json"),
        ("export", "profile.yaml", "--to", "vllm", "-o", "vllm.json"),
    ]
    Path("empty.json").touch()
    for command in (*commands, *commands, ("show", "tree.json", "-o", "empty.json")):
        assert call(*command).exit_code == 0, command


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


@pytest.mark.usefixtures("files")
def test_a_folder_of_recorded_texts_holds_nothing_else() -> None:
    """Without --resume `profile` begins by deleting it."""
    Path("p.yaml.record.partial").mkdir()
    Path("p.yaml.record.partial/0.npz").write_text(FOREIGN)
    result = call("profile", "-o", "p.yaml")
    assert result.exit_code == 1
    assert "p.yaml.record.partial: exists, and treeopt did not write it." in result.stderr
    assert Path("p.yaml.record.partial/0.npz").read_text() == FOREIGN


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
        assert call("export", "tree.json", "--to", "hf", "-o", "ex/b.json").exit_code == 0
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
    @pytest.mark.parametrize("name", ["e.json", "e.json.synthetic.json", "e.json.provenance.json"])
    def test_a_file_beside_it_is_spared_too(self, name: str) -> None:
        Path(name).write_text(FOREIGN)
        before = contents()
        result = call("export", "profile.yaml", "--to", "vllm", "-o", "e.json")
        assert (result.exit_code, result.stdout) == (1, "")
        assert f"{name}: {REFUSAL}" in result.stderr
        assert contents() == before

    @pytest.mark.usefixtures("files")
    @pytest.mark.parametrize("name", ["e.json", "e.json.synthetic.json"])
    def test_what_was_changed_since_is_the_users_own(self, name: str) -> None:
        assert call("export", "profile.yaml", "--to", "vllm", "-o", "e.json").exit_code == 0
        Path(name).write_text(Path(name).read_text().replace("draft_model", "my_draft_model"))
        result = call("export", "profile.yaml", "--to", "vllm", "-o", "e.json")
        assert result.exit_code == 1
        assert f"{name}: {REFUSAL}" in result.stderr


class TestMarks:
    def test_every_kind_that_treeopt_writes_is_known(self, tmp_path: Path) -> None:
        tree, profile = TokenTree([-1, 0, 0]), invented()
        from treeopt.planner import plan

        tree.save(tmp_path / "tree.json")
        profile.save(tmp_path / "profile.yaml")
        plan(profile, 8).solution.save(tmp_path / "solution.npz")
        rows = methods_json(HEADING, [NotRun(system="medusa", temperature=0.0, reason="no heads")])
        (tmp_path / "bench.json").write_text(rows)
        for suffix in (".svg", ".png", ".pdf"):
            save_figure(tree, tmp_path / f"tree{suffix}")
        (tmp_path / "empty").touch()
        (tmp_path / "p.yaml.partial").write_text('{"conditions": "one machine"}\n["verify", 1, [0.1]]\n')
        for path in tmp_path.iterdir():
            assert written_by_treeopt(path), path

    def test_pictures_of_matplotlib_and_files_like_treeopts_are_not(self, tmp_path: Path) -> None:
        from matplotlib.figure import Figure

        for suffix in (".svg", ".png", ".pdf"):
            Figure().savefig(tmp_path / f"other{suffix}")
        np.savez(tmp_path / "other.npz", format=np.array("mine"), p=np.array([1.0]))
        np.savez(tmp_path / "bare.npz", p=np.array([1.0]))
        (tmp_path / "tool.json").write_text('{"tool": "another", "note": "as treeopt 0.1.0 does"}')
        (tmp_path / "tools.json").write_text('{"tool": "treeoptimist 1.0"}')
        (tmp_path / "late.json").write_text('{"mine": 1, "format": "treeopt-tree"}')
        (tmp_path / "list.json").write_text('["format", "treeopt-tree"]')
        (tmp_path / "conditions.json").write_text('{"conditions": "mine"}')
        (tmp_path / "notes.md").write_text("# format: treeopt-profile\n")
        (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04" + bytes(100))
        for path in tmp_path.iterdir():
            assert not written_by_treeopt(path), path

    def test_a_sidecar_stands_for_what_it_lists_only(self, folder: Path) -> None:
        saved(folder, invented())
        assert call("export", "profile.yaml", "--to", "vllm", "-o", "a.json").exit_code == 0
        sidecar, main, other = Path("a.json.provenance.json"), Path("a.json"), Path("a.json.synthetic.json")
        assert set(json.loads(sidecar.read_text())["files"]) == {main.name, other.name}
        assert written_by_treeopt(main)
        assert written_by_treeopt(sidecar)
        assert not written_by_treeopt(other)  # without being told whose it is
        assert written_by_treeopt(other, sidecar=sidecar)
        shutil.copy(main, "b.json")
        assert not written_by_treeopt(Path("b.json"))
        assert not written_by_treeopt(Path("b.json"), sidecar=sidecar)
        old = json.loads(sidecar.read_text())
        del old["files"]  # as treeopt 0.1.0 wrote it
        sidecar.write_text(json.dumps(old))
        assert written_by_treeopt(main)
        assert not written_by_treeopt(other, sidecar=sidecar)
        sidecar.write_text('{"tool": "another"}')
        assert not written_by_treeopt(main)


def test_a_file_that_cannot_be_read_is_nobodys_to_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("text")

    def refuse(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("treeopt.cli.outputs.written_by_treeopt", refuse)
    with pytest.raises(TreeoptError, match=r"a: exists, and cannot be read \(Permission denied\)"):
        check_outputs([Named("--output", tmp_path / "a")])
