"""`treeopt show` on tree files and solution files, told apart by what is in them."""

import zipfile
from pathlib import Path

import pytest

from tests.cli.invented import TABLE, call, invented, solved
from treeopt.solver import solve
from treeopt.trees import load, load_file


@pytest.fixture(autouse=True)
def solution_and_tree(folder: Path) -> None:
    """Leave `tree.json` and `solution.npz` in the folder, as `treeopt solve` does."""
    solved(folder, invented(), "--save", "solution.npz")


class TestSolutionFile:
    @pytest.mark.parametrize(
        ("asked", "nodes", "depth"),
        [
            ((), 32, 4),
            (("--budget", 7), 7, 4),
            (("--depth", 2), 32, 2),
            (("--budget", 32, "--depth", 4), 32, 4),
            (("--budget", 9, "--depth", 1), 9, 1),
        ],
        ids=str,
    )
    def test_any_tree_is_taken_out(self, folder: Path, asked: tuple[object, ...], nodes: int, depth: int) -> None:
        result = call("show", "solution.npz", *asked, "--output", "taken.json")

        taken = load_file(folder / "taken.json")
        assert result.exit_code == 0, result.output
        assert taken.tree == solve(TABLE, 32).tree(nodes, depth)
        assert taken.reach == pytest.approx(TABLE.reach(taken.tree), rel=1e-5)
        assert taken.provenance is not None
        assert taken.provenance.source == "solution.npz"
        assert taken.provenance.tokens_per_step == pytest.approx(TABLE.expected_tokens(taken.tree))

    def test_as_text_and_as_picture(self, folder: Path) -> None:
        text = call("show", "solution.npz", "--budget", 5)
        picture = call("show", "solution.npz", "--budget", 5, "--output", "tree.svg")

        assert text.stdout.startswith("5 nodes, depth")
        assert picture.exit_code == 0
        assert (folder / "tree.svg").read_bytes().startswith(b"<?xml")

    def test_it_is_known_by_its_content(self, folder: Path) -> None:
        (folder / "solution.npz").rename(folder / "solution.json")
        (folder / "tree.json").rename(folder / "tree.npz")

        assert call("show", "solution.json", "--budget", 5).stdout.startswith("5 nodes")
        assert call("show", "tree.npz").exit_code == 0

    @pytest.mark.parametrize(("option", "asked", "most"), [("--budget", 33, 32), ("--depth", 5, 4)])
    def test_more_than_was_solved(self, folder: Path, option: str, asked: int, most: int) -> None:
        result = call("show", "solution.npz", option, asked, "--output", "taken.json")

        assert result.exit_code == 1
        assert f"{option}: solution.npz was solved up to {most}. Got {asked}" in result.stderr
        assert not (folder / "taken.json").exists()

    def test_another_archive_is_refused(self, folder: Path) -> None:
        with zipfile.ZipFile(folder / "other.zip", "w") as archive:
            archive.writestr("readme", "nothing to see")
        result = call("show", "other.zip")

        assert result.exit_code == 1
        assert result.stderr.startswith("Error: other.zip: ")

    def test_a_broken_one_is_refused(self, folder: Path) -> None:
        whole = (folder / "solution.npz").read_bytes()
        (folder / "solution.npz").write_bytes(whole[: len(whole) // 2])
        result = call("show", "solution.npz")

        assert result.exit_code == 1
        assert len(result.stderr.splitlines()) == 1
        assert "solution.npz" in result.stderr


class TestTreeFile:
    def test_it_can_be_copied_as_it_is(self, folder: Path) -> None:
        assert call("show", "tree.json", "--output", "copy.json").exit_code == 0
        assert (folder / "copy.json").read_bytes() == (folder / "tree.json").read_bytes()
        assert load(folder / "copy.json") == load(folder / "tree.json")

    @pytest.mark.parametrize("option", ["--budget", "--depth"])
    def test_sizes_are_for_solution_files(self, folder: Path, option: str) -> None:
        result = call("show", "tree.json", option, 2, "--output", "taken.json")

        assert result.exit_code == 2
        assert "choose a tree" in result.stderr
        assert not (folder / "taken.json").exists()

    def test_rows_need_a_text_diagram(self, folder: Path) -> None:
        result = call("show", "tree.json", "--rows", 9, "--output", "tree.svg")

        assert result.exit_code == 2
        assert "--rows: expected a tree drawn as text" in result.stderr
        assert not (folder / "tree.svg").exists()

    @pytest.mark.parametrize("asked", [(), ("--budget", 3)], ids=str)
    def test_a_missing_file_is_missing_whatever_is_asked_of_it(self, folder: Path, asked: tuple[object, ...]) -> None:
        result = call("show", folder / "missing.npz", *asked)

        assert result.exit_code == 1
        assert "no such file" in result.stderr

    @pytest.mark.parametrize("name", ["tree.jpg", "tree"])
    def test_other_suffixes_are_refused_first(self, folder: Path, name: str) -> None:
        result = call("show", "missing.json", "--output", name)

        assert result.exit_code == 1
        assert ".svg, .png, .pdf" in result.stderr
        assert ".json" in result.stderr
        assert not (folder / name).exists()
