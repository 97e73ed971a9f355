"""Figures of predicted speed: over budget and depth, of every rule and drafter, and where to run what."""

from itertools import pairwise

import numpy as np

from treeopt.planner import Candidate, Plan, Schedule, Segment
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
    marked: list[Candidate] = []
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
                each.choice.shape,
                each.choice.speedup,
                each.rule == plan.rule and best is None,
            )
            for each in plan.rules
        ]
    rows += [
        (f"drafter {each.setting.name}", f"{each.shape}, rule {each.rule}", each.speedup, each is best)
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


def schedules(schedule: Schedule) -> tuple[list[Figure], Table]:
    """Return what to run where, over batch sizes and over context lengths, and all segments as rows."""
    figures = []
    if any(each.batch_sizes[0] != each.batch_sizes[1] for each in schedule.over_batch_sizes):
        figures.append(
            _strips("batches", "What to run, over batch sizes", schedule.over_batch_sizes, across_batches=True)
        )
    if any(each.context_tokens[0] != each.context_tokens[1] for each in schedule.over_contexts):
        figures.append(
            _strips("contexts", "What to run, over context lengths", schedule.over_contexts, across_batches=False)
        )
    rows = tuple(
        (
            each.rule,
            each.temperature,
            _range(each.batch_sizes),
            _range(each.context_tokens),
            each.choice.shape,
            each.choice.speedup.value,
            each.choice.speedup.low,
            each.choice.speedup.high,
        )
        for each in (*schedule.over_batch_sizes, *schedule.over_contexts)
    )
    header = ("rule", "temperature", "batch", "context", "run", "speedup at the start", "low", "high")
    return figures, Table(name="schedule", title="What to run where", header=header, rows=rows)


def _strips(name: str, title: str, segments: tuple[Segment, ...], *, across_batches: bool) -> Figure:
    """Return a strip for each row of segments: its parts are where one way to decode is the fastest."""

    def ends(each: Segment) -> tuple[int, int]:
        return each.batch_sizes if across_batches else each.context_tokens

    def row_of(each: Segment) -> tuple[float, int]:
        return each.temperature, (each.context_tokens if across_batches else each.batch_sizes)[0]

    rows = sorted({row_of(each) for each in segments})
    low, high = min(ends(each)[0] for each in segments), max(ends(each)[1] for each in segments) + 1
    x_name = "batch size" if across_batches else "tokens of context"
    plot = Plot.of_rows((low, high), x_name, len(rows), base=2)
    for place, (temperature, other) in enumerate(rows):
        top = TOP + ROW * place
        where = f"{other} tokens of context" if across_batches else f"batch of {other}"
        plot.row_name(place, f"{where}, temperature {temperature:g}")
        for each in segments:
            if row_of(each) != (temperature, other):
                continue
            first, last = ends(each)
            left, right = plot.x(first), plot.x(last + 1)
            short = (
                "plain"
                if each.choice.kind == "plain"
                else f"{each.choice.kind} {each.choice.tree.nodes}/{each.choice.tree.max_depth}"
            )
            said = f"{x_name} {_range((first, last))}: {each.choice.shape}, rule {each.rule}, {each.choice.speedup.value:.2f} times plain"
            plot.add(
                shape(
                    "rect",
                    f"strip {each.choice.kind}",
                    x=left,
                    y=top + 15,
                    width=max(1.0, right - left - 1),
                    height=15,
                    title=said,
                )
            )
            if right - left > 7.0 * len(short):
                plot.add(shape("text", "inside middle", x=(left + right) / 2, y=top + 26.5, text=short))
    legend = [
        Entry("cell45", kind, f"{kind}{'' if kind == 'plain' else ' nodes/depth'}")
        for kind in ("tree", "chain", "plain")
    ]
    kinds = {each.choice.kind for each in segments}
    return plot.figure(
        name=name,
        title=title,
        caption="The fastest way to decode, and where to switch; between measured conditions times lie on straight lines.",
        legend=tuple(each for each in legend if each.colour in kinds),
    )


def _mark(plot: Plot, each: Candidate, said: str) -> None:
    x, y = plot.x(each.tree.nodes), plot.y(each.tree.max_depth)
    outlines = {
        "tree": f"M{x:.1f} {y - 7:.1f}L{x + 6.5:.1f} {y + 5:.1f}H{x - 6.5:.1f}Z",
        "chain": f"M{x:.1f} {y - 7:.1f}L{x + 6:.1f} {y:.1f}L{x:.1f} {y + 7:.1f}L{x - 6:.1f} {y:.1f}Z",
        "plain": f"M{x - 5.5:.1f} {y:.1f}a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0Z",
    }
    plot.add(shape("path", f"mark mark-{each.kind}", d=outlines[each.kind], title=said))


def _range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"
