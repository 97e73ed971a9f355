"""Figures of predicted speed: over budget and depth, and of every rule and drafter."""

from itertools import pairwise

import numpy as np

from treeopt.planner import Option, Plan
from treeopt.planner.fastest import speeds
from treeopt.planner.planned import Planned
from treeopt.records.latency import Estimate
from treeopt.report.html.plot import ROW, TOP, Plot, axis_end
from treeopt.report.html.shapes import Entry, Figure, shape, shortened
from treeopt.report.html.tables import Table
from treeopt.report.text import rule_name

MOST_COLUMNS, MOST_ROWS = 44, 40
MARKS = {"tree": "triangle", "chain": "diamond", "plain": "disc"}


def budgets_and_depths(plan: Plan) -> Figure:
    """Return the map of speedup over budget and depth, with the choice, tree, chain and plain decoding marked."""
    speedups = speeds(plan.solution, plan.model.costs)
    most, deepest = plan.solution.max_nodes, min(plan.solution.max_depth, MOST_ROWS)
    budgets = sorted(
        {round(each) for each in np.geomspace(1, most, MOST_COLUMNS)} | {2**power for power in range(most.bit_length())}
    )
    best = float(speedups.max())
    plot = Plot(
        (0.75, most + 0.5),
        (-0.5, deepest + 0.5),
        ("budget, nodes", "depth"),
        bases=(2, 0),
        size=(460.0, 320.0),
        whole=True,
    )
    edges = [0.75, *((one * other) ** 0.5 for one, other in pairwise(budgets)), most + 0.5]
    for depth in range(deepest + 1):
        for place, budget in enumerate(budgets):
            value = float(speedups[depth, budget])
            if value <= 0:
                continue
            plot.add(
                shape(
                    "rect",
                    f"cell {'tree' if value >= 1 else 'chain'}",
                    x=plot.x(edges[place]),
                    y=plot.y(depth + 0.5),
                    width=plot.x(edges[place + 1]) - plot.x(edges[place]) + 0.1,
                    height=plot.y(depth - 0.5) - plot.y(depth + 0.5) + 0.1,
                    fill_opacity=f"{map_opacity(value, best):.2f}",
                    title=f"budget {budget}, depth {depth}: {value:.2f} times plain",
                )
            )
    marked: list[Option] = []
    for each in (plan.choice, plan.tree, plan.chain, plan.plain):
        if all(each.tree != other.tree for other in marked) and each.tree.max_depth <= deepest:
            marked.append(each)
    legend: list[Entry] = []
    for each in reversed(marked):
        said = f"{each.shape}: {each.speedup.value:.2f} times plain"
        if each is plan.choice:
            plot.star(each.tree.nodes, each.tree.max_depth, said)
            legend.insert(0, Entry("star", "choice", f"the choice, {said}"))
        else:
            _mark(plot, each, said)
            legend.insert(0, Entry(MARKS[each.kind], f"mark-{each.kind}", said))
    return plot.figure(
        name="map",
        title="Speedup over budget and depth",
        caption="Predicted tokens per second over those of plain decoding, of the tree of most tokens within each budget and "
        "depth: blue is faster than plain decoding, orange slower, denser is farther away.",
        legend=tuple(legend),
    )


def map_opacity(value: float, best: float) -> float:
    """Return how dense a speedup is drawn: 0 for plain decoding's, 1 for the best or for a standstill."""
    share = (value - 1) / max(best - 1, 0.05) if value >= 1 else 1 - value
    return float(0.06 + 0.86 * min(1.0, max(0.0, share)) ** 1.3)


def candidates(plan: Plan) -> Table:
    """Return the row of budgets, and the three that were compared."""
    rows = [("best of its size" if each.tree.nodes > 1 else "plain", each) for each in plan.budgets]
    rows += [
        (f"best {each.kind}" if each is not plan.choice else f"the choice, {each.kind}", each)
        for each in (plan.plain, plan.chain, plan.tree)
    ]
    return Table(
        name="candidates",
        title="Budgets, chain, tree and plain decoding",
        header=("", "nodes", "depth", "tokens per step", "step, ms", "speedup", "low", "high"),
        rows=tuple(
            (
                name,
                each.tree.nodes,
                each.tree.max_depth,
                each.tokens_per_step.value,
                1000 * each.step_s.value,
                each.speedup.value,
                each.speedup.low,
                each.speedup.high,
            )
            for name, each in rows
        ),
    )


def choices(planned: Planned) -> tuple[Figure, Table] | None:
    """Return the best of every rule and drafter side by side, None where there is one of each only."""
    plan, best = planned.plan, planned.best
    rows: list[tuple[str, str, Estimate, bool]] = []
    if len(plan.rules) > 1:
        rows += [
            (
                f"rule {rule_name(each.rule, lossy=each.lossy)}",
                each.shape,
                each.speedup,
                each.rule == plan.rule and best is None,
            )
            for each in plan.rules
        ]
    rows += [
        (
            f"drafter {each.option.drafter.name}",
            f"{each.option.shape}, rule {each.option.rule}",
            each.option.speedup,
            each is best,
        )
        for each in planned.drafters
    ]
    if not rows:
        return None
    figure = bars(
        "choices",
        "Every drafter and rule",
        "The best that each comes to: predicted speedup with its 95 % interval.",
        rows,
    )
    table = Table(
        name="choices",
        title="Every drafter and rule",
        header=("", "best", "speedup", "low", "high"),
        rows=tuple((name, shape_, each.value, each.low, each.high) for name, shape_, each, _ in rows),
    )
    return figure, table


def bars(name: str, title: str, caption: str, rows: list[tuple[str, str, Estimate, bool]]) -> Figure:
    """Return speedups as bars below their names, each with its interval; the chosen one stands out."""
    end = axis_end((each.value for _, _, each, _ in rows), (each.high for _, _, each, _ in rows))
    plot = Plot.of_rows((0.0, end), "times plain decoding", len(rows))
    for place, (label, said, speedup, chosen) in enumerate(rows):
        top = TOP + ROW * place
        colour = "choice" if chosen else "tree"
        plot.row_name(place, f"{'★ ' if chosen else ''}{shortened(f'{label}: {said}', 200)}")
        full = f"{label}: {said}, {speedup.value:.2f} times plain ({speedup.low:.2f} to {speedup.high:.2f})"
        plot.add(
            shape(
                "rect",
                f"bar {colour}",
                x=plot.x(0),
                y=top + 16,
                width=max(0.5, plot.x(speedup.value) - plot.x(0)),
                height=10,
                title=full,
            ),
            shape(
                "path",
                "line ink",
                d=f"M{plot.x(max(0.0, speedup.low)):.1f} {top + 21:.1f}H{plot.x(min(end, speedup.high)):.1f}",
            ),
            shape("path", "line plain dashed", d=f"M{plot.x(1):.1f} {top + 14:.1f}v14"),
        )
    legend = (
        Entry("cell100", "tree", "predicted"),
        Entry("line", "ink", "95 % interval"),
        Entry("dashed", "plain", "plain decoding"),
    )
    return plot.figure(
        name=name,
        title=title,
        caption=caption,
        legend=legend,
    )


def _mark(plot: Plot, each: Option, said: str) -> None:
    x, y = plot.x(each.tree.nodes), plot.y(each.tree.max_depth)
    outlines = {
        "tree": f"M{x:.1f} {y - 7:.1f}L{x + 6.5:.1f} {y + 5:.1f}H{x - 6.5:.1f}Z",
        "chain": f"M{x:.1f} {y - 7:.1f}L{x + 6:.1f} {y:.1f}L{x:.1f} {y + 7:.1f}L{x - 6:.1f} {y:.1f}Z",
        "plain": f"M{x - 5.5:.1f} {y:.1f}a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0Z",
    }
    plot.add(shape("path", f"mark mark-{each.kind}", d=outlines[each.kind], title=said))
