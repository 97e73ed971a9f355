"""Several texts at a time, as predicted and as decoded: a table for all batch sizes."""

from collections.abc import Iterator, Sequence
from statistics import median

from treeopt.errors import Warning
from treeopt.records.batch_bench import BatchBench, BatchRow, BatchSize
from treeopt.records.rules import rule_label
from treeopt.report.bench_heading import pace_lines, paced_speedup
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, milliseconds, number_or_absent
from treeopt.report.times_warnings import PLAIN_SPEED_CHANGED
from treeopt.trees import describe_tree

MUCH = 0.1
"""Plain decoding off by more than this, at the median batch size, says that the machine changed."""
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
    "equal",
)


def batch_bench_table(found: BatchBench) -> str:
    """Return a line for each way at each batch size, predicted beside measured, and what the choices leave."""
    rows: list[tuple[str, ...]] = [HEADER]
    for size in found.sizes:
        rows += [_line(row, size, first=number == 0) for number, row in enumerate(size.rows)]
    columns = [Column(">"), Column(), *[Column(">")] * 13]
    heading = (
        f"{rule_label(found.rule)} at temperature {found.temperature:g}; {counted(found.prompts, 'prompt')}, "
        f"{counted(found.max_new_tokens, 'new token')} each, {counted(found.rounds, 'round')}"
    )
    paces = [line for each in found.sizes for line in pace_lines(each.pace, f" at batch size {each.batch_size}")]
    return "\n".join([heading, "", *aligned(rows, columns), "", *verdicts(found), *paces, *_speed(found)])


def verdicts(found: BatchBench) -> tuple[str, ...]:
    """Return in sentences what the choice of each size leaves, and whether texts are those decoded alone."""
    return (*(text for each in found.sizes if (text := _verdict(each))), *_texts(found))


def differing_texts(found: BatchBench) -> int:
    """Return how many texts part from those decoded alone for no reason that is known, which is a fault."""
    if found.temperature > 0:
        return 0
    return sum(not each.near_tie for size in found.sizes for row in size.rows for each in row.measured.divergences)


def _line(row: BatchRow, size: BatchSize, *, first: bool) -> tuple[str, ...]:
    measured, promised = row.measured, row.predicted_tokens_per_s
    return (
        str(size.batch_size) if first else "",
        ("* " if row.chosen else "  ") + describe_tree(row.tree),
        f"{measured.tokens_per_s:.0f}",
        number_or_absent(promised, ".0f"),
        "-" if promised is None else f"{promised / measured.tokens_per_s - 1:+.1%}",
        f"{measured.batch_tokens_per_step / size.batch_size:.2f}",
        number_or_absent(row.predicted_tokens_per_step, ".2f"),
        milliseconds(measured.step_s),
        "-" if row.predicted_step_s is None else milliseconds(row.predicted_step_s),
        f"{measured.speedup:.2f}",
        number_or_absent(row.predicted_speedup, ".2f"),
        number_or_absent(paced_speedup(row.predicted_at_pace), ".2f"),
        f"{measured.overhead:.0%}",
        f"{measured.prefill_s:.2f}",
        f"{measured.texts - len(measured.divergences)}/{measured.texts}",
    )


def _verdict(size: BatchSize) -> str:
    """Return how much faster another way is than the chosen one; empty where nobody chose."""
    chosen, best, regret = size.chosen, size.best, size.regret
    if chosen is None or regret is None:
        return ""
    texts = counted(size.batch_size, "text")
    if best is chosen or regret <= 0:
        return f"{texts}: the choice, {describe_tree(chosen.tree)}, is the fastest measured."
    spread = max(best.measured.spread, chosen.measured.spread)
    return (
        f"{texts}: {describe_tree(best.tree)} is {regret:.1%} faster than the choice, {describe_tree(chosen.tree)}; rounds lie "
        f"{spread:.0%} apart."
    )


def _speed(found: BatchBench) -> Iterator[str]:
    """Yield what is wrong with the machine where plain decoding is far from as fast as predicted."""
    plain = [(each.rows[0].predicted_tokens_per_s, each.rows[0].measured.tokens_per_s) for each in found.sizes]
    errors = [promised / measured - 1 for promised, measured in plain if promised is not None]
    if errors and abs(median(errors)) > MUCH:
        yield f"Plain decoding was predicted {median(errors):+.0%} off: {PLAIN_SPEED_CHANGED}"


def _texts(found: BatchBench) -> Iterator[str]:
    """Yield whether texts are those decoded alone."""
    ways = [row.measured for size in found.sizes for row in size.rows]
    texts, parted = sum(each.texts for each in ways), [each for way in ways for each in way.divergences]
    if not parted:
        yield "Every text is, token by token, the one decoded alone."
    elif found.temperature > 0:
        yield (
            f"{len(parted)} of {texts} texts part from those decoded alone with the same seed; above temperature 0 nobody "
            "knows whether at a near-tie."
        )
    elif faults := differing_texts(found):
        yield str(outputs_warning(faults))
    else:
        yield (
            f"{len(parted)} of {texts} texts part from those decoded alone, each at a near-tie of the top logits; all "
            "others are the same, token by token."
        )


def outputs_warning(texts: int) -> Warning:
    """Return the warning that texts of a batch are not those decoded alone, which is a fault of treeopt."""
    return Warning(
        f"{texts} texts DIFFER from those decoded alone, not at near-ties.", "Report it with the --output file."
    )


def without_times_warning(sizes: Sequence[int]) -> Warning:
    """Return the warning for batch sizes beyond those of the profile."""
    measured = ",".join(map(str, sorted({1, *sizes})))
    return Warning(
        f"nothing is predicted for batch sizes {', '.join(map(str, sizes))}, because the profile has no times for them.",
        f"Profile with --batch-sizes {measured}.",
    )
