"""The picture of a plan: formats, equal bytes, and that what it says is what was planned."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pytest

from tests.cli.invented import TABLE, invented
from treeopt.acceptance import AcceptanceTable
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.planner import Plan, plan
from treeopt.planner.figure import save_plan_figure

PLANS = {
    "a tree": plan(invented(verify_noise=0.05), 32),
    "slow when large": plan(invented(verify=lambda n, _context, _batch: 0.01 + 1e-3 * n), 32),
    "plain decoding": plan(invented(tables=[AcceptanceTable([0.01, 0.005])]), 16, max_depth=3),
    "a chain": plan(invented(tables=[AcceptanceTable([[1.0]] * 5)]), 32),
    "the root alone": plan(invented(), 1),
    "one draft token": plan(invented(), 2),
    "no levels": plan(invented(), 8, max_depth=0),
    "never accepted": plan(invented(tables=[AcceptanceTable([[0.0, 0.0]] * 3)]), 8),
    "rows by the parent's rank": plan(invented(tables=[AcceptanceTable([[[0.7, 0.2], [0.4, 0.1]]] * 4)]), 16),
    "width limits": plan(invented(), 16, level_widths=2),
    "extrapolated": plan(
        invented(conditions=[(256, 1), (4096, 1)]), 64, context_tokens=9000, batch_size=2, extrapolate=True
    ),
    "draft measured for narrow levels only": plan(
        replace(
            invented(),
            latencies=tuple(
                replace(latency, draft=type(latency.draft)(latency.draft.tokens[:2], latency.draft.timings[:2]))
                for latency in invented().latencies
            ),
        ),
        32,
    ),
}


def texts(path: Path) -> str:
    """Return the texts of an SVG, which matplotlib leaves as comments beside the outlines of their letters."""
    return "\n".join(line.strip()[5:-4] for line in path.read_text().splitlines() if line.strip().startswith("<!-- "))


@pytest.mark.parametrize("found", PLANS.values(), ids=PLANS.keys())
def test_every_plan_can_be_drawn_and_says_what_was_chosen(tmp_path: Path, found: Plan) -> None:
    save_plan_figure(found, tmp_path / "plan.svg", title="big + small on $5 machine")

    said = texts(tmp_path / "plan.svg").splitlines()
    assert "big + small on $5 machine" in said
    assert found.conditions in said
    assert f"{found.choice.shape}: {found.choice.speedup.value:.2f}" in said
    for title in ("Speedup over plain decoding", "verify", "draft a level", "tokens", "ms", "budget, nodes", "depth"):
        assert title in said


def test_conditions_name_rule_temperature_context_and_batch(tmp_path: Path) -> None:
    save_plan_figure(PLANS["extrapolated"], tmp_path / "plan.svg")

    conditions = "sequoia at temperature 0, 9000 tokens of context, batch of 2 (extrapolated)"
    assert conditions in texts(tmp_path / "plan.svg").splitlines()


def test_lines_are_named_only_where_they_are(tmp_path: Path) -> None:
    save_plan_figure(PLANS["a tree"], tmp_path / "tree.svg")
    save_plan_figure(PLANS["slow when large"], tmp_path / "slow.svg")
    save_plan_figure(PLANS["plain decoding"], tmp_path / "plain.svg")

    near, even = "95\u2009% of the best", "as fast as plain decoding"
    said = {name: texts(tmp_path / f"{name}.svg").splitlines() for name in ("tree", "slow", "plain")}
    assert {name: (near in lines, even in lines) for name, lines in said.items()} == {
        "tree": (True, False),
        "slow": (True, True),
        "plain": (False, False),
    }


def test_acceptance_is_named_by_depth(tmp_path: Path) -> None:
    save_plan_figure(PLANS["a tree"], tmp_path / "tree.svg")
    save_plan_figure(PLANS["plain decoding"], tmp_path / "plain.svg")
    save_plan_figure(PLANS["rows by the parent's rank"], tmp_path / "ranked.svg")

    said = texts(tmp_path / "tree.svg").splitlines()
    assert [line for line in said if line.startswith("depth ")] == ["depth 1", "depth 2", "depth 4"]
    assert len(TABLE.p) == 4
    assert "every depth" in texts(tmp_path / "plain.svg").splitlines()
    assert "Acceptance below a first child" in texts(tmp_path / "ranked.svg").splitlines()


@pytest.mark.parametrize(("suffix", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG\r\n"), (".PDF", b"%PDF-")])
def test_the_suffix_chooses_the_format_and_bytes_repeat(tmp_path: Path, suffix: str, start: bytes) -> None:
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    save_plan_figure(plan(invented(verify_noise=0.05), 32), first, title="a title")
    with mpl.rc_context({"font.size": 30, "savefig.bbox": "tight", "axes.facecolor": "red"}):
        save_plan_figure(plan(invented(verify_noise=0.05), 32), second, title="a title")

    assert first.read_bytes().startswith(start)
    assert first.read_bytes() == second.read_bytes()


def test_other_plans_give_other_bytes(tmp_path: Path) -> None:
    save_plan_figure(PLANS["a tree"], tmp_path / "first.svg")
    save_plan_figure(plan(invented(), 32), tmp_path / "second.svg")

    assert (tmp_path / "first.svg").read_bytes() != (tmp_path / "second.svg").read_bytes()


@pytest.mark.parametrize("name", ["plan.jpg", "plan", "-"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"\.svg, \.png, \.pdf"):
        save_plan_figure(PLANS["a tree"], tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TreeoptError, match="its folder does not exist"):
        save_plan_figure(PLANS["a tree"], tmp_path / "missing" / "plan.svg")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.process
def test_matplotlib_comes_with_the_first_drawing_and_pyplot_never(tmp_path: Path) -> None:
    program = (
        "import sys, treeopt.planner.figure as figure\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from tests.cli.invented import invented\n"
        "from treeopt import plan\n"
        "figure.save_plan_figure(plan(invented(), 4), sys.argv[1])\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "plan.svg")], check=True, cwd=Path(__file__).parents[2]
    )
