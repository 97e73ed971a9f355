"""`treeopt report`: files in any order, recognised by content."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import call, invented, refused, saved, succeed
from tests.support.pages import BATCHES, ENGINE, HEADING, Page, bench_of, planned
from treeopt.records.bench_file import BenchFile
from treeopt.trees import TokenTree

NAMES = ["profile.yaml", "tree.json", "bench.json", "engine.json", "batches.json"]


@pytest.fixture(autouse=True)
def files(folder: Path) -> Path:
    saved(folder, invented())
    TokenTree([-1, 0, 0, 1]).save(folder / "tree.json")
    (folder / "bench.json").write_text(BenchFile(HEADING, bench_of(planned(), 1.5)).text)
    (folder / "engine.json").write_text(f"[{BenchFile(HEADING, ENGINE).text}]")
    (folder / "batches.json").write_text(BenchFile(HEADING, BATCHES).text)
    return folder


def test_page_does_not_depend_on_the_order_of_files(files: Path) -> None:
    pages = []
    for names in (NAMES, NAMES[::-1]):
        result = succeed("report", *names, "-o", "page.html")
        assert (result.stdout, result.stderr[-21:]) == ("", "Written to page.html\n")
        pages.append((files / "page.html").read_text())
    assert pages[0] == pages[1]
    page = Page(pages[0])
    assert page.texts("h1", id="answer-sentence") == [""]
    assert "1.50x plain decoding measured" in page.texts("bdi")[1]
    assert {"tree-0", "engine-0", "benches", "batch-0"} <= set(page.attributes("figure", "id"))


def test_bench_rewritten_by_another_program_is_recognised(files: Path) -> None:
    succeed("report", "bench.json", "-o", "page.html")
    expected = (files / "page.html").read_bytes()
    content = json.loads((files / "bench.json").read_text())
    (files / "bench.json").write_text("\ufeff" + json.dumps(content, sort_keys=True), "utf-8")
    succeed("report", "bench.json", "-o", "page.html")
    assert (files / "page.html").read_bytes() == expected


def test_default_is_the_profile_of_the_folder(files: Path) -> None:
    succeed("report", "--budget", "4", "--depth", "1")
    page = (files / "report.html").read_text()
    assert "Fastest on this machine" in page
    assert "No tree of up to 4 nodes and depth 1" in page
    (files / "profile.yaml").unlink()
    assert "Run treeopt profile first" in refused("report")


def test_page_goes_to_standard_output(files: Path) -> None:
    assert succeed("report", "tree.json", "-o", "-").stdout.startswith("<!doctype html>")
    assert not (files / "report.html").exists()


@pytest.mark.parametrize(
    ("content", "code", "reason"),
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
def test_other_files_are_refused(files: Path, content: str, code: int, reason: str) -> None:
    (files / "x").write_text(content)
    assert reason in refused("report", "profile.yaml", "x", "-o", "page.html", code=code)


def test_planning_options_need_a_profile() -> None:
    line = refused("report", "tree.json", "--budget", 4, "-o", "page.html", code=2)
    assert "--budget: expected a profile to plan from" in line
    assert call("report", "tree.json", "-o", "page.html").exit_code == 0
