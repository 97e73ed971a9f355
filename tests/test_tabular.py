"""Records as tables: equal keys in all rows, escaped HTML, and SVG of trees."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invented import FOUR_CONDITIONS, invented
from treeopt.planner import plan, schedule, step_model
from treeopt.planner.comparison import compare
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.profile import Profile
from treeopt.report.plan_json import plan_json
from treeopt.solver import solve
from treeopt.tabular import MAX_ROWS, MAX_TEXT, Row, Tabular, table_html, text_html
from treeopt.trees import TokenTree, TreeFile, chain, k_ary

ROOT = Path(__file__).parents[1]
HOSTILE = "<script>alert(1)</script>\"'&</td>\u202etxt.exe\x1b[31m" + "א" * 10_000
ALLOWED = {"p", "table", "thead", "tbody", "tr", "th", "td", "bdi"}


@cache
def profile() -> Profile:
    return Profile.load(ROOT / "docs/profiles/bundled-2-cores-outcomes.yaml")


@cache
def engine_profile() -> Profile:
    return Profile.load(ROOT / "tests/data/profile-engine.yaml")


MAKERS: dict[str, Callable[[], Any]] = {
    "any depth": lambda: AcceptanceTable([0.7, 0.1]),
    "by depth": lambda: profile().acceptances[0].table,
    "by parent": lambda: AcceptanceTable(np.full((2, 3, 2), 0.1)),
    "measured acceptance": lambda: profile().acceptances[0],
    "times": lambda: profile().latencies[0].verify,
    "condition": lambda: profile().latencies[0],
    "profile": profile,
    "profile of an engine": engine_profile,
    "several rules and conditions": lambda: Profile.load(ROOT / "docs/profiles/bundled-2-cores-rules.yaml"),
    "solution": lambda: solve(AcceptanceTable([0.7, 0.1]), 70, 5),
    "plan": lambda: plan(profile(), 32),
    "schedule": lambda: schedule(invented(conditions=FOUR_CONDITIONS), max_nodes=16),
    "comparison": lambda: compare(step_model(profile()), [chain(3), k_ary(2, 3), chain(200)]),
    "tree file": lambda: TreeFile(tree=chain(3), reach=np.array([1, 0.5, 0.4, 0.3])),
    "tree": lambda: k_ary(2, 3),
}


class Tags(HTMLParser):
    """Collects the tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("name", MAKERS)
def test_records_have_equal_keys_plain_values_and_closed_html(name: str) -> None:
    record = MAKERS[name]()
    rows = record.to_records()
    assert rows
    assert {tuple(row) for row in rows} == {tuple(rows[0])}
    assert {type(value) for row in rows for value in row.values()} <= {int, float, str, bool, type(None)}
    json.dumps(rows, allow_nan=False)
    if name.startswith("tree"):  # drawn as SVG
        return
    page = record._repr_html_()
    tags = Tags(page)
    assert "table" in tags.tags
    assert set(tags.tags) <= ALLOWED
    assert tags.attributes <= {"class", "scope", "style"}
    assert len(page) < 20_000
    ET.fromstring(f"<div>{page}</div>")


def test_names_are_escaped() -> None:
    hostile = replace(profile(), pair=replace(profile().pair, target=HOSTILE, draft="</table><img src=x onerror=y>"))

    class Named(Tabular):
        def to_records(self) -> list[Row]:
            return [{"<b>": HOSTILE, "n": 1}]

        def __repr__(self) -> str:
            return HOSTILE

    for record in (hostile, Named()):
        page = record._repr_html_()
        assert set(Tags(page).tags) <= ALLOWED
        assert not re.search("[\u202a-\u202e\x00-\x1f]", page)
    cell = text_html(HOSTILE)
    assert len("".join(Tags(cell).texts)) == MAX_TEXT
    assert cell.startswith("<bdi>&lt;script&gt;")


def test_long_tables_are_shortened() -> None:
    rows = [{"n": number} for number in range(MAX_ROWS + 3)]
    assert "3 more in to_records()" in table_html(rows)
    assert "more" not in table_html(rows[:MAX_ROWS])
    assert table_html([]) == ""


def test_rows_of_times_and_acceptance() -> None:
    table = LatencyTable([1, 4], [Timing([0.2, 0.1, 0.3]), Timing([0.5])])
    assert table.to_records() == [
        {"tokens": 1, "median_s": 0.2, "median_s_low": 0.1, "median_s_high": 0.3, "samples": 3},
        {"tokens": 4, "median_s": 0.5, "median_s_low": 0.5, "median_s_high": 0.5, "samples": 1},
    ]
    known = AcceptanceTable([[0.7], [0.5]], counts=[10, 7], standard_error=[[0.1], [0.1]]).to_records()
    assert [(row["depth"], row["rank"], row["p"], row["positions"]) for row in known] == [
        (1, 0, 0.7, 10),
        (2, 0, 0.5, 7),
    ]
    assert known[1]["p_low"] == pytest.approx(0.5 - 0.1959964, abs=0.02)
    assert AcceptanceTable([0.7]).to_records() == [
        {"depth": None, "parent_rank": None, "rank": 0, "p": 0.7, "p_low": None, "p_high": None, "positions": None}
    ]
    by_parent = AcceptanceTable([[[0.5, 0.1], [0.2, 0.05]]]).to_records()
    assert [(row["parent_rank"], row["rank"], row["p"]) for row in by_parent] == [
        (0, 0, 0.5), (0, 1, 0.1), (1, 0, 0.2), (1, 1, 0.05),
    ]  # fmt: skip


def test_rows_of_a_solution_are_its_trees() -> None:
    solution = solve(AcceptanceTable([0.7, 0.12, 0.05]), 20, 6)
    for row in solution.to_records():
        tree, tokens = solution.tree(row["budget"], 6), solution.expected_tokens[6, row["budget"]]
        assert (row["nodes"], row["depth"], row["tokens_per_step"]) == (tree.nodes, tree.max_depth, tokens)
    assert solution._repr_html_().count("<tr>") == 1 + 6  # 1, 2, 4, 8, 16 and 20


def test_a_plan_as_a_dict_equals_the_output_of_solve() -> None:
    several = Profile.load(ROOT / "docs/profiles/bundled-2-cores-rules.yaml")
    result = plan(several, 32)
    content = result.to_dict()
    printed = json.loads(plan_json(ProfilePlan(profile=several, plan=result)))
    assert content == {key: value for key, value in printed.items() if key in content}
    assert set(printed) - set(content) == {
        "pair",
        "machine",
        "new_tokens",
        "category",
        "drafters",
        "drafters_over_contexts",
        "warnings",
        "schedule",
        "categories",
    }
    three = {"plain": result.plain, "chain": result.chain, "tree": result.tree}
    assert len({option.tree for option in three.values()}) == 3
    assert {name: fields["parents"] for name, fields in content["candidates"].items()} == {
        name: option.tree.parents.tolist() for name, option in three.items()
    }
    chosen = [row for row in result.to_records() if row["chosen"]]
    assert [row["speedup"] for row in chosen] == [result.choice.speedup.value]


def test_comparison_is_a_tuple() -> None:
    comparison = compare(step_model(profile()), [chain(3), chain(200)])
    assert isinstance(comparison, tuple)
    assert len(comparison) == 2
    known, unknown = comparison.to_records()
    assert known["speedup"] == comparison[0].prediction.speedup.value
    assert (unknown["speedup"], unknown["unknown"]) == (None, comparison[1].unknown)
    assert unknown["unknown"]


SVG = "{http://www.w3.org/2000/svg}"


class TestSvg:
    def nodes(self, text: str) -> dict[str, tuple[float, float]]:
        """Return the position of every node by its tooltip."""
        positions = {}
        for group in ET.fromstring(text).iter(f"{SVG}g"):
            titles = [title.text or "" for title in group.iter(f"{SVG}title")]
            marks = [(float(mark.get("x", 0)), float(mark.get("y", 0))) for mark in group.iter(f"{SVG}use")]
            if titles and len(titles) == len(marks):
                positions |= dict(zip(titles, marks, strict=True))
        return positions

    def test_every_node_has_a_position(self) -> None:
        tree = TokenTree([-1, 0, 0, 1, 2])
        nodes = self.nodes(TreeFile(tree=tree, reach=np.array([1, 0.6, 0.2, 0.36, 0.1]))._repr_svg_() or "")
        assert len(nodes) == 5
        assert "node 4, depth 2, ranks 1, 0: reached by 10 %" in nodes
        (root,) = (x for name, (x, _) in nodes.items() if name.startswith("node 0"))
        depths = {name.partition(",")[0]: x for name, (x, _) in nodes.items()}  # the tree grows to the right
        assert root < depths["node 1"] == depths["node 2"] < depths["node 3"] == depths["node 4"]

    def test_too_large_trees_are_shown_as_text(self) -> None:
        assert chain(1024)._repr_svg_() is None
        assert chain(1023)._repr_svg_() is not None
