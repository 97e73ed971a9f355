"""Figures of profiles and plans: every measurement is drawn, no text is cut, and the map matches the plan."""

import re
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch

from tests.cli.invented import COUNTS, FOUR_CONDITIONS, TABLE, invented
from tests.support.figures import seen
from tests.support.pages import planned
from treeopt.files.figure_file import write_figure
from treeopt.planner import Plan, plan
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

ROOT = Path(__file__).parents[3]
MANY = invented(conditions=[(context, batch) for context in (64, 256, 4096) for batch in (1, 2, 16)], verify_noise=0.2)
FLAT = invented(tables=[AcceptanceTable([0.7, 0.1])], others={"target": TABLE})
PROFILES = {
    "one": invented(verify_noise=0.3),
    "many": MANY,
    "flat": FLAT,
    "engine": Profile.load(ROOT / "tests/data/profile-engine.yaml"),
    "drafters": Profile.load(ROOT / "tests/data/profile-drafters.yaml"),
    "golden": Profile.load(ROOT / "tests/data/profile-golden.yaml"),
}
NARROW = replace(
    invented(),
    latencies=tuple(
        replace(each, draft=type(each.draft)(each.draft.tokens[:2], each.draft.timings[:2]))
        for each in invented().latencies
    ),
)
CASES = {
    "a tree": (invented(verify_noise=0.05), 32, {}),
    "slow when large": (invented(verify=lambda n, _context, _batch: 0.01 + 1e-3 * n), 32, {}),
    "plain decoding": (invented(tables=[AcceptanceTable([0.01, 0.005])]), 16, {"max_depth": 3}),
    "a chain": (invented(tables=[AcceptanceTable([[1.0]] * 5)]), 32, {}),
    "the root alone": (invented(), 1, {}),
    "one draft token": (invented(), 2, {}),
    "no levels": (invented(), 8, {"max_depth": 0}),
    "never accepted": (invented(tables=[AcceptanceTable([[0.0, 0.0]] * 3)]), 8, {}),
    "rows by the parent's rank": (invented(tables=[AcceptanceTable([[[0.7, 0.2], [0.4, 0.1]]] * 4)]), 16, {}),
    "extrapolated": (
        invented(conditions=[(256, 1), (4096, 1)]),
        64,
        {"context_tokens": 9000, "batch_size": 2, "extrapolate": True},
    ),
    "draft measured for narrow levels only": (NARROW, 32, {}),
}


def case(name: str) -> ProfilePlan:
    profile, nodes, others = CASES[name]
    return ProfilePlan(profile=profile, plan=plan(profile, nodes, **others))


def axes_of(found: ProfilePlan, title: str) -> Axes:
    (axes,) = (each for each in plan_figure(found).axes if each.get_title(loc="left") == title)
    return axes


@pytest.mark.parametrize("name", CASES)
def test_plan_figure_names_the_choice(name: str) -> None:
    found = case(name)
    figure = seen(plan_figure(found))
    assert figure.cut_off() == []
    assert figure.overlapping() == []
    choice = found.plan.choice
    assert f"choice, {choice.shape}: {choice.speedup.value:.2f}x" in figure.words
    assert {"budget, nodes", "depth, levels", "tokens in a pass", "ms"} <= set(figure.words)
    assert found.plan.conditions in " ".join(figure.words)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("draw", [times_figure, acceptance_figure])
def test_profile_figures_name_the_profile_and_cut_no_text(name: str, draw) -> None:
    profile = PROFILES[name]
    found = seen(draw(profile))
    assert found.cut_off() == []
    assert found.overlapping() == []
    said = " ".join(found.words)
    for text in (profile.pair.label, profile.machine.processor, profile.acceptances[0].rule, profile.created[:10]):
        assert text in said


@pytest.mark.parametrize("text", ["a name of words " * 20, "模型", "a$^_{b}$"])
def test_long_and_strange_names_stay_within_the_figure(text: str) -> None:
    profile = replace(FLAT, pair=replace(FLAT.pair, target=text))
    for draw in (times_figure, acceptance_figure):
        assert seen(draw(profile)).cut_off() == []


@pytest.mark.parametrize("name", ["a tree", "a chain", "plain decoding", "slow when large"])
def test_map_marks_tree_chain_and_plain_decoding(name: str) -> None:
    found = case(name).plan
    marks = {
        (round(2 ** float(each.get_xdata()[0])), int(each.get_ydata()[0])): str(each.get_label()).removeprefix(
            "choice, "
        )
        for each in axes_of(case(name), "Speedup over budget and depth").lines
        if each.get_linestyle() == "None" and len(each.get_xdata()) == 1
    }
    assert marks == {
        (each.tree.nodes, each.tree.max_depth): f"{each.shape}: {each.speedup.value:.2f}x"
        for each in (found.tree, found.chain, found.plain)
    }


def cells(axes: Axes, colour: str) -> list[PathPatch]:
    from matplotlib.colors import to_hex

    return [each for each in axes.patches if isinstance(each, PathPatch) and to_hex(each.get_facecolor()) == colour]


def test_map_cells_are_denser_for_faster_trees() -> None:
    found = case("slow when large")
    axes = axes_of(found, "Speedup over budget and depth")
    speedups = solution_speedups(found.plan.solution, found.plan.model.costs)[:, 1:]
    blue, orange = cells(axes, TREE), cells(axes, CHAIN)
    assert blue
    assert orange
    density = {}
    for depth, budget in np.ndindex(*speedups.shape):
        place = (np.log2(budget + 1), depth)
        inside = [each for each in (*blue, *orange) if each.get_path().contains_point(place)]
        assert len(inside) == 1, place
        assert (inside[0] in blue) == (speedups[depth, budget] >= 1)
        density[speedups[depth, budget]] = inside[0].get_alpha()
    faster = [density[speed] for speed in sorted(density) if speed >= 1]
    assert faster == sorted(faster)


def test_outlines_enclose_the_cells_above_a_level() -> None:
    found = case("slow when large")
    axes = axes_of(found, "Speedup over budget and depth")
    speedups = solution_speedups(found.plan.solution, found.plan.model.costs)[:, 1:]
    outlines = [each for each in axes.patches if isinstance(each, PathPatch) and not each.get_fill()]
    assert len(outlines) == 2
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for outline, level in zip(outlines, (1.0, 0.95 * speedups.max()), strict=True):
        inside = speedups > level
        inside[0], inside[:, 0] = False, False
        lines = outline.get_path().vertices.reshape(-1, 2, 2)
        ends = [(round(float(x), 6), round(float(y), 6)) for each in lines for x, y in each]
        for x, y in ends:
            at_rim = min(abs(x - left), abs(x - right), abs(y - low), abs(y - high)) < 1e-6
            assert at_rim or ends.count((x, y)) >= 2
        upright = [each for each in lines if each[0, 0] == each[1, 0]]
        for depth, column in np.ndindex(*(np.array(inside.shape) - [0, 1])):
            edge = np.log2(column + 1.5)
            parted = any(abs(x - edge) < 1e-9 and y0 < depth < y1 for (x, y0), (_, y1) in upright)
            assert parted == (inside[depth, column] != inside[depth, column + 1])


def test_legend_contains_drawn_outlines_only() -> None:
    near, even = "95\u2009% of the best", "as fast as plain decoding"
    words = {name: seen(plan_figure(case(name))).words for name in ("a tree", "slow when large", "plain decoding")}
    assert {name: (near in said, even in said) for name, said in words.items()} == {
        "a tree": (True, False),
        "slow when large": (True, True),
        "plain decoding": (False, False),
    }


def test_every_measured_count_is_a_point_with_its_interval() -> None:
    profile = PROFILES["one"]
    axes = times_figure(profile).axes[0]
    table = profile.latencies[0].verify
    (line,) = (each for each in axes.lines if each.get_marker() == "o" and len(each.get_xdata()) == len(table.tokens))
    assert line.get_xdata() == pytest.approx(table.tokens)
    assert line.get_ydata() == pytest.approx(1000 * table.medians_s)
    samples, intervals = (each for each in axes.patches if isinstance(each, PathPatch))
    ends = intervals.get_path().vertices[:, 1].reshape(-1, 2)
    assert ends == pytest.approx(1000 * np.array([timing.interval_s for timing in table.timings]))
    assert len(samples.get_path().vertices) == 2 * sum(len(timing.samples_s) for timing in table.timings)


def test_samples_beyond_the_axis_are_counted() -> None:
    latency = PROFILES["one"].latencies[0]
    timings = list(latency.verify.timings)
    timings[2] = Timing([*timings[2].samples_s, 50.0, 70.0])
    verify = LatencyTable(latency.verify.tokens, timings)
    disturbed = replace(PROFILES["one"], latencies=(replace(latency, verify=verify),))
    found = seen(times_figure(disturbed))
    assert any(each.endswith("small dots are samples, 2 more above") for each in found.words)
    assert found.figure.axes[0].get_ylim()[1] < 50_000
    assert not any("more above" in each for each in seen(times_figure(PROFILES["one"])).words)


def test_operating_points_of_the_plan_come_first() -> None:
    found = ProfilePlan(profile=MANY, plan=plan(MANY, 16, context_tokens=4096, batch_size=16))
    axes = axes_of(found, "Verification")
    chosen = next(each for each in MANY.latencies if (each.context_tokens, each.batch_size) == (4096, 16)).verify
    (first,) = (each for each in axes.lines if each.get_color() == TREE)
    assert first.get_label() == "4096 tokens of context, batch of 16"
    assert first.get_ydata() == pytest.approx(1000 * chosen.medians_s)
    assert "4 more operating points" in [each.get_label() for each in axes.lines]


def with_steps(profile: Profile, per_node_s: float) -> Profile:
    """Return a profile with whole steps, each of which takes so much more than its passes for each node."""

    def steps(latency: StepLatency) -> tuple[RuleSteps, ...]:
        trees = [chain(3), chain(7), *(plan(profile, nodes).tree.tree for nodes in (8, 16, 32))]
        timed = [
            (tree, sum(float(latency.draft.seconds(int(width))) for width in tree.draft_widths), tree.nodes)
            for tree in trees
        ]
        kind = type(latency.overhead)
        return (
            RuleSteps(
                rule="sequoia",
                trees=tuple(
                    TimedTree(
                        tree=tree,
                        steps=kind([draft_s + float(latency.verify.seconds(nodes)) + per_node_s * nodes] * 9),
                    )
                    for tree, draft_s, nodes in timed
                ),
            ),
        )

    return replace(profile, latencies=tuple(replace(each, steps=steps(each)) for each in profile.latencies))


def ink_lines(found: Plan, profile: Profile) -> list[tuple[np.ndarray, np.ndarray]]:
    axes = axes_of(ProfilePlan(profile=profile, plan=found), "Verification")
    return [each.get_data() for each in axes.lines if each.get_color() == INK and len(each.get_xdata()) > 1]


def test_planned_curve_passes_the_medians_and_overheads_are_above() -> None:
    profile = with_steps(invented(), per_node_s=1e-3)
    verify = profile.latencies[0].verify
    passes, whole = ink_lines(plan(profile, 32), profile)
    np.testing.assert_allclose(np.interp(COUNTS, *passes), 1000 * verify.medians_s, rtol=1e-6)
    expected = 1000 * (verify.medians_s[1:] + 1e-3 * np.array(COUNTS[1:]))
    np.testing.assert_allclose(np.interp(COUNTS[1:], *whole), expected, rtol=0.01)
    assert len(ink_lines(plan(invented(), 32), invented())) == 1  # no overhead that would show


def test_parts_of_a_step_add_up() -> None:
    found = case("a tree").plan
    axes = axes_of(case("a tree"), "Parts of a step")
    bars = [each for each in axes.patches if each.get_width() > 0]
    options = [found.plain, found.chain, found.tree]
    for row, option in enumerate(options):
        own = sorted(
            (each for each in bars if row < each.get_y() + each.get_height() / 2 < row + 1),
            key=lambda each: each.get_x(),
        )
        ends = [each.get_x() + each.get_width() for each in own]
        assert [each.get_x() for each in own] == pytest.approx([0.0, *ends[:-1]])
        assert ends[-1] == pytest.approx(1000 * option.step_s.value, rel=0.02)
        assert any(text.get_text().startswith(describe_tree(option.tree)) for text in axes.texts)
    assert [each.get_label() for each in axes.patches if each.get_label() in [name for name, _, _ in PARTS]] == [
        name for name, _, _ in PARTS
    ]


def test_the_heat_map_is_the_table() -> None:
    (label, measured), *_ = labelled_acceptances(invented())
    figure = compose([acceptance_panel(label, measured)])
    axes = figure.axes[0]
    density = {
        (depth, rank): next(
            (each.get_alpha() for each in cells(axes, TREE) if each.get_path().contains_point((rank, depth + 1))), 0.0
        )
        for depth, rank in np.ndindex(TABLE.p.shape)
    }
    ordered = [density[place] for place in sorted(density, key=lambda place: TABLE.p[place])]
    assert ordered == sorted(ordered)
    assert {"70", "15", "5.0"} <= {text.get_text() for text in axes.texts}


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_figures_do_not_depend_on_the_users_style(tmp_path: Path, suffix: str) -> None:
    write_figure(plan_figure(case("a tree")), tmp_path / f"one.{suffix}")
    with mpl.rc_context({"font.size": 30, "savefig.bbox": "tight", "axes.facecolor": "red", "axes.grid": True}):
        write_figure(plan_figure(case("a tree")), tmp_path / f"two.{suffix}")
    assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_plan_of_two_operating_points_draws_drafters() -> None:
    found = planned(invented(conditions=FOUR_CONDITIONS))
    words = seen(plan_figure(found)).words
    assert "Drafting one level" in words
    assert any(re.fullmatch(r"tree of \d+ nodes, depth \d+: [\d.]+ ms", each) for each in words)
