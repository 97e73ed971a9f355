"""Figures of several texts at a time: tokens per second over the batch size, and every way beside its promise."""

import math

from treeopt.records.batch_bench import BatchBench, BatchRow, BatchSize
from treeopt.records.rules import rule_label
from treeopt.report.batch_bench import setting_name
from treeopt.report.batch_figure import drawn_trees, lines_of
from treeopt.report.bench_heading import paced_speedup
from treeopt.report.html.benches import Pair, pairs
from treeopt.report.html.plot import Plot
from treeopt.report.html.shapes import Entry, Figure, shortened
from treeopt.report.html.tables import Table, Value
from treeopt.report.text import counted
from treeopt.trees import TokenTree

OTHERS = ("s3", "s4", "s6")
"""Colours of trees and chains beyond the first of either."""


def figures(name: str, label: str, found: BatchBench) -> tuple[Figure, Figure]:
    """Return speed over the batch size, and predicted beside measured speedups of every way."""
    where = (
        f"{rule_label(shortened(found.rule))} at temperature {found.temperature:g}, {counted(found.prompts, 'prompt')}"
    )
    return _over_sizes(name, label, where, found), _ways(f"{name}-ways", label, where, found)


def tables(name: str, label: str, found: BatchBench) -> tuple[Table, Table]:
    """Return every way at every batch size, and what the choices leave."""
    header = (
        *("texts at a time", "way", "chosen", "measured tokens/s", "predicted tokens/s", "measured speedup"),
        *(
            "predicted speedup",
            "predicted at this pace",
            "measured tokens per step",
            "predicted tokens per step",
            "measured step, ms",
        ),
        *("predicted step, ms", "spread of rounds", "host overhead, share", "reading prompts, s", "texts"),
        *("texts as decoded alone", "texts apart at near-ties"),
    )
    ways = Table(
        name=name,
        title=f"Several texts at a time {shortened(label, 50)}",
        header=header,
        rows=tuple(_row(row, size, found.temperature) for size in found.sizes for row in size.rows),
    )
    choices = Table(
        name=f"{name}-choices",
        title=f"What choices leave {shortened(label, 50)}",
        header=("texts at a time", "choice", "fastest measured", "regret"),
        rows=tuple(
            (
                size.batch_size,
                None if size.chosen is None else setting_name(size.chosen.tree),
                setting_name(size.best.tree),
                size.regret,
            )
            for size in found.sizes
        ),
    )
    return ways, choices


def overhead_in_words(found: BatchBench) -> str:
    """Return in a sentence the host overhead of all trees and batch sizes."""
    rests = sorted(row.measured.overhead for size in found.sizes for row in size.rows)
    low, high = (f"{100 * each:.0f}" for each in (rests[0], rests[-1]))
    return f"{low if low == high else f'{low} to {high}'} % of a step's time is host overhead."


def _over_sizes(name: str, label: str, where: str, found: BatchBench) -> Figure:
    trees = drawn_trees(found)
    colours = _colours(trees)
    trees = [tree for tree in trees if tree in colours]
    drawn = {tree: lines_of(found, tree) for tree in trees}
    rates = [rate for lines in drawn.values() for line in lines for _, rate in line if not math.isnan(rate)]
    sizes = [size.batch_size for size in found.sizes]
    low, high = math.floor(math.log2(sizes[0])), math.ceil(math.log2(sizes[-1]))
    ends = 2.0**low / 1.12, 2.0**high * 1.12
    plot = Plot(ends, (0.0, 1.08 * max(rates)), ("texts at a time", "tokens per second"), bases=(2, 0))
    for tree, (measured, predicted) in drawn.items():
        plot.line(measured, colours[tree])
        plot.line(predicted, f"{colours[tree]} dashed")
    for size in found.sizes:
        for row in size.rows:
            if row.tree in colours:
                plot.dot(size.batch_size, row.measured.tokens_per_s, colours[row.tree], _said(row, size))
        if (chosen := size.chosen) is not None:
            plot.star(size.batch_size, chosen.measured.tokens_per_s, f"the choice, {_said(chosen, size)}")
    legend = [Entry("line", colours[tree], setting_name(tree)) for tree in trees]
    legend += [Entry("dashed", "ink", "predicted")]
    legend += [Entry("star", "choice", "the choice")] if any(size.chosen for size in found.sizes) else []
    left_out = len({row.tree for size in found.sizes for row in size.rows} - set(trees))
    return plot.figure(
        name=name,
        title=f"Several texts at a time {shortened(label, 50)}",
        caption=f"Tokens per second of all texts together over how many are decoded at a time: {where}. Solid lines are "
        "measured, dashed ones predicted." + (f" Only in the table: {counted(left_out, 'way')}." if left_out else ""),
        legend=tuple(legend),
    )


def _colours(trees: list[TokenTree]) -> dict[TokenTree, str]:
    """Return a colour for each way: those of the page's chain and tree for the first of either, while there are any."""
    found: dict[TokenTree, str] = {}
    others = iter(OTHERS)
    for tree in trees:
        kind = setting_name(tree).partition(" ")[0]
        colour = kind if kind not in found.values() else next(others, None)
        if colour is not None:
            found[tree] = colour
    return found


def _ways(name: str, label: str, where: str, found: BatchBench) -> Figure:
    rows: list[Pair] = [
        (
            f"{'★ ' if row.chosen else ''}{counted(size.batch_size, 'text')}: {setting_name(row.tree)}",
            row.predicted_speedup,
            row.measured.speedup,
        )
        for size in found.sizes
        for row in size.rows
        if row.tree.nodes > 1 or row.chosen
    ]
    return pairs(
        name,
        f"Texts at a time, predicted beside measured {shortened(label, 40)}",
        f"Tokens per second over those of plain decoding of as many texts; ★ is the choice: {where}.",
        rows,
    )


def _said(row: BatchRow, size: BatchSize) -> str:
    measured, promised = row.measured, row.predicted_tokens_per_s
    predicted = "" if promised is None else f", predicted {promised:.0f}"
    return (
        f"{counted(size.batch_size, 'text')}, {setting_name(row.tree)}: {measured.tokens_per_s:.0f} tokens per second"
        f"{predicted}; {measured.speedup:.2f} times plain; no model runs in {100 * measured.overhead:.0f} % of the time"
    )


def _row(row: BatchRow, size: BatchSize, temperature: float) -> tuple[Value, ...]:
    measured, step_s = row.measured, row.predicted_step_s
    near_ties = None if temperature else sum(each.near_tie for each in measured.divergences)
    return (
        *(size.batch_size, setting_name(row.tree), "yes" if row.chosen else "", measured.tokens_per_s),
        *(row.predicted_tokens_per_s, measured.speedup, row.predicted_speedup),
        paced_speedup(row.predicted_at_pace),
        *(measured.batch_tokens_per_step / size.batch_size, row.predicted_tokens_per_step),
        *(1000 * measured.step_s, None if step_s is None else 1000 * step_s, measured.spread, measured.overhead),
        *(measured.prefill_s, measured.texts, measured.texts - len(measured.divergences), near_ties),
    )
