"""Figures of predictions beside measurements: single trees, grids, methods and engines."""

from collections.abc import Sequence

from treeopt.records.latency import Estimate
from treeopt.records.results import EngineBench, NotRun, Row
from treeopt.report.bench_heading import paced_speedup
from treeopt.report.grid_bench import GridReport
from treeopt.report.html.contents import LabelledBench
from treeopt.report.html.plot import ROW, TOP, Plot, axis_end
from treeopt.report.html.shapes import Entry, Figure, shape, shortened
from treeopt.report.html.tables import Table, Value
from treeopt.report.tree_bench import TreeBenchReport

PREDICTED, MEASURED = Entry("ring", "chain", "predicted"), Entry("dot", "tree", "measured")
Pair = tuple[str, Estimate | float | None, Estimate | float]


def trees(benches: Sequence[LabelledBench[TreeBenchReport]]) -> tuple[Figure, Table]:
    """Return single trees, each with its promise and what it did."""
    found = [each.bench for each in benches]
    rows: list[Pair] = [(_named(each), each.predicted_speedup, each.measured_speedup) for each in found]
    figure = pairs(
        "benches",
        "Trees, predicted beside measured",
        "Tokens per second over those of plain decoding; bars are 95 % intervals.",
        rows,
    )
    table = Table(
        name="benches",
        title="Trees, predicted beside measured",
        header=(
            *(
                "file",
                "drafter",
                "nodes",
                "depth",
                "rule",
                "temperature",
                "predicted speedup",
                "measured speedup",
                "low",
                "high",
            ),
            *(
                "predicted tokens per step",
                "measured tokens per step",
                "predicted step, ms",
                "measured step, ms",
                "predicted speedup at this pace",
                "text",
            ),
        ),
        rows=tuple(_tree_row(each.label, each.bench) for each in benches),
    )
    return figure, table


def grid(name: str, label: str, bench: GridReport) -> tuple[Figure, Table]:
    """Return a grid, measured over predicted."""
    points = [(row.predicted_speedup, row.measured_speedup) for row in bench.trees]
    ends = [each for predicted, measured in points for each in (predicted, measured.low, measured.high)]
    low, high = 0.95 * min(ends), 1.05 * max(ends)
    plot = Plot((low, high), (low, high), ("predicted speedup", "measured speedup"), size=(460.0, 400.0))
    plot.line([(low, low), (high, high)], "plain dashed")
    for place, (row, (predicted, measured)) in enumerate(zip(bench.trees, points, strict=True)):
        colour = "choice" if place == 0 else row.kind if row.kind in ("tree", "chain") else "plain"
        said = (
            f"{row.kind} of {row.nodes} nodes, depth {row.depth}: predicted {predicted:.2f}, measured {_text(measured)}"
        )
        plot.interval(predicted, measured.low, measured.high, colour)
        plot.dot(predicted, measured.value, colour, said)
    legend = (
        Entry("dot", "choice", "the plan's choice"),
        Entry("dot", "tree", "trees"),
        Entry("dot", "chain", "chains"),
        Entry("dashed", "plain", "came true"),
    )
    figure = plot.figure(
        name=name,
        title=f"Grid {shortened(label, 50)}",
        caption=f"Measured speedup with its 95 % interval over the predicted one, rule {shortened(bench.rule)} at temperature {bench.temperature:g}.",
        legend=legend,
    )
    rows = tuple(
        (
            *(row.kind, row.nodes, row.depth, row.predicted_speedup, row.measured_speedup.value),
            *(
                row.measured_speedup.low,
                row.measured_speedup.high,
                row.predicted_tokens_per_step,
                row.measured_tokens_per_step,
            ),
            *(1000 * row.predicted_step_s, 1000 * row.measured_step_s, paced_speedup(row.predicted_at_pace)),
        )
        for row in bench.trees
    )
    header = (
        *("kind", "nodes", "depth", "predicted speedup", "measured speedup", "low", "high"),
        *("predicted tokens per step", "measured tokens per step", "predicted step, ms", "measured step, ms"),
        "predicted speedup at this pace",
    )
    return figure, Table(name=name, title=f"Grid {shortened(label, 50)}", header=header, rows=rows)


def methods(name: str, label: str, rows: tuple[Row | NotRun, ...]) -> tuple[Figure, Table]:
    """Return all ways of speculating, each with its promise and what it did."""
    ran = [row for row in rows if isinstance(row, Row)]
    found: list[Pair] = [
        (
            f"{row.method}, {row.setting}, rule {row.rule} at temperature {row.temperature:g}",
            row.predicted_speedup,
            row.speedup,
        )
        for row in ran
    ]
    figure = pairs(
        name,
        f"All methods {shortened(label, 50)}",
        "Tokens per second over those of plain decoding on the same prompts.",
        found,
    )
    header = (
        "method",
        "rule",
        "temperature",
        "setting",
        "tokens per step",
        "step, ms",
        "predicted speedup",
        "predicted speedup at this pace",
        "measured speedup",
        "lossless",
    )
    table = Table(
        name=name,
        title=f"All methods {shortened(label, 50)}",
        header=header,
        rows=tuple(_method_row(row) for row in rows),
    )
    return figure, table


def engine(name: str, label: str, bench: EngineBench) -> tuple[Figure, Table]:
    """Return the draft lengths of an engine, promised and measured."""
    most = max(max(row.speedup, row.predicted_speedup or 0.0) for row in bench.rows)
    longest = max(1, *(row.length for row in bench.rows))
    plot = Plot((-0.3, longest + 0.3), (0.0, 1.08 * max(1.0, most)), ("draft tokens", "times plain decoding"))
    plot.across(1.0, -0.3, longest + 0.3, "plain dashed")
    plot.line([(row.length, row.predicted_speedup) for row in bench.rows if row.predicted_speedup is not None], "chain")
    for row in bench.rows:
        promised = "" if row.predicted_speedup is None else f", promised {row.predicted_speedup:.2f}"
        said = f"{row.length} draft tokens: measured {row.speedup:.2f}{promised}"
        plot.interval(row.length, row.speedup * (1 - row.spread / 2), row.speedup * (1 + row.spread / 2), "tree")
        plot.dot(row.length, row.speedup, "tree", said)
        if row.chosen:
            plot.star(row.length, row.speedup, f"the choice, {said}")
    title = f"{shortened(bench.engine, 30)} {shortened(bench.version, 20)}, {shortened(label, 30)}"
    legend = (
        MEASURED,
        Entry("line", "chain", "promised"),
        Entry("star", "choice", "the choice"),
        Entry("dashed", "plain", "plain decoding"),
    )
    figure = plot.figure(
        name=name,
        title=title,
        caption="Tokens per second over those of plain decoding in the same engine; bars span what repeats differ by.",
        legend=legend,
    )
    header = (
        "draft tokens",
        "chosen",
        "predicted speedup",
        "measured speedup",
        "predicted tokens/s",
        "measured tokens/s",
        "tokens per step",
        "repeats",
        "text",
    )
    rows = tuple(
        (
            *(row.length, "yes" if row.chosen else "", row.predicted_speedup, row.speedup, row.predicted_tokens_per_s),
            *(row.tokens_per_s, row.tokens_per_step, row.spread, _same(row.identical)),
        )
        for row in bench.rows
    )
    return figure, Table(name=name, title=title, header=header, rows=rows)


def pairs(name: str, title: str, caption: str, rows: list[Pair]) -> Figure:
    """Return what was promised and what was measured on a line for each row, below its name."""
    given = [value for _, one, other in rows for value in (one, other) if value is not None]
    end = axis_end(map(_value, given), (_ends(value)[-1] for value in given))
    plot = Plot.of_rows((0.0, end), "times plain decoding", len(rows))
    for place, (label, predicted, measured) in enumerate(rows):
        top = TOP + ROW * place
        plot.row_name(place, shortened(label, 200))
        plot.add(shape("path", "grid", d=f"M{plot.x.start:.1f} {top + 22:.1f}H{plot.x.end:.1f}"))
        plot.add(shape("path", "line plain dashed", d=f"M{plot.x(1):.1f} {top + 14:.1f}v16"))
        for value, colour, word, radius in (
            (predicted, "chain", "predicted", 6.5),
            (measured, "tree", "measured", 4.0),
        ):
            if value is None:
                continue
            first, *_, last = (min(end, max(0.0, each)) for each in _ends(value))
            shift = 3 if colour == "chain" else 0
            plot.add(
                shape("path", f"line {colour}", d=f"M{plot.x(first):.1f} {top + 22 + shift:.1f}H{plot.x(last):.1f}")
            )
            style = "ring" if colour == "chain" else "dot"
            said = f"{shortened(label, 200)}: {word} {_text(value)}"
            plot.add(shape("circle", f"{style} {colour}", cx=plot.x(_value(value)), cy=top + 22, r=radius, title=said))
    legend = (PREDICTED, MEASURED, Entry("dashed", "plain", "plain decoding"))
    return plot.figure(
        name=name,
        title=title,
        caption=caption,
        legend=legend,
    )


def _named(each: TreeBenchReport) -> str:
    drafted = "" if each.drafter == "model" else f"{each.drafter}, "
    return f"{drafted}{each.nodes} nodes, depth {each.depth}, rule {each.rule} at temperature {each.temperature:g}"


def _tree_row(label: str, each: TreeBenchReport) -> tuple[Value, ...]:
    return (
        *(label, each.drafter, each.nodes, each.depth, each.rule, each.temperature),
        None if each.predicted_speedup is None else _value(each.predicted_speedup),
        *(each.measured_speedup.value, each.measured_speedup.low, each.measured_speedup.high),
        *(each.predicted_tokens_per_step, each.measured_tokens_per_step),
        None if each.predicted_step_s is None else 1000 * each.predicted_step_s,
        1000 * each.measured_step_s,
        *(paced_speedup(each.predicted_at_pace), _same(each.identical_to_plain_decoding)),
    )


def _method_row(row: Row | NotRun) -> tuple[Value, ...]:
    if isinstance(row, NotRun):
        return (row.method, None, row.temperature, f"not run: {row.reason}", *[None] * 6)
    return (
        *(row.method, row.rule, row.temperature, row.setting, row.tokens_per_step, 1000 * row.step_s),
        *(row.predicted_speedup, paced_speedup(row.predicted_at_pace), row.speedup),
        f"{'yes' if row.lossless else 'NO'} ({row.evidence})",
    )


def _same(identical: bool | None) -> str:
    return {None: "sampled, not compared", True: "plain decoding's", False: "DIFFERS"}[identical]


def _value(value: Estimate | float) -> float:
    return value.value if isinstance(value, Estimate) else value


def _ends(value: Estimate | float) -> tuple[float, ...]:
    return (value.low, value.value, value.high) if isinstance(value, Estimate) else (value, value)


def _text(value: Estimate | float) -> str:
    return f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})" if isinstance(value, Estimate) else f"{value:.2f}"
