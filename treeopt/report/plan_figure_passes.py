"""The passes of a plan's picture: what was timed, what is planned with, and what other conditions take."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from treeopt.arrays import Float64
from treeopt.pictures.style import CHAIN, MUTED, TREE, legend_below, name_axes, plain_numbers, wrapped
from treeopt.planner.costs import step_costs
from treeopt.planner.plan_record import Plan
from treeopt.records.latency import LatencyTable
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency
from treeopt.report.plan_figure_map import STAR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


PALE = 0.25
"""How dense the lines of conditions are that were not planned for."""
LEGEND_SIZE, LABEL_WIDTH = 8.0, 135.0
"""Font size of the legend, and points after which its entries are broken."""
NOTICED = 0.02
"""Overheads that nowhere move a curve by more than this share are not drawn."""
_PLANNED: dict[str, Any] = {"linewidth": 1.4}
_WITH_OVERHEAD: dict[str, Any] = {"linewidth": 1.2, "linestyle": (0, (1.5, 1.2))}
_OTHER: dict[str, Any] = {"linewidth": 0.9, "alpha": PALE}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One model's passes."""

    name: str
    colour: str
    pass_s: Float64
    """(counts + 1,): as planned with."""
    cost_s: Float64
    """As many: with what a step's overhead grows by for each node or level."""
    measured: tuple[LatencyTable, ...]
    """Those planned with."""
    others: tuple[LatencyTable, ...]

    @property
    def overhead_noticed(self) -> bool:
        """Whether costs and passes lie so far apart that both are drawn."""
        return bool(np.abs(self.cost_s[1:] / self.pass_s[1:] - 1).max() > NOTICED)


def draw_passes(axes: "Axes", plan: Plan, profile: Profile | None = None) -> None:
    """Draw medians as measured with their 95 % intervals, the curves planned with, and those with overheads added.

    The conditions of a profile that were not planned for are drawn pale.
    """
    most, choice = plan.solution.max_nodes, plan.choice
    verify, draft = _passes(plan, () if profile is None else _others(profile, plan))
    for each in (verify, draft):
        _draw_pass(axes, each, most)
    axes.plot(choice.verify_tokens, 1000 * verify.pass_s[choice.verify_tokens], markersize=12, zorder=5, **STAR)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(y=0.08)
    plain_numbers(axes.yaxis)
    name_axes(axes, "A pass of either model", "tokens", "ms")
    around = " of conditions around it" if len(plan.model.point.latencies) > 1 else ""
    legend_below(
        axes,
        columns=2,
        size=LEGEND_SIZE,
        title=f"dots: measured medians{around}, with 95\u2009% intervals",
        handles=_handles(plan.model.point, (verify, draft)),
    )


def _passes(plan: Plan, others: tuple[StepLatency, ...]) -> tuple[_Pass, _Pass]:
    """Return verification and drafting of a level, up to the largest budget."""
    costs, point, end = plan.model.costs, plan.model.point, plan.solution.max_nodes + 1
    parts = point.latencies
    alone = step_costs(point, rule=plan.rule, max_nodes=costs.max_nodes, passes_only=True)
    verify_end, draft_end = (min(end, len(curve)) for curve in (costs.verify_s, costs.draft_s))
    return (
        _Pass(
            name="verify",
            colour=TREE,
            pass_s=alone.verify_s[:verify_end],
            cost_s=costs.verify_s[:verify_end],
            measured=tuple(each.verify for each in parts),
            others=tuple(each.verify for each in others),
        ),
        _Pass(
            name="draft a level",
            colour=CHAIN,
            pass_s=alone.draft_s[:draft_end],
            cost_s=costs.draft_s[:draft_end],
            measured=tuple(each.draft for each in parts if each.draft is not None),
            others=tuple(each.draft for each in others if each.draft is not None),
        ),
    )


def _others(profile: Profile, plan: Plan) -> tuple[StepLatency, ...]:
    """Return the latencies of a profile that could have been planned with at this temperature."""
    return tuple(each for each in profile.latencies_at(plan.temperature) if each not in plan.model.point.latencies)


def _draw_pass(axes: "Axes", each: _Pass, most: int) -> None:
    colour = each.colour
    for table in each.others:
        shown = table.tokens <= most
        axes.plot(table.tokens[shown], 1000 * table.medians_s[shown], color=colour, zorder=1, **_OTHER)
    counts = np.arange(1, len(each.pass_s))
    axes.plot(counts, 1000 * each.pass_s[1:], color=colour, **_PLANNED)
    if each.overhead_noticed:
        axes.plot(counts, 1000 * each.cost_s[1:], color=colour, **_WITH_OVERHEAD)
    for table in each.measured:
        _draw_measured(axes, table, most, colour, alone=len(each.measured) == 1)


def _draw_measured(axes: "Axes", table: LatencyTable, most: int, colour: str, *, alone: bool) -> None:
    """Draw the measured medians of up to so many tokens with their intervals; pale where several are mixed."""
    low_s, high_s = np.array([timing.interval_s for timing in table.timings]).T
    error_s = np.stack([table.medians_s - low_s, high_s - table.medians_s])
    shown = table.tokens <= most
    axes.errorbar(
        table.tokens[shown],
        1000 * table.medians_s[shown],
        1000 * error_s[:, shown],
        fmt="o",
        markersize=3,
        elinewidth=1,
        color=colour,
        alpha=1 if alone else 2 * PALE,
    )


def _handles(where: OperatingPoint, passes: tuple[_Pass, _Pass]) -> list["Line2D"]:
    """Return the legend's entries: what was measured, then what was planned."""
    from matplotlib.lines import Line2D

    def entry(label: str, **style: Any) -> "Line2D":
        return Line2D([], [], label="\n".join(wrapped(label, LABEL_WIDTH, LEGEND_SIZE)), **({"color": MUTED} | style))

    batch = f", batch of {where.batch_size}" if where.batch_size > 1 else ""
    entries = [
        *(entry(each.name, color=each.colour, marker="o", markersize=4, linestyle="none") for each in passes),
        entry("the choice", markersize=9, **STAR),
        entry(f"planned: {where.context_tokens} tokens of context{batch}", **_PLANNED),
    ]
    if any(each.overhead_noticed for each in passes):
        entries.append(entry("plus overhead per node and level", **_WITH_OVERHEAD))
    if passes[0].others:
        entries.append(entry("other conditions measured", **_OTHER))
    return entries
