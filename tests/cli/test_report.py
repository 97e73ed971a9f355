"""`treeopt report`: files in any order, told apart by what they hold, and one line for what they do not."""

from pathlib import Path

import pytest

from tests.cli.invented import call, invented, saved
from tests.support.pages import BATCHES, ENGINE, HEADING, Page, bench_of, planned
from treeopt.records.bench_file import BenchFile
from treeopt.trees import TokenTree


@pytest.fixture
def files(folder: Path) -> Path:
    saved(folder, invented())
    TokenTree([-1, 0, 0, 1]).save(folder / "tree.json")
    (folder / "bench.json").write_text(BenchFile(HEADING, bench_of(planned(), 1.5)).text)
    (folder / "engine.json").write_text(f"[{BenchFile(HEADING, ENGINE).text}]")
    (folder / "batches.json").write_text(BenchFile(HEADING, BATCHES).text)
    return folder


def test_files_come_in_any_order(files: Path) -> None:
    pages = []
    for names in (
        ("profile.yaml", "tree.json", "bench.json", "engine.json", "batches.json"),
        ("batches.json", "bench.json", "engine.json", "tree.json", "profile.yaml"),
    ):
        result = call("report", *names, "-o", "page.html")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.endswith("Written to page.html\n")
        pages.append((files / "page.html").read_text())
    assert pages[0] == pages[1]
    seen = Page(pages[0])
    assert seen.texts("h1", id="answer-sentence") == [""]
    assert "1.50x plain decoding measured" in seen.texts("bdi")[1]
    assert {"tree-0", "engine-0", "benches", "batch-0"} <= set(seen.attributes("figure", "id"))


def test_without_files_it_is_the_profile_of_the_folder(files: Path) -> None:
    assert call("report").exit_code == 0
    assert "Fastest on this machine" in (files / "report.html").read_text()
    assert call("report").exit_code == 0  # its own page may be written again
    (files / "profile.yaml").unlink()
    missing = call("report")
    assert missing.exit_code == 1
    assert missing.stderr.count("\n") == 1
    assert "Run treeopt profile first" in missing.stderr


def test_a_page_goes_to_standard_output(files: Path) -> None:
    result = call("report", "tree.json", "-o", "-")
    assert result.exit_code == 0
    assert result.stdout.startswith("<!doctype html>")
    assert not (files / "report.html").exists()


def test_what_was_asked_for_is_planned(files: Path) -> None:
    call("report", "--budget", "4", "-o", "four.html")
    call("report", "--depth", "1", "-o", "one.html")
    assert "No tree of up to 4 nodes" in (files / "four.html").read_text()
    assert "and depth 1" in (files / "one.html").read_text()


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (
            '{"tool": "treeopt 1", "load": {}}',
            1,
            "expected what treeopt bench --output writes. Is it of another command",
        ),
        ('{"tool": "treeopt 1", "rows": [', 1, "expected JSON"),
        ('{"tool": "treeopt 1", "bench": "drift"}', 1, "bench: expected one of tree"),
        ("format: treeopt-profile\nversion: 1\nmachine: 3\n", 2, "expected one profile"),
        ("hello", 1, "x: "),
    ],
)
def test_what_it_cannot_show_is_one_line(files: Path, content: str, code: int, said: str) -> None:
    (files / "x").write_text(content)
    result = call("report", "profile.yaml", "x", "-o", "page.html")
    assert result.exit_code == code
    assert said in result.stderr
    assert code == 2 or result.stderr.count("\n") == 1
    assert not (files / "page.html").exists()


@pytest.mark.usefixtures("files")
def test_planning_options_need_a_profile() -> None:
    result = call("report", "tree.json", "--budget", 4, "-o", "page.html")
    assert result.exit_code == 2
    assert "--budget: expected a profile to plan from" in result.stderr


@pytest.mark.usefixtures("files")
def test_no_input_is_replaced() -> None:
    assert call("report", "tree.json", "-o", "tree.json").exit_code == 2
