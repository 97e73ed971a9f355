"""A plan as a picture: how fast which budget and depth is, and the measurements that this comes from."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from treeopt.figure_file import save_drawing
from treeopt.latency import LatencyTable
from treeopt.planner.fastest import speeds
from treeopt.planner.model import Candidate
from treeopt.planner.planning import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

FloatArray = npt.NDArray[np.float64]

NEAR_BEST = 0.95
COLUMNS, ROWS = 1024, 8
"""Columns of the map's image, and rows per depth: so many that edges are sharp in every viewer."""
SHOWN_DEPTHS = (1, 2, 4, 8, 16, 32)

_WIDTH, _HEIGHT = 11.0, 6.0  # inches
_DARK, _MEDIUM, _PALE = "#24292f", "#57606a", "#e4e7eb"
_VERIFY, _DRAFT, _NEAR, _MARK = "#0f5a54", "#b0702a", "#f2c037", "#c8102e"
_MARKER: dict[str, Any] = {
    "marker": "*",
    "markeredgecolor": "white",
    "color": _MARK,
    "linestyle": "none",
    "zorder": 5,
    "clip_on": False,
}


def save_plan_figure(plan: Plan, path: Path | str, *, title: str | None = None) -> None:
    """Draw a plan into an SVG, PNG or PDF file, as the path's suffix says; equal plans give equal bytes.

    On the left, speedup over budget and depth, the choice marked; on the right, seconds of passes and acceptance.

    Args:
        plan: what to draw.
        path: file to write, ending in .svg, .png or .pdf.
        title: what was planned for, such as the pair and the machine; the conditions are written below it.

    Raises InvalidValueError for another suffix, TreeoptError when the file cannot be written.
    """
    save_drawing(lambda: _draw(plan, title), path)


def _draw(plan: Plan, title: str | None) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), facecolor="white")
    figure.text(0.02, 0.95, title or "Plan", fontsize=13, weight="bold", color=_DARK, va="center")
    figure.text(0.02, 0.9, plan.conditions, fontsize=9.5, color=_MEDIUM, va="center")
    _draw_speedups(figure, figure.add_axes((0.06, 0.09, 0.5, 0.71)), plan)
    _draw_passes(figure.add_axes((0.645, 0.53, 0.335, 0.27)), plan)
    _draw_acceptance(figure.add_axes((0.645, 0.09, 0.335, 0.27)), plan)
    return figure


def _draw_speedups(figure: "Figure", axes: "Axes", plan: Plan) -> None:
    """Draw the map, the lines around what is faster than plain decoding and what is nearly the best, and the choice."""
    speedups = speeds(plan.solution, plan.model.costs)[:, 1:]
    depths, budgets = speedups.shape
    left, right = float(np.log2(0.75)), float(np.log2(budgets + 0.5))
    centres = np.linspace(left, right, 2 * COLUMNS + 1)[1::2]
    column = np.clip(np.rint(2**centres).astype(int), 1, budgets) - 1
    low, high = min(0.9, float(speedups[speedups > 0].min())), max(1.1, float(speedups.max()))
    image = axes.imshow(
        np.ma.masked_equal(np.repeat(speedups[:, column], ROWS, axis=0), 0),
        extent=(left, right, -0.5, depths - 0.5),
        origin="lower",
        aspect="auto",
        interpolation="none",
        cmap=_colours(low, high),
        vmin=low,
        vmax=high,
    )
    _draw_outline(axes, speedups, 1.0, _DARK, "as fast as plain decoding")
    nearly = f"{100 * NEAR_BEST:.0f}\u2009% of the best"
    _draw_outline(axes, speedups, NEAR_BEST * float(speedups.max()), _NEAR, nearly)
    _draw_choice(axes, plan.choice, (left + right) / 2)
    axes.set_facecolor(_PALE)
    sizes = 2 ** np.arange(budgets.bit_length())
    axes.set_xticks(np.log2(sizes), [str(size) for size in sizes])
    _whole_numbers(axes.yaxis)
    _name(axes, "Speedup over plain decoding", "budget, nodes", "depth")
    axes.xaxis.set_label_coords(0, -0.05)
    axes.xaxis.label.set_horizontalalignment("left")
    if axes.get_legend_handles_labels()[0]:
        below: dict[str, Any] = {"loc": "upper right", "bbox_to_anchor": (1.01, -0.045), "ncols": 2, "borderpad": 0}
        axes.legend(frameon=False, fontsize=8, labelcolor=_MEDIUM, **below)
    _draw_scale(figure, axes, image)


def _draw_outline(axes: "Axes", speedups: FloatArray, level: float, colour: str, name: str) -> None:
    """Draw the line between slower and faster trees; the root alone is left out."""
    drafted = speedups[1:, 1:]
    depths, budgets = drafted.shape
    if min(depths, budgets) < 2 or not drafted.min() < level < drafted.max():
        return
    at = np.log2(np.arange(2, budgets + 2))
    axes.contour(at, np.arange(1, depths + 1), drafted, levels=[level], colors=[colour], linewidths=1.2)
    axes.plot([], [], color=colour, linewidth=1.2, label=name)  # contours have no place in a legend


def _draw_choice(axes: "Axes", choice: Candidate, middle: float) -> None:
    """Mark the choice and say what it is, on the side where there is more room."""
    at = float(np.log2(choice.tree.nodes)), choice.tree.max_depth
    side = 1 if at[0] < middle else -1
    axes.plot(*at, markersize=17, **_MARKER)
    axes.annotate(
        f"{choice.shape}: {choice.speedup.value:.2f}",
        at,
        xytext=(14 * side, 0),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        va="center",
        fontsize=9.5,
        weight="bold",
        color=_DARK,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "none"},
        zorder=5,
    )


def _draw_scale(figure: "Figure", axes: "Axes", image: "AxesImage") -> None:
    from matplotlib.ticker import MaxNLocator

    scale = axes.inset_axes((0.5, 1.03, 0.5, 0.025))
    bar = figure.colorbar(image, cax=scale, orientation="horizontal", ticks=MaxNLocator(6, steps=[1, 2.5, 5, 10]))
    bar.outline.set_visible(False)
    scale.xaxis.set_ticks_position("top")
    scale.tick_params(length=0, labelsize=8, labelcolor=_MEDIUM, pad=1)


def _draw_passes(axes: "Axes", plan: Plan) -> None:
    """Draw what passes cost: the medians that were measured with their intervals, and the curves planned with."""
    costs, most, choice = plan.model.costs, plan.solution.max_nodes, plan.choice
    latencies = [latency for _, latency in plan.model.condition.parts]
    for name, colour, seconds, tables in (
        ("verify", _VERIFY, costs.verify_s, [latency.verify for latency in latencies]),
        ("draft a level", _DRAFT, costs.draft_s, [latency.draft for latency in latencies]),
    ):
        shown_ms = 1000 * seconds[1 : most + 1]
        axes.plot(np.arange(1, len(shown_ms) + 1), shown_ms, color=colour, linewidth=1.4)
        style: dict[str, Any] = {"color": colour, "fontsize": 9, "textcoords": "offset points"}
        axes.annotate(name, (1, shown_ms[0]), (0, 9), **style)
        for table in tables:
            _draw_measured(axes, table, most, colour, alone=len(tables) == 1)
    axes.plot(choice.verify_tokens, 1000 * costs.verify_s[choice.verify_tokens], markersize=13, **_MARKER)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.16)
    _plain_numbers(axes)
    _name(axes, "A pass of either model", "tokens", "ms")


def _draw_measured(axes: "Axes", table: LatencyTable, most: int, colour: str, *, alone: bool) -> None:
    """Draw the measured medians of up to so many tokens with their intervals; pale where several are mixed."""
    low_s, high_s = np.array([timing.interval_s for timing in table.timings]).T
    error_s = np.stack([table.medians_s - low_s, high_s - table.medians_s])
    shown = table.tokens <= most
    style: dict[str, Any] = {
        "fmt": "o",
        "markersize": 3,
        "elinewidth": 1,
        "color": colour,
        "alpha": 1 if alone else 0.3,
    }
    axes.errorbar(table.tokens[shown], 1000 * table.medians_s[shown], 1000 * error_s[:, shown], **style)


def _draw_acceptance(axes: "Axes", plan: Plan) -> None:
    """Draw acceptance by rank at some depths; below parents of rank 0 where the parent's rank matters."""
    import matplotlib as mpl

    table = plan.model.acceptance.table
    rows = table.rows(table.max_depth or 1)[:, 0]
    shown = [depth for depth in SHOWN_DEPTHS if depth <= len(rows)]
    for depth, colour in zip(shown, mpl.colormaps["viridis"](np.linspace(0, 0.85, len(shown))), strict=True):
        label = "every depth" if table.position_invariant else f"depth {depth}"
        axes.plot(np.ma.masked_equal(rows[depth - 1], 0), "o-", color=colour, markersize=3, linewidth=1.2, label=label)
    axes.set_yscale("log")
    axes.set_xlim(-0.3, table.branching - 0.7)
    _whole_numbers(axes.xaxis)
    _plain_numbers(axes)
    axes.legend(frameon=False, fontsize=8, labelcolor=_MEDIUM)
    below = "Acceptance below a first child" if table.parent_ranks > 1 else "Acceptance"
    _name(axes, below, "rank among siblings", "probability")


def _colours(low: float, high: float) -> "Colormap":
    """Return brown for slower than plain decoding, white for as fast and green for faster."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    from_one = np.linspace(low - 1, high - 1, 512) / max(1 - low, high - 1)
    return ListedColormap(mpl.colormaps["BrBG"](0.5 + 0.4 * from_one))


def _whole_numbers(axis: "Axis") -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))


def _plain_numbers(axes: "Axes") -> None:
    """Write 3, 1, 0.3, 0.1 on a logarithmic axis, not powers."""
    from matplotlib.ticker import LogLocator

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()


def _name(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", y=1.0, pad=8, fontsize=10, weight="bold", color=_DARK)
    axes.set_xlabel(x, fontsize=9, color=_MEDIUM)
    axes.set_ylabel(y, fontsize=9, color=_MEDIUM)
    axes.tick_params(labelsize=8, colors=_MEDIUM)
    axes.spines[:].set_color(_PALE)
