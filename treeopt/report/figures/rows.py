"""Rows with a name above a bar: speedups, the parts of a step, and schedules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treeopt.planner import Option
from treeopt.planner.costs import sizes
from treeopt.planner.plan_record import Plan
from treeopt.plotting.panels import RIGHT, WIDTH, Panel, legend_patch
from treeopt.plotting.style import (
    CHAIN,
    CHOICE,
    INK,
    MUTED,
    PLAIN,
    TREE,
    WHITE,
    cut_text,
    grid_lines,
    size_of,
    text_width,
)
from treeopt.plotting.svg import set_tooltips
from treeopt.records.latency import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, BAR, SIZE = 32.0, 10.0, 10.0
"""Height of a row and of its bar, and the font size, in points."""
LEFT = 14.0
_BAR_Y = 0.72
"""Position of a bar's middle, as a fraction of the row's height."""
Speedup = Estimate | float
PLAIN_LINE: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": (0, (3, 2)), "zorder": 1}
PARTS = (("drafting", "draft", CHAIN), ("verification", "verify", TREE), ("host overhead", "overhead", PLAIN))
"""Name, field of `StepBreakdown`, and colour of each part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRow:
    """One option with its speedups over plain decoding."""

    name: str
    predicted: Speedup | None = None
    measured: Speedup | None = None
    chosen: bool = False
    reason: str = ""
    """Why there is no speedup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A range in which one option is the fastest, both ends included."""

    ends: tuple[int, int]
    colour: str
    group: str
    """Label in the legend."""
    short: str
    """Written into the strip if it fits."""
    tooltip: str


def speedup_panel(rows: Sequence[SpeedupRow], title: str) -> Panel:
    """Return a bar for each row: measured, with a mark at the prediction, or else predicted."""
    return Panel(
        draw=lambda axes: _draw_speedups(axes, rows),
        title=title,
        x="tokens per second over plain decoding",
        height=ROW * len(rows) + 4,
        left=LEFT,
    )


def steps_panel(plan: Plan) -> Panel:
    """Return the parts of a step with plain decoding, the best chain and the best tree."""
    options = list({option.tree: option for option in (plan.plain, plan.chain, plan.tree)}.values())
    return Panel(
        draw=lambda axes: _draw_steps(axes, plan, options),
        title="Parts of a step",
        x="ms of a step, as planned",
        height=ROW * len(options) + 4,
        left=LEFT,
    )


def strips_panel(rows: Mapping[str, Sequence[Strip]], title: str, x: str) -> Panel:
    """Return rows of strips over a logarithmic axis of whole numbers."""
    return Panel(draw=lambda axes: _draw_strips(axes, rows), title=title, x=x, height=ROW * len(rows) + 10, left=LEFT)


def axis_end(values: Sequence[float], highs: Sequence[float]) -> float:
    """Return the end of an axis from 0: beyond 1, all values, and all intervals up to twice the largest value.

    >>> axis_end([1.5, 2.0], [2.1, 2.5]), axis_end([1.5, 2.0], [2.1, 1e9])
    (2.8, 4.48)
    """
    largest = max([1.0, *values])
    return round(1.12 * min(max([largest, *highs]), 2 * largest), 6)


def value_of(speedup: Speedup) -> float:
    """Return a speedup without its interval."""
    return speedup.value if isinstance(speedup, Estimate) else speedup


_PAPER = {"facecolor": WHITE, "edgecolor": "none", "pad": 0.5}
"""Background of text, so that no line crosses it."""


def _set_up_rows(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_ylim(len(names) + 4 / ROW, 0)
    axes.set_yticks([])
    grid_lines(axes, "x")
    axes.spines["left"].set_visible(False)
    style: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center_baseline", "fontsize": SIZE}
    for row, name in enumerate(names):
        text = cut_text(name, WIDTH - LEFT - RIGHT, SIZE)
        axes.text(0, row + 0.3, text, color=INK, **style).set_bbox(_PAPER)


def _draw_speedups(axes: "Axes", rows: Sequence[SpeedupRow]) -> None:
    speedups = [speedup for row in rows for speedup in (row.predicted, row.measured) if speedup is not None]
    end = axis_end([value_of(speedup) for speedup in speedups], [_interval(speedup)[1] for speedup in speedups])
    axes.set_xlim(0, end)
    _set_up_rows(axes, [f"★ {row.name}" if row.chosen else row.name for row in rows])
    axes.axvline(1.0, **PLAIN_LINE)
    for index, row in enumerate(rows):
        _draw_speedup(axes, index + _BAR_Y, row, end)
    kinds = {
        (row.chosen, row.measured is not None) for row in rows if row.predicted is not None or row.measured is not None
    }
    for chosen, measured in sorted(kinds, reverse=True):
        label = ("measured" if measured else "predicted") + (", the choice" if chosen else "")
        legend_patch(axes, CHOICE if chosen else TREE, label, density=1.0 if measured else _PALE)
    if any(row.measured is not None and row.predicted is not None for row in rows):
        axes.plot(
            [], [], color=INK, marker="|", markersize=9, markeredgewidth=1.8, linestyle="none", label="prediction"
        )
    if any(isinstance(speedup, Estimate) for speedup in speedups):
        axes.plot([], [], color=INK, linewidth=1.0, label="95\u2009% interval")
    axes.plot([], [], label="plain decoding", **PLAIN_LINE)


_PALE = 0.55
"""Density of bars of predictions."""


def _draw_speedup(axes: "Axes", y: float, row: SpeedupRow, end: float) -> None:
    from matplotlib.patheffects import withStroke

    speedup = row.measured if row.measured is not None else row.predicted
    if speedup is None:
        reason = cut_text(row.reason, WIDTH - LEFT - RIGHT - 4, 0.85 * SIZE)
        axes.text(0, y, reason, fontsize=0.85 * SIZE, color=MUTED, va="center_baseline")
        return
    pale: dict[str, Any] = {} if row.measured is not None else {"alpha": _PALE}
    (bar,) = axes.barh(y, value_of(speedup), BAR / ROW, color=CHOICE if row.chosen else TREE, zorder=2, **pale)
    set_tooltips(bar, _tooltip(row))
    low, high = (min(limit, end) for limit in _interval(speedup))
    right = value_of(speedup)
    if high > low:
        axes.plot([max(0.0, low), high], [y, y], color=INK, linewidth=1.0, solid_capstyle="butt", zorder=3)
        right = max(right, high)
    points_per_unit = size_of(axes)[0] / end
    if row.measured is not None and row.predicted is not None:
        mark = value_of(row.predicted)
        half = 0.75 * BAR / ROW
        rim = [withStroke(linewidth=3.6, foreground=WHITE)]
        axes.plot([mark, mark], [y - half, y + half], color=INK, linewidth=1.8, path_effects=rim, zorder=4)
        if -6 < (mark - right) * points_per_unit < text_width(f"{right:.2f}", SIZE) + 10:
            right = max(mark, right)
    text = f"{value_of(speedup):.2f}"
    if right * points_per_unit + 6 + text_width(text, SIZE) > size_of(axes)[0] + RIGHT - 2:
        return  # the interval reaches the edge
    axes.annotate(
        text,
        (right, y),
        (5, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=0.9 * SIZE,
        color=INK,
        bbox=_PAPER,
    )


def _tooltip(row: SpeedupRow) -> str:
    parts = [
        f"{name} {_speedup_text(speedup)}"
        for name, speedup in (("measured", row.measured), ("predicted", row.predicted))
        if speedup
    ]
    return f"{row.name}: {', '.join(parts)} times plain decoding"


def _draw_steps(axes: "Axes", plan: Plan, options: Sequence[Option]) -> None:
    parts = plan.model.costs.breakdown(*sizes([option.tree for option in options]))
    steps_ms = 1000 * parts.step_s
    axes.set_xlim(0, 1.04 * float(steps_ms.max()))
    _set_up_rows(axes, [f"{option.shape}: {ms:.3g} ms" for option, ms in zip(options, steps_ms, strict=True)])
    for row, option in enumerate(options):
        left = 0.0
        for name, part, colour in PARTS:
            ms = 1000 * float(getattr(parts, part)[row])
            start, left = left, left + ms
            if left <= max(0.0, start):
                continue
            start = max(0.0, start)
            (bar,) = axes.barh(row + _BAR_Y, left - start, BAR / ROW, left=start, color=colour, zorder=2)
            set_tooltips(bar, f"{option.shape}, {name}: {ms:.3g} of {steps_ms[row]:.3g} ms")
    for name, _, colour in PARTS:
        legend_patch(axes, colour, name)


def _draw_strips(axes: "Axes", rows: Mapping[str, Sequence[Strip]]) -> None:
    strips = [strip for row in rows.values() for strip in row]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(strip.ends[0] for strip in strips), max(strip.ends[1] for strip in strips) + 1)
    axes.xaxis.set_major_formatter("{x:g}")
    _set_up_rows(axes, list(rows))
    to_axes = axes.transData - axes.transAxes
    for row, strip in ((row, strip) for row, row_strips in enumerate(rows.values()) for strip in row_strips):
        first, last = strip.ends[0], strip.ends[1] + 1
        y = row + 0.76
        style: dict[str, Any] = {"color": strip.colour, "edgecolor": WHITE, "linewidth": 1.0, "zorder": 2.0}
        (bar,) = axes.barh(y, last - first, 14 / ROW, left=first, alpha=0.5, **style)
        set_tooltips(bar, strip.tooltip)
        (left, _), (right, _) = to_axes.transform([(first, y), (last, y)])
        if (right - left) * size_of(axes)[0] > text_width(strip.short, 8.5) + 6:
            text: dict[str, Any] = {
                "ha": "center",
                "va": "center_baseline",
                "fontsize": 8.5,
                "color": INK,
                "zorder": 3.0,
            }
            axes.text((first * last) ** 0.5, y, strip.short, **text)
    for group, colour in {strip.group: strip.colour for strip in strips}.items():
        legend_patch(axes, colour, group, density=0.5)


def _interval(speedup: Speedup) -> tuple[float, float]:
    return (speedup.low, speedup.high) if isinstance(speedup, Estimate) else (speedup, speedup)


def _speedup_text(speedup: Speedup) -> str:
    if isinstance(speedup, Estimate):
        return f"{speedup.value:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"
    return f"{speedup:.2f}"
