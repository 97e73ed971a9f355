"""The picture of a plan: formats, equal bytes, and that what it says is what was planned."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from tests.cli.invented import COUNTS, FOUR_CONDITIONS, TABLE, invented
from tests.support.pictures import Picture, common, drawn
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.planner import Plan, plan
from treeopt.planner.fastest import speeds
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.records.step_latency import RuleSteps, StepLatency, TimedTree
from treeopt.report.plan_figure import save_plan_figure
from treeopt.trees import chain

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
    save_plan_figure(PLANS["never accepted"], tmp_path / "never.svg")
    assert "no child is ever accepted" in texts(tmp_path / "never.svg").splitlines()
    assert "no child is ever accepted" not in texts(tmp_path / "tree.svg")
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
        "import sys, treeopt.report.plan_figure as figure\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from tests.cli.invented import invented\n"
        "from treeopt import plan\n"
        "figure.save_plan_figure(plan(invented(), 4), sys.argv[1])\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "plan.svg")], check=True, cwd=Path(__file__).parents[2]
    )


LONG = "a-target-with-a-long-name-instruct-v0.3 + a-draft-with-a-long-name on NVIDIA H100 80GB HBM3 (2 threads)"


def picture(found: Plan, path: Path, *, title: str = LONG, profile: Profile | None = None) -> Picture:
    return drawn(lambda at: save_plan_figure(found, at, title=title, profile=profile), path)


def line(axes: Axes, colour: str, style: str = "-", alpha: float | None = None) -> list[Line2D]:
    """Return the lines of a look that have points."""
    return [
        each
        for each in axes.lines
        if each.get_color() == colour
        and each.get_linestyle() == style
        and each.get_alpha() == alpha
        and len(each.get_xdata()) > 1
    ]


@pytest.mark.parametrize("name", ["a tree", "extrapolated", "one draft token", "rows by the parent's rank"])
def test_no_text_covers_another_and_none_is_cut(tmp_path: Path, name: str) -> None:
    found = picture(PLANS[name], tmp_path / "plan.png")

    assert "".join(LONG.split()) in "".join("".join(found.words).split())
    assert found.cut_off() == []
    assert found.overlapping() == []


def test_legends_cover_no_data(tmp_path: Path) -> None:
    figure = picture(PLANS["a tree"], tmp_path / "plan.png").figure
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert len(legends) == 3
    for legend in legends:
        assert [axes for axes in figure.axes if common(legend.get_window_extent(), axes.bbox)] == []


@pytest.mark.parametrize("name", ["a tree", "a chain", "plain decoding", "slow when large"])
def test_tree_chain_and_plain_decoding_are_marked_where_they_lie(tmp_path: Path, name: str) -> None:
    found = PLANS[name]
    axes = picture(found, tmp_path / "plan.png").figure.axes[0]
    marks = {
        (round(2 ** float(each.get_xdata()[0])), int(each.get_ydata()[0])): each.get_label()
        for each in axes.lines
        if each.get_linestyle() == "None" and len(each.get_xdata()) == 1
    }
    assert marks == {
        (each.tree.nodes, each.tree.max_depth): f"{each.shape}: {each.speedup.value:.2f}"
        for each in (found.tree, found.chain, found.plain)
    }


def test_lines_part_the_cells_above_a_level_from_all_others_and_end_at_the_rim_only(tmp_path: Path) -> None:
    found = PLANS["slow when large"]
    axes = picture(found, tmp_path / "plan.png").figure.axes[0]
    speedups = speeds(found.solution, found.model.costs)[:, 1:]
    levels = {"as fast as plain decoding": 1.0, "95\u2009% of the best": 0.95 * speedups.max()}
    outlines = [each for each in axes.collections if isinstance(each, LineCollection) and each.get_label() in levels]
    assert len(outlines) == 2
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for outline in outlines:
        inside = speedups > levels[outline.get_label()]
        inside[0], inside[:, 0] = False, False
        lines = [np.array(each) for each in outline.get_segments()]
        ends = [(round(float(x), 6), round(float(y), 6)) for each in lines for x, y in each]
        for x, y in ends:
            at_rim = min(abs(x - left), abs(x - right), abs(y - low), abs(y - high)) < 1e-6
            assert at_rim or ends.count((x, y)) >= 2
        upright = [each for each in lines if each[0, 0] == each[1, 0]]
        for depth, column in np.ndindex(*(np.array(inside.shape) - [0, 1])):
            edge = np.log2(column + 1.5)
            parted = any(abs(x - edge) < 1e-9 and y0 < depth < y1 for (x, y0), (_, y1) in upright)
            assert parted == (inside[depth, column] != inside[depth, column + 1])


def with_steps(profile: Profile, per_node_s: float) -> Profile:
    """Return a profile with whole steps, which take so much more than their passes for each node."""

    def steps(latency: StepLatency) -> tuple[RuleSteps, ...]:
        trees = [chain(3), chain(7), *(plan(profile, nodes).tree.tree for nodes in (8, 16, 32))]
        timed = [
            (tree, sum(float(latency.draft.seconds(int(width))) for width in tree.draft_widths), tree.nodes)
            for tree in trees
        ]
        return (
            RuleSteps(
                rule="sequoia",
                trees=tuple(
                    TimedTree(
                        tree=tree,
                        steps=type(latency.overhead)(
                            [draft_s + float(latency.verify.seconds(nodes)) + per_node_s * nodes] * 9
                        ),
                    )
                    for tree, draft_s, nodes in timed
                ),
            ),
        )

    return replace(profile, latencies=tuple(replace(each, steps=steps(each)) for each in profile.latencies))


def test_passes_are_drawn_through_what_was_measured_and_overheads_apart(tmp_path: Path) -> None:
    profile = with_steps(invented(), per_node_s=1e-3)
    found = plan(profile, 32)
    shown = picture(found, tmp_path / "plan.png", profile=profile)
    _, axes, *_ = (each for each in shown.figure.axes if each.get_title(loc="left"))
    verify = profile.latencies[0].verify

    (planned,) = line(axes, "#0072b2")
    at_measured = np.interp(COUNTS, planned.get_xdata(), planned.get_ydata())
    np.testing.assert_allclose(at_measured, 1000 * verify.medians_s, rtol=1e-6)
    (with_overheads,) = line(axes, "#0072b2", "--")
    at_measured = np.interp(COUNTS[1:], with_overheads.get_xdata(), with_overheads.get_ydata())
    np.testing.assert_allclose(at_measured, 1000 * (verify.medians_s[1:] + 1e-3 * np.array(COUNTS[1:])), rtol=0.01)
    assert "plus overhead per node and level" in shown.words
    assert "plus overhead per node and level" not in picture(PLANS["a tree"], tmp_path / "plan.png").words


def test_the_condition_planned_for_is_named_and_the_others_are_pale(tmp_path: Path) -> None:
    profile = invented(conditions=FOUR_CONDITIONS)
    found = plan(profile, 16, context_tokens=4096, batch_size=16)
    shown = picture(found, tmp_path / "plan.png", profile=profile)
    _, axes, *_ = (each for each in shown.figure.axes if each.get_title(loc="left"))

    assert "planned: 4096 tokens of context," in " ".join(shown.words).replace("\n", " ")
    assert "other conditions measured" in shown.words
    chosen = profile.latencies[FOUR_CONDITIONS.index((4096, 16))].verify
    np.testing.assert_allclose(line(axes, "#0072b2")[0].get_ydata()[0], 1000 * chosen.medians_s[0])
    pale = sorted(float(each.get_ydata()[0]) for each in line(axes, "#0072b2", alpha=0.25))
    others = [each.verify for each in profile.latencies if each.verify is not chosen]
    np.testing.assert_allclose(pale, sorted(1000 * each.medians_s[0] for each in others))
