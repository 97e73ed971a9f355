"""Figures of profiles and plans: every measurement is drawn, no text is cut, and the map matches the plan."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch

from tests.cli.invented import COUNTS, TABLE, invented
from tests.support.figures import DrawnFigure, seen
from tests.support.slow import slow
from treeopt.files.figure_file import write_figure
from treeopt.planner import plan
from treeopt.planner.fastest import solution_speedups
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.plotting.panels import compose
from treeopt.plotting.style import CHAIN, INK, TREE
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.profile import Profile
from treeopt.records.step_latency import RuleSteps, StepLatency, TimedTree
from treeopt.report.figures.acceptance import acceptance_panel
from treeopt.report.figures.profile_figures import acceptance_figure, plan_figure, times_figure
from treeopt.report.figures.rows import PARTS
from treeopt.report.profile_text import labelled_acceptances
from treeopt.trees import chain, describe_tree

DATA = Path(__file__).parents[2] / "data"
MANY = invented(conditions=[(context, batch) for context in (64, 256, 4096) for batch in (1, 2, 16)], verify_noise=0.2)
ONE = invented(verify_noise=0.3)
FLAT = invented(tables=[AcceptanceTable([0.7, 0.1])], others={"target": TABLE})
NARROW = replace(
    invented(),
    latencies=tuple(
        replace(latency, draft=type(latency.draft)(latency.draft.tokens[:2], latency.draft.timings[:2]))
        for latency in invented().latencies
    ),
)
CASES = {
    "a tree": (invented(verify_noise=0.05), 32, {}),
    "slow when large": (invented(verify=lambda n, _context, _batch: 0.01 + 1e-3 * n), 32, {}),
    "plain decoding": (invented(tables=[AcceptanceTable([0.01, 0.005])]), 16, {"max_depth": 3}),
    "the root alone": (invented(), 1, {}),
    "never accepted": (invented(tables=[AcceptanceTable([[0.0, 0.0]] * 3)]), 8, {}),
    "rows by the parent's rank": (invented(tables=[AcceptanceTable([[[0.7, 0.2], [0.4, 0.1]]] * 4)]), 16, {}),
    "extrapolated": (
        invented(conditions=[(256, 1), (4096, 1)]),
        64,
        {"context_tokens": 9000, "batch_size": 2, "extrapolate": True},
    ),
    "draft measured for narrow levels only": (NARROW, 32, {}),
}


@cache
def planned(name: str) -> ProfilePlan:
    profile, nodes, options = CASES[name]
    return ProfilePlan(profile=profile, plan=plan(profile, nodes, **options))


@cache
def drawn_plan(name: str) -> DrawnFigure:
    return seen(plan_figure(planned(name)))


def axes_of(figure: Figure, title: str) -> Axes:
    (axes,) = (axes for axes in figure.axes if axes.get_title(loc="left") == title)
    return axes


def map_of(name: str) -> Axes:
    return axes_of(drawn_plan(name).figure, "Speedup over budget and depth")


def cells(axes: Axes, colour: str) -> list[PathPatch]:
    return [patch for patch in axes.patches if isinstance(patch, PathPatch) and to_hex(patch.get_facecolor()) == colour]


@pytest.mark.parametrize("name", CASES)
def test_plan_figure_names_the_choice(name: str) -> None:
    figure, result = drawn_plan(name), planned(name).plan
    assert figure.cut_off() == []
    assert figure.overlapping() == []
    assert f"choice, {result.choice.shape}: {result.choice.speedup.value:.2f}x" in figure.words
    assert {"budget, nodes", "depth, levels", "tokens in a pass", "ms", "Drafting one level"} <= set(figure.words)
    assert result.conditions in " ".join(figure.words)


@pytest.mark.parametrize(
    "profile",
    [
        MANY,
        replace(FLAT, pair=replace(FLAT.pair, target="模型 a$^_{b}$ " + "a name of words " * 20)),
        *(Profile.load(DATA / f"profile-{name}.yaml") for name in ("engine", "drafters")),
    ],
    ids=["many", "long name", "engine", "drafters"],
)
@pytest.mark.parametrize("draw", [times_figure, acceptance_figure])
def test_profile_figures_name_the_profile_and_cut_no_text(profile: Profile, draw) -> None:
    figure = seen(draw(profile))
    assert figure.cut_off() == []
    assert figure.overlapping() == []
    text = " ".join(figure.words)
    for part in (profile.pair.draft, profile.machine.processor, profile.acceptances[0].rule, profile.created[:10]):
        assert part in text


@pytest.mark.parametrize("name", ["a tree", "plain decoding", "slow when large"])
def test_map_marks_tree_chain_and_plain_decoding(name: str) -> None:
    result = planned(name).plan
    marks = {
        (round(2 ** float(line.get_xdata()[0])), int(line.get_ydata()[0])): str(line.get_label())
        for line in map_of(name).lines
        if line.get_linestyle() == "None" and len(line.get_xdata()) == 1
    }
    assert {position: label.removeprefix("choice, ") for position, label in marks.items()} == {
        (option.tree.nodes, option.tree.max_depth): f"{option.shape}: {option.speedup.value:.2f}x"
        for option in (result.tree, result.chain, result.plain)
    }


def test_map_cells_are_denser_for_faster_trees() -> None:
    result, axes = planned("slow when large").plan, map_of("slow when large")
    speedups = solution_speedups(result.solution, result.model.costs)[:, 1:]
    blue, orange = cells(axes, TREE), cells(axes, CHAIN)
    assert blue
    assert orange
    density = {}
    for depth, budget in np.ndindex(*speedups.shape):
        position = (np.log2(budget + 1), depth)
        (cell,) = [patch for patch in (*blue, *orange) if patch.get_path().contains_point(position)]
        assert (cell in blue) == (speedups[depth, budget] >= 1)
        density[speedups[depth, budget]] = cell.get_alpha()
    faster = [density[speed] for speed in sorted(density) if speed >= 1]
    assert faster == sorted(faster)


def test_outlines_enclose_the_cells_above_a_level() -> None:
    result, axes = planned("slow when large").plan, map_of("slow when large")
    speedups = solution_speedups(result.solution, result.model.costs)[:, 1:]
    outlines = [patch for patch in axes.patches if isinstance(patch, PathPatch) and not patch.get_fill()]
    assert len(outlines) == 2
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for outline, level in zip(outlines, (1.0, 0.95 * speedups.max()), strict=True):
        inside = speedups > level
        inside[0], inside[:, 0] = False, False
        lines = outline.get_path().vertices.reshape(-1, 2, 2)
        ends = [(round(float(x), 6), round(float(y), 6)) for line in lines for x, y in line]
        for x, y in ends:
            at_rim = min(abs(x - left), abs(x - right), abs(y - low), abs(y - high)) < 1e-6
            assert at_rim or ends.count((x, y)) >= 2
        vertical = [line for line in lines if line[0, 0] == line[1, 0]]
        for depth, column in np.ndindex(*(np.array(inside.shape) - [0, 1])):
            edge = np.log2(column + 1.5)
            has_line = any(abs(x - edge) < 1e-9 and y0 < depth < y1 for (x, y0), (_, y1) in vertical)
            assert has_line == (inside[depth, column] != inside[depth, column + 1])


@pytest.mark.parametrize(
    ("name", "outlines"),
    [("a tree", (True, False)), ("slow when large", (True, True)), ("plain decoding", (False, False))],
)
def test_legend_contains_drawn_outlines_only(name: str, outlines: tuple[bool, bool]) -> None:
    words = drawn_plan(name).words
    assert ("95\u2009% of the best" in words, "as fast as plain decoding" in words) == outlines


def test_every_measured_count_is_a_point_with_its_interval() -> None:
    axes, table = times_figure(ONE).axes[0], ONE.latencies[0].verify
    (line,) = (line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == len(table.tokens))
    assert line.get_xdata() == pytest.approx(table.tokens)
    assert line.get_ydata() == pytest.approx(1000 * table.medians_s)
    samples, intervals = (patch for patch in axes.patches if isinstance(patch, PathPatch))
    ends = intervals.get_path().vertices[:, 1].reshape(-1, 2)
    assert ends == pytest.approx(1000 * np.array([timing.interval_s for timing in table.timings]))
    assert len(samples.get_path().vertices) == 2 * sum(len(timing.samples_s) for timing in table.timings)


def test_samples_beyond_the_axis_are_counted() -> None:
    latency = ONE.latencies[0]
    timings = list(latency.verify.timings)
    timings[2] = Timing([*timings[2].samples_s, 50.0, 70.0])
    disturbed = replace(latency, verify=LatencyTable(latency.verify.tokens, timings))
    figure = seen(times_figure(replace(ONE, latencies=(disturbed,))))
    assert any(text.endswith("small dots are samples, 2 more above") for text in figure.words)
    assert figure.figure.axes[0].get_ylim()[1] < 50_000
    assert not any("more above" in text for text in seen(times_figure(ONE)).words)


def test_operating_points_of_the_plan_come_first() -> None:
    figure = plan_figure(ProfilePlan(profile=MANY, plan=plan(MANY, 16, context_tokens=4096, batch_size=16)))
    axes = axes_of(figure, "Verification")
    (chosen,) = (latency for latency in MANY.latencies if (latency.context_tokens, latency.batch_size) == (4096, 16))
    (first,) = (line for line in axes.lines if line.get_color() == TREE)
    assert first.get_label() == "4096 tokens of context, batch of 16"
    assert first.get_ydata() == pytest.approx(1000 * chosen.verify.medians_s)
    assert "4 more operating points" in [line.get_label() for line in axes.lines]


def with_steps(profile: Profile, per_node_s: float) -> Profile:
    """Return a profile with whole steps, which take `per_node_s` more for each node than their passes."""

    def steps(latency: StepLatency) -> RuleSteps:
        trees = [chain(3), chain(7), *(plan(profile, nodes).tree.tree for nodes in (8, 16, 32))]
        seconds = [
            sum(float(latency.draft.seconds(int(width))) for width in tree.draft_widths)
            + float(latency.verify.seconds(tree.nodes))
            + per_node_s * tree.nodes
            for tree in trees
        ]
        timed = [TimedTree(tree=tree, steps=Timing([step_s] * 9)) for tree, step_s in zip(trees, seconds, strict=True)]
        return RuleSteps(rule="sequoia", trees=tuple(timed))

    latencies = tuple(replace(latency, steps=(steps(latency),)) for latency in profile.latencies)
    return replace(profile, latencies=latencies)


def planned_curves(profile: Profile) -> list[tuple[np.ndarray, np.ndarray]]:
    axes = axes_of(plan_figure(ProfilePlan(profile=profile, plan=plan(profile, 32))), "Verification")
    return [line.get_data() for line in axes.lines if line.get_color() == INK and len(line.get_xdata()) > 1]


def test_planned_curve_passes_the_medians_and_overheads_are_above() -> None:
    profile = with_steps(invented(), per_node_s=1e-3)
    verify = profile.latencies[0].verify
    passes, whole = planned_curves(profile)
    np.testing.assert_allclose(np.interp(COUNTS, *passes), 1000 * verify.medians_s, rtol=1e-6)
    expected = 1000 * (verify.medians_s[1:] + 1e-3 * np.array(COUNTS[1:]))
    np.testing.assert_allclose(np.interp(COUNTS[1:], *whole), expected, rtol=0.01)
    assert len(planned_curves(invented())) == 1  # no visible overhead


def test_parts_of_a_step_add_up() -> None:
    result, axes = planned("a tree").plan, axes_of(drawn_plan("a tree").figure, "Parts of a step")
    bars = [bar for bar in axes.patches if bar.get_width() > 0]
    for row, option in enumerate([result.plain, result.chain, result.tree]):
        parts = [bar for bar in bars if row < bar.get_y() + bar.get_height() / 2 < row + 1]
        parts.sort(key=lambda bar: bar.get_x())
        ends = [bar.get_x() + bar.get_width() for bar in parts]
        assert [bar.get_x() for bar in parts] == pytest.approx([0.0, *ends[:-1]])
        assert ends[-1] == pytest.approx(1000 * option.step_s.value, rel=0.02)
        assert any(text.get_text().startswith(describe_tree(option.tree)) for text in axes.texts)
    names = [name for name, _, _ in PARTS]
    assert [bar.get_label() for bar in axes.patches if bar.get_label() in names] == names


def test_acceptance_cells_are_denser_for_larger_probabilities() -> None:
    (label, measured), *_ = labelled_acceptances(invented())
    axes = compose([acceptance_panel(label, measured)]).axes[0]
    density = {
        (depth, rank): next(
            (cell.get_alpha() for cell in cells(axes, TREE) if cell.get_path().contains_point((rank, depth + 1))), 0.0
        )
        for depth, rank in np.ndindex(TABLE.p.shape)
    }
    ordered = [density[entry] for entry in sorted(density, key=lambda entry: TABLE.p[entry])]
    assert ordered == sorted(ordered)
    assert {"70", "15", "5.0"} <= {text.get_text() for text in axes.texts}


@pytest.mark.parametrize("suffix", ["svg", *slow(["png", "pdf"])])
def test_figures_do_not_depend_on_the_users_style(tmp_path: Path, suffix: str) -> None:
    write_figure(acceptance_figure(FLAT), tmp_path / f"one.{suffix}")
    with mpl.rc_context({"font.size": 30, "savefig.bbox": "tight", "axes.facecolor": "red", "axes.grid": True}):
        write_figure(acceptance_figure(FLAT), tmp_path / f"two.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
