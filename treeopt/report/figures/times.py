"""Measured times: samples, medians with intervals, and the curve that a plan uses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arrays import Int64
from treeopt.planner.costs import step_costs
from treeopt.planner.plan_record import Plan
from treeopt.plotting.panels import Panel
from treeopt.plotting.style import INK, LINE, SERIES, grid_lines, plain_numbers
from treeopt.plotting.svg import set_tooltips
from treeopt.records.latency import LatencyTable
from treeopt.records.measured_drafter import condition_key
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency
from treeopt.report.figures.cells import draw_lines
from treeopt.report.figures.speedup_map import STAR
from treeopt.report.profile_text import describe_point
from treeopt.report.text import counted, milliseconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MS = 1000.0
MAX_SAMPLES = 600
"""Samples to draw; of more, only every second, third, … one is drawn."""
MAX_POINTS = 200
"""Points of the planned curve."""
MIN_OVERHEAD = 0.02
"""Overheads that move a curve by less than this relative change everywhere are not drawn."""
NamedTable = tuple[str, LatencyTable]


def times_panels(profile: Profile, plan: Plan | None = None) -> list[Panel]:
    """Return verification and, with a draft model, drafting times; of an engine its step times.

    Args:
        profile: all its operating points are drawn.
        plan: its operating points come first, and the curve that it uses is drawn.
    """
    latencies = list(profile.step_latencies)
    if plan is not None:
        planned = [condition_key(latency) for latency in plan.model.point.latencies]
        latencies.sort(key=lambda latency: condition_key(latency) not in planned)
    of_engine = profile.engine is not None
    panels = [_panel(latencies, "verify", "Steps of the engine" if of_engine else "Verification", plan)]
    if not of_engine and any(latency.draft is not None for latency in latencies):
        panels.append(_panel(latencies, "draft", "Drafting one level", plan))
    return panels


def _panel(latencies: Sequence[StepLatency], part: str, title: str, plan: Plan | None) -> Panel:
    tables = [
        (describe_point(latency), table) for latency in latencies if (table := getattr(latency, part)) is not None
    ]
    limits, beyond = _limits([table for _, table in tables])
    return Panel(
        draw=lambda axes: _draw(axes, tables, part, plan, limits),
        title=title,
        x="tokens in a pass" if part == "verify" else "nodes of a level that have children",
        y="ms",
        note="medians with 95\u2009% intervals; small dots are samples" + (f", {beyond} more above" if beyond else ""),
    )


def _limits(tables: Sequence[LatencyTable]) -> tuple[tuple[float, float] | None, int]:
    """Return limits in ms around all medians and intervals, and how many samples of the first table are above them.

    There are no limits if a time is not above 0, because the axis is logarithmic.
    """
    ends = np.array([timing.interval_s for table in tables for timing in table.timings])
    medians = np.concatenate([table.medians_s for table in tables])
    if medians.min() <= 0:
        return None, 0
    low, high = MS * min(ends[ends > 0].min(), medians.min()) / 1.2, MS * max(ends.max(), medians.max()) * 1.3
    samples = np.concatenate([timing.samples_s for timing in tables[0].timings])
    return (float(low), float(high)), int(np.count_nonzero(MS * samples > high))


def _draw(
    axes: "Axes", tables: Sequence[NamedTable], part: str, plan: Plan | None, limits: tuple[float, float] | None
) -> None:
    """Draw a curve for each table, in pale grey if there are more tables than colours."""
    _draw_samples(axes, tables[0][1])
    for (name, table), colour in zip(tables, SERIES, strict=False):
        ends = MS * np.array([timing.interval_s for timing in table.timings])
        draw_lines(axes, np.stack([np.stack([table.tokens, table.tokens], -1), ends], -1), colour, 1.0, z=2)
        style: dict[str, Any] = {"color": colour, "zorder": 3.0, "linewidth": 1.2}
        (line,) = axes.plot(table.tokens, MS * table.medians_s, "o-", markersize=3.6, label=name, **style)
        points = range(len(table.tokens)) if table is tables[0][1] else ()
        set_tooltips(line, *([_tooltip(name, table, index) for index in points] or [name]))
    others = tables[len(SERIES) :]
    for index, (_, table) in enumerate(others):
        label = f"{len(others)} more operating points" if index == 0 else None
        axes.plot(table.tokens, MS * table.medians_s, color=LINE, linewidth=0.9, label=label, zorder=2)
    if plan is not None:
        _draw_planned(axes, plan, part)
    axes.set_xscale("log", base=2)
    if limits is not None:
        axes.set_yscale("log")
        axes.set_ylim(*limits)
        plain_numbers(axes.yaxis)
    axes.xaxis.set_major_formatter("{x:g}")
    grid_lines(axes)


def _tooltip(name: str, table: LatencyTable, index: int) -> str:
    timing = table.timings[index]
    low, high = map(milliseconds, timing.interval_s)
    return (
        f"{counted(int(table.tokens[index]), 'token')}: {milliseconds(timing.median_s)} ms ({low} to {high}), "
        f"{len(timing.samples_s)} samples; {name}"
    )


def _draw_samples(axes: "Axes", table: LatencyTable) -> None:
    counts = [len(timing.samples_s) for timing in table.timings]
    samples = np.stack(
        [np.repeat(table.tokens, counts), MS * np.concatenate([timing.samples_s for timing in table.timings])], axis=1
    )
    samples = samples[:: -(-len(samples) // MAX_SAMPLES)]
    dots = np.stack([samples, samples * [1.0002, 1.0]], axis=1)  # lines so short that only their round ends are visible
    draw_lines(axes, dots, LINE, 2.2, z=1, cap="round")


def _draw_planned(axes: "Axes", plan: Plan, part: str) -> None:
    """Draw the curve of passes that the plan uses, with overheads if they are visible, and the pass of the choice."""
    point, costs = plan.model.point, plan.model.costs
    pass_costs = step_costs(point, rule=plan.rule, max_nodes=costs.max_nodes, passes_only=True)
    if part == "verify":
        passes_s, with_overhead_s = pass_costs.verify_s, costs.verify_s
    else:
        passes_s, with_overhead_s = pass_costs.draft_s, costs.draft_s
    end = min(plan.solution.max_nodes + 1, len(passes_s), len(with_overhead_s))
    passes_s, with_overhead_s = passes_s[:end], with_overhead_s[:end]
    counts = _thinned(len(passes_s) - 1)
    style: dict[str, Any] = {"color": INK, "zorder": 2.0}
    axes.plot(counts, MS * passes_s[counts], linewidth=4.0, alpha=0.2, label="used in the plan", **style)
    if np.abs(with_overhead_s[1:] / passes_s[1:] - 1).max() > MIN_OVERHEAD:
        label = "with the overhead per node and level"
        axes.plot(counts, MS * with_overhead_s[counts], linewidth=1.2, linestyle=(0, (1.5, 1.5)), label=label, **style)
    tokens = plan.choice.verify_tokens
    if part == "verify" and tokens < len(passes_s):
        (mark,) = axes.plot(tokens, MS * passes_s[tokens], label="choice", **STAR)
        set_tooltips(mark, f"the choice verifies {tokens} tokens")


def _thinned(last: int) -> Int64:
    """Return integers from 1 to `last`, at most about `MAX_POINTS`, evenly spaced on a logarithmic axis."""
    if last <= MAX_POINTS:
        return np.arange(1, last + 1)
    return np.unique(np.geomspace(1, last, MAX_POINTS).round().astype(int))
