"""Rows with a name above a bar: speedups, the parts of a step, and what to run over ranges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treeopt.pictures.panels import RIGHT, WIDTH, Panel, legend_patch
from treeopt.pictures.style import CHAIN, CHOICE, INK, MUTED, PLAIN, TREE, WHITE, cut, grid_lines, size_of, text_width
from treeopt.pictures.svg import tip
from treeopt.planner import Option
from treeopt.planner.costs import sizes
from treeopt.planner.plan_record import Plan
from treeopt.records.latency import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, BAR, SIZE = 32.0, 10.0, 10.0
"""Points of a row, of its bar, and of its letters."""
LEFT = 14.0
_MIDDLE = 0.72
"""Where in a row the bar is."""
Speedup = Estimate | float
PLAIN_LINE: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": (0, (3, 2)), "zorder": 1}
PARTS = (("drafting", "draft", CHAIN), ("verification", "verify", TREE), ("host overhead", "overhead", PLAIN))
"""Name, field of `StepParts`, and colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupRow:
    """One way to decode; speedups over plain decoding."""

    name: str
    predicted: Speedup | None = None
    measured: Speedup | None = None
    chosen: bool = False
    reason: str = ""
    """Why there is neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """A range in which one way to decode is the fastest, both ends included."""

    ends: tuple[int, int]
    colour: str
    group: str
    """Entry of the legend."""
    short: str
    """Written into the strip where it fits."""
    tip: str


def speedup_panel(rows: Sequence[SpeedupRow], title: str) -> Panel:
    """Return a bar for each row: as measured with the prediction as a mark, or else as predicted."""
    return Panel(
        draw=lambda axes: _draw_speedups(axes, rows),
        title=title,
        x="tokens per second over plain decoding",
        height=ROW * len(rows) + 4,
        left=LEFT,
    )


def steps_panel(plan: Plan) -> Panel:
    """Return the parts of a step of plain decoding, of the best chain and of the best tree."""
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
    """Return where an axis from 0 ends: past plain decoding, all values, and intervals unless they dwarf the values.

    >>> axis_end([1.5, 2.0], [2.1, 2.5]), axis_end([1.5, 2.0], [2.1, 1e9])
    (2.8, 4.48)
    """
    most = max([1.0, *values])
    return round(1.12 * min(max([most, *highs]), 2 * most), 6)


def value_of(speedup: Speedup) -> float:
    """Return a speedup without its interval."""
    return speedup.value if isinstance(speedup, Estimate) else speedup


_PAPER = {"facecolor": WHITE, "edgecolor": "none", "pad": 0.5}
"""Behind texts, so that no line runs through them."""


def _begin(axes: "Axes", names: Sequence[str]) -> None:
    axes.set_ylim(len(names) + 4 / ROW, 0)
    axes.set_yticks([])
    grid_lines(axes, "x")
    axes.spines["left"].set_visible(False)
    style: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center_baseline", "fontsize": SIZE}
    for row, name in enumerate(names):
        text = cut(name, WIDTH - LEFT - RIGHT, SIZE)
        axes.text(0, row + 0.3, text, color=INK, **style).set_bbox(_PAPER)


def _draw_speedups(axes: "Axes", rows: Sequence[SpeedupRow]) -> None:
    known = [each for row in rows for each in (row.predicted, row.measured) if each is not None]
    end = axis_end([value_of(each) for each in known], [_ends(each)[1] for each in known])
    axes.set_xlim(0, end)
    _begin(axes, [f"★ {row.name}" if row.chosen else row.name for row in rows])
    axes.axvline(1.0, **PLAIN_LINE)
    for place, row in enumerate(rows):
        _draw_speedup(axes, place + _MIDDLE, row, end)
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
    if any(isinstance(each, Estimate) for each in known):
        axes.plot([], [], color=INK, linewidth=1.0, label="95\u2009% interval")
    axes.plot([], [], label="plain decoding", **PLAIN_LINE)


_PALE = 0.55
"""How dense bars are that nobody measured."""


def _draw_speedup(axes: "Axes", y: float, row: SpeedupRow, end: float) -> None:
    from matplotlib.patheffects import withStroke

    shown = row.measured if row.measured is not None else row.predicted
    if shown is None:
        reason = cut(row.reason, WIDTH - LEFT - RIGHT - 4, 0.85 * SIZE)
        axes.text(0, y, reason, fontsize=0.85 * SIZE, color=MUTED, va="center_baseline")
        return
    pale: dict[str, Any] = {} if row.measured is not None else {"alpha": _PALE}
    (bar,) = axes.barh(y, value_of(shown), BAR / ROW, color=CHOICE if row.chosen else TREE, zorder=2, **pale)
    tip(bar, _tip(row))
    low, high = (min(each, end) for each in _ends(shown))
    right = value_of(shown)
    if high > low:
        axes.plot([max(0.0, low), high], [y, y], color=INK, linewidth=1.0, solid_capstyle="butt", zorder=3)
        right = max(right, high)
    room = size_of(axes)[0] / end
    if row.measured is not None and row.predicted is not None:
        mark = value_of(row.predicted)
        half = 0.75 * BAR / ROW
        rim = [withStroke(linewidth=3.6, foreground=WHITE)]
        axes.plot([mark, mark], [y - half, y + half], color=INK, linewidth=1.8, path_effects=rim, zorder=4)
        if -6 < (mark - right) * room < text_width(f"{right:.2f}", SIZE) + 10:
            right = max(mark, right)
    text = f"{value_of(shown):.2f}"
    if right * room + 6 + text_width(text, SIZE) > size_of(axes)[0] + RIGHT - 2:  # an interval to the rim
        return
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


def _tip(row: SpeedupRow) -> str:
    parts = [
        f"{word} {_text(each)}" for word, each in (("measured", row.measured), ("predicted", row.predicted)) if each
    ]
    return f"{row.name}: {', '.join(parts)} times plain decoding"


def _draw_steps(axes: "Axes", plan: Plan, options: Sequence[Option]) -> None:
    parts = plan.model.costs.parts(*sizes([each.tree for each in options]))
    whole = 1000 * parts.step_s
    axes.set_xlim(0, 1.04 * float(whole.max()))
    _begin(axes, [f"{option.shape}: {ms:.3g} ms" for option, ms in zip(options, whole, strict=True)])
    for row, option in enumerate(options):
        left = 0.0
        for name, part, colour in PARTS:
            ms = 1000 * float(getattr(parts, part)[row])
            start, left = left, left + ms
            if left <= max(0.0, start):
                continue
            start = max(0.0, start)
            (bar,) = axes.barh(row + _MIDDLE, left - start, BAR / ROW, left=start, color=colour, zorder=2)
            tip(bar, f"{option.shape}, {name}: {ms:.3g} of {whole[row]:.3g} ms")
    for name, _, colour in PARTS:
        legend_patch(axes, colour, name)


def _draw_strips(axes: "Axes", rows: Mapping[str, Sequence[Strip]]) -> None:
    strips = [each for row in rows.values() for each in row]
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(each.ends[0] for each in strips), max(each.ends[1] for each in strips) + 1)
    axes.xaxis.set_major_formatter("{x:g}")
    _begin(axes, list(rows))
    place = axes.transData - axes.transAxes
    for row, each in ((row, each) for row, drawn in enumerate(rows.values()) for each in drawn):
        first, last = each.ends[0], each.ends[1] + 1
        y = row + 0.76
        style: dict[str, Any] = {"color": each.colour, "edgecolor": WHITE, "linewidth": 1.0, "zorder": 2.0}
        (bar,) = axes.barh(y, last - first, 14 / ROW, left=first, alpha=0.5, **style)
        tip(bar, each.tip)
        (left, _), (right, _) = place.transform([(first, y), (last, y)])
        if (right - left) * size_of(axes)[0] > text_width(each.short, 8.5) + 6:
            text: dict[str, Any] = {
                "ha": "center",
                "va": "center_baseline",
                "fontsize": 8.5,
                "color": INK,
                "zorder": 3.0,
            }
            axes.text((first * last) ** 0.5, y, each.short, **text)
    for group, colour in {each.group: each.colour for each in strips}.items():
        legend_patch(axes, colour, group, density=0.5)


def _ends(speedup: Speedup) -> tuple[float, float]:
    return (speedup.low, speedup.high) if isinstance(speedup, Estimate) else (speedup, speedup)


def _text(speedup: Speedup) -> str:
    if isinstance(speedup, Estimate):
        return f"{speedup.value:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"
    return f"{speedup:.2f}"
