"""`treeopt show` on tree files, solution files and profiles, recognised by content."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cli.invented import FOUR_CONDITIONS, TABLE, invented, refused, saved, solved, succeed
from treeopt.solver import solve
from treeopt.trees import load_file


@pytest.fixture(scope="module")
def solved_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solved")
    with pytest.MonkeyPatch.context() as inside:
        inside.chdir(folder)
        solved(folder, invented(), "--save", "solution.npz")
    return folder


@pytest.fixture
def solution_and_tree(folder: Path, solved_folder: Path) -> Path:
    """Return a folder with `tree.json` and `solution.npz` of `treeopt solve`."""
    return Path(shutil.copytree(solved_folder, folder, dirs_exist_ok=True))


@pytest.mark.usefixtures("solution_and_tree")
@pytest.mark.parametrize(
    ("options", "nodes", "depth"),
    [
        ((), 32, 4),
        (("--budget", 7), 7, 4),
        (("--depth", 2), 32, 2),
        (("--budget", 9, "--depth", 1), 9, 1),
    ],
    ids=str,
)
def test_solution_file_contains_every_tree(options: tuple[object, ...], nodes: int, depth: int) -> None:
    succeed("show", "solution.npz", *options, "--output", "chosen.json")
    chosen = load_file("chosen.json")
    assert chosen.tree == solve(TABLE, 32).tree(nodes, depth)
    assert chosen.reach == pytest.approx(TABLE.reach(chosen.tree), rel=1e-5)
    assert chosen.provenance is not None
    assert chosen.provenance.source == "solution.npz"
    assert chosen.provenance.tokens_per_step == pytest.approx(TABLE.expected_tokens(chosen.tree))


def test_files_are_recognised_by_content(solution_and_tree: Path) -> None:
    succeed("show", "tree.json", "--output", "copy.json")
    assert Path("copy.json").read_bytes() == Path("tree.json").read_bytes()
    (solution_and_tree / "solution.npz").rename("solution.json")
    (solution_and_tree / "tree.json").rename("tree.npz")
    assert succeed("show", "solution.json", "--budget", 5).stdout.startswith("5 nodes, depth")
    assert "depth" in succeed("show", "tree.npz").stdout
    succeed("show", "solution.json", "--budget", 5, "--output", "tree.svg")
    assert Path("tree.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda text: "# measured again after an update of the driver\n" * 10 + text,
        lambda text: "\ufeff" + text.replace("\n", "\r\n"),
        lambda text: yaml.safe_dump(yaml.safe_load(text), sort_keys=True),
        lambda text: json.dumps(yaml.safe_load(text)),
        lambda text: json.dumps(yaml.safe_load(text), sort_keys=True, indent=2),
    ],
    ids=["comment", "Windows", "sorted", "JSON", "sorted JSON"],
)
def test_rewritten_profile_is_recognised(folder: Path, rewrite: Callable[[str], str]) -> None:
    saved(folder, invented())
    times = succeed("show", "profile.yaml").stdout
    (folder / "rewritten").write_text(rewrite((folder / "profile.yaml").read_text()), "utf-8", newline="")
    assert succeed("show", "rewritten").stdout == times
    assert "Got a profile" in refused("import", "rewritten")


def test_times_and_acceptance_of_a_profile_are_drawn(folder: Path) -> None:
    saved(folder, invented(conditions=FOUR_CONDITIONS))
    assert "verification, 4096 tokens of context, batch of 16" in succeed("show", "profile.yaml").stdout
    assert "accepted, %: sequoia at temperature 0" in succeed("show", "profile.yaml", "--acceptance").stdout
    for options in (("-o", "times.svg"), ("--acceptance", "-o", "acceptance.svg")):
        succeed("show", "profile.yaml", *options)
    assert (folder / "times.svg").read_bytes() != (folder / "acceptance.svg").read_bytes()
