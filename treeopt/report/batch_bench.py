"""Table of `treeopt bench batches`: every tree at every batch size, predicted and measured."""

from collections.abc import Iterator, Sequence
from statistics import median

from treeopt.errors import Warning
from treeopt.records.results import BatchBench, BatchRow, BatchSize
from treeopt.records.rules import rule_label
from treeopt.report.bench_text import SPEED_CHANGED, pace_lines, paced_speedup
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, milliseconds, number_or_absent, percent, signed_percent
from treeopt.trees import describe_tree

MAX_PLAIN_ERROR = 0.1
"""Relative error of predicted plain decoding, in the median over batch sizes, above which the table warns of it."""
HEADER = (
    "batch",
    "",
    "tokens/s",
    "predicted",
    "error",
    "tokens/step",
    "predicted",
    "step, ms",
    "predicted",
    "speedup",
    "predicted",
    "at pace",
    "host",
    "prefill, s",
    "identical",
)


def batch_bench_table(bench: BatchBench) -> str:
    """Return a line for each tree at each batch size, and below them the gap to the best."""
    rows: list[tuple[str, ...]] = [HEADER]
    for size in bench.sizes:
        rows += [_line(row, size, first=index == 0) for index, row in enumerate(size.rows)]
    columns = [Column(">"), Column(), *[Column(">")] * 13]
    heading = (
        f"{rule_label(bench.rule)} at temperature {bench.temperature:g}; {counted(bench.prompts, 'prompt')}, "
        f"{counted(bench.max_new_tokens, 'new token')} each, {counted(bench.rounds, 'round')}"
    )
    paces = [line for size in bench.sizes for line in pace_lines(size.pace, f" at batch size {size.batch_size}")]
    return "\n".join([heading, "", *aligned(rows, columns), "", *verdicts(bench), *paces, *_plain_error(bench)])


def verdicts(bench: BatchBench) -> tuple[str, ...]:
    """Return sentences on the gap to the best at each batch size, and on the outputs."""
    return (*(line for size in bench.sizes for line in _gap_to_best(size)), _outputs(bench))


def batch_outputs_warning(bench: BatchBench) -> Warning | None:
    """Return the warning that greedy outputs diverge from decoding alone other than at a near-tie: a fault of treeopt."""
    faults = sum(
        not divergence.near_tie for size in bench.sizes for row in size.rows for divergence in row.measured.divergences
    )
    if bench.temperature > 0 or not faults:
        return None
    return Warning(
        f"{counted(faults, 'output')} DIFFER{'S' * (faults == 1)} from decoding alone, and not at a near-tie.",
        "Report it with the --output file.",
    )


def _line(row: BatchRow, size: BatchSize, *, first: bool) -> tuple[str, ...]:
    measured, predicted, rate = row.measured, row.predicted, size.predicted_tokens_per_s(row)
    return (
        str(size.batch_size) if first else "",
        ("* " if row.chosen else "  ") + describe_tree(row.tree),
        f"{measured.tokens_per_s:.0f}",
        number_or_absent(rate, ".0f"),
        "-" if rate is None else signed_percent(rate / measured.tokens_per_s),
        f"{measured.batch_tokens_per_step / size.batch_size:.2f}",
        number_or_absent(predicted.tokens_per_step, ".2f"),
        milliseconds(measured.step_s),
        "-" if predicted.step_s is None else milliseconds(predicted.step_s),
        f"{measured.speedup:.2f}",
        number_or_absent(predicted.speedup, ".2f"),
        number_or_absent(paced_speedup(predicted.at_pace), ".2f"),
        percent(measured.overhead),
        f"{measured.prefill_s:.2f}",
        f"{measured.outputs - len(measured.divergences)}/{measured.outputs}",
    )


def _gap_to_best(size: BatchSize) -> Iterator[str]:
    chosen, best, gap = size.chosen, size.best, size.gap_to_best
    if chosen is None or gap is None:
        return
    if best is chosen or gap <= 0:
        yield f"Batch size {size.batch_size}: the choice, {describe_tree(chosen.tree)}, is the fastest measured."
        return
    spread = max(best.measured.spread, chosen.measured.spread)
    yield (
        f"Batch size {size.batch_size}: {describe_tree(best.tree)} is {percent(gap, 1)} faster than the choice, "
        f"{describe_tree(chosen.tree)}. Rounds differ by up to {percent(spread)}."
    )


def _plain_error(bench: BatchBench) -> Iterator[str]:
    rates = [(size.predicted_tokens_per_s(size.rows[0]), size.rows[0].measured.tokens_per_s) for size in bench.sizes]
    ratios = [predicted / measured for predicted, measured in rates if predicted is not None]
    if ratios and abs(median(ratios) - 1) > MAX_PLAIN_ERROR:
        yield f"Predictions of plain decoding are off by {signed_percent(median(ratios))}: {SPEED_CHANGED}"


def _outputs(bench: BatchBench) -> str:
    measurements = [row.measured for size in bench.sizes for row in size.rows]
    outputs = sum(measured.outputs for measured in measurements)
    diverged = sum(len(measured.divergences) for measured in measurements)
    if not diverged:
        return "All outputs are identical to decoding alone, token by token."
    if bench.temperature > 0:
        return (
            f"{diverged} of {outputs} outputs diverged from decoding alone with the same seed. Above temperature 0, near-ties "
            "are not distinguished from faults."
        )
    if (warning := batch_outputs_warning(bench)) is not None:
        return warning.sentence
    return (
        f"{diverged} of {outputs} outputs diverged from decoding alone, each at a near-tie of the top logits; all others are "
        "identical, token by token."
    )


def without_times_warning(sizes: Sequence[int]) -> Warning:
    """Return the warning for batch sizes beyond those of the profile."""
    measured = ",".join(map(str, sorted({1, *sizes})))
    return Warning(
        f"no prediction for batch sizes {', '.join(map(str, sizes))}: the profile has no times for them.",
        f"Profile with --batch-sizes {measured}.",
    )
