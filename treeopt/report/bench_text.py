"""Tables of `treeopt bench`: predictions next to measurements of one tree, of a grid of trees, and of all methods."""

from collections.abc import Iterable, Iterator, Sequence
from math import nan
from statistics import mean

from treeopt.errors import Warning
from treeopt.records.bench_file import BenchHeading, GridBench, GridTree, MethodsBench, TreeBench
from treeopt.records.profile import UNKNOWN
from treeopt.records.results import MethodRow, Pace, PacedPrediction
from treeopt.records.rules import LOSSY_RULES
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, milliseconds, models_and_machine, number_or_absent, percent, signed_percent
from treeopt.trees import describe_tree

SPEED_CHANGED = Warning(
    "the machine's speed has changed since it was profiled.",
    "Profile again right before a benchmark, or rely on speedups rather than times.",
)
MAX_PLAIN_ERROR = 0.05
"""Relative error of the predicted plain step above which `SPEED_CHANGED` is printed."""
MAX_PACE = 1.5
"""Ratio of the times of passes, in either direction, above which a profile is taken as another machine's."""
TREE_COLUMNS = (Column(least=18), Column(">", 10, 0), Column(">", 14, 0), Column(">", 10, 0))
GRID_HEADER = (
    "",
    *("tokens/step", "predicted", "error"),
    *("step, ms", "predicted", "error"),
    *("speedup", "predicted", "error", "at pace"),
)
METHODS_HEADER = (
    *("method", "rule", "setting", "tokens/step", "step, ms", "draft, ms", "verify, ms", "host, ms"),
    *("tokens/s", "speedup", "predicted", "at pace", "lossless"),
)
METHODS_COLUMNS = (Column(least=12), Column(), Column(), *[Column(">")] * 9, Column())


def describe_heading(heading: BenchHeading) -> str:
    """Return the pair, machine, dtype and date, such as `big + small on AMD EPYC (2 threads), float32, measured 2026-11-23`."""
    dtype = "" if heading.pair.dtype == UNKNOWN else heading.pair.dtype
    parts = (models_and_machine(heading.pair, heading.machine), dtype, f"measured {heading.created[:10]}")
    return ", ".join(filter(None, parts))


def pace_lines(pace: Pace | None, at_size: str = "") -> list[str]:
    """Return a line with the pace of a benchmark, none without one; `at_size` follows the first word."""
    if pace is None:
        return []
    passes = [f"{pace.plain:.2f}x (1 token)", f"{pace.verify:.2f}x ({counted(pace.verify_tokens, 'token')})"]
    passes += [] if pace.draft is None else [f"{pace.draft:.2f}x (draft level)"]
    return [f"Pace{at_size}: reference passes took {', '.join(passes)} the profile's time."]


def pace_warning(pace: Pace | None) -> Warning | None:
    """Return the warning that the machine is much slower or faster than the profile's; None within `MAX_PACE`."""
    if pace is None or 1 / MAX_PACE <= pace.plain <= MAX_PACE:
        return None
    factor, word = (pace.plain, "slower") if pace.plain > 1 else (1 / pace.plain, "faster")
    return Warning(
        f"passes are {factor:.1f} times {word} than in the profile, so the tree may not be the fastest here.",
        "Close other programs, or profile on this machine and solve again.",
    )


def paced_speedup(prediction: PacedPrediction | None) -> float | None:
    """Return the speedup that is predicted at the pace of a benchmark; None without a pace."""
    return None if prediction is None else prediction.speedup


def tree_bench_table(bench: TreeBench) -> str:
    """Return the prediction for one tree next to its measurement."""
    predicted, measured, at_pace = bench.predicted, bench.measured, bench.predicted.at_pace
    tokens = number_or_absent(predicted.tokens_per_step, ".2f")
    steps = [
        "-" if step_s is None else milliseconds(step_s)
        for step_s in (predicted.step_s, None if at_pace is None else at_pace.step_s)
    ]
    speedups = [number_or_absent(speedup, ".2f") for speedup in (predicted.speedup, paced_speedup(at_pace))]
    rows = [
        ("", "predicted", "at this pace", "measured"),
        ("tokens per step", tokens, "-" if at_pace is None else tokens, f"{measured.tokens_per_step:.2f}"),
        ("step, ms", *steps, milliseconds(measured.step_s)),
        ("speedup", *speedups, f"{measured.speedup.value:.2f}"),
    ]
    lines = aligned(rows, TREE_COLUMNS)
    lines += ["", *pace_lines(measured.pace)] if measured.pace else []
    lines.append(f"\n{counted(measured.tokens, 'token')} decoded. {_outputs_sentence(bench)}")
    if bench.drafter != "model":
        lines.append(f"Drafted by {bench.drafter}.")
    return "\n".join(lines)


def tree_outputs_warning(bench: TreeBench) -> Warning | None:
    """Return the warning that a greedy output diverges from plain decoding other than at a near-tie: a fault of treeopt."""
    if all(divergence.near_tie for divergence in bench.measured.divergences or ()):
        return None
    return Warning("the output DIFFERS from plain decoding.", "Report it with the --output file.")


def _outputs_sentence(bench: TreeBench) -> str:
    divergences = bench.measured.divergences
    if divergences is None:
        sentence = "Outputs are not compared above temperature 0."
        if bench.rule not in LOSSY_RULES:
            return sentence
        return f"{sentence} Rule {bench.rule} is lossy: outputs do not follow the target's distribution."
    if not divergences:
        return "All outputs are identical to plain decoding, token by token."
    if (warning := tree_outputs_warning(bench)) is not None:
        return warning.sentence
    return (
        f"{len(divergences)} of {counted(bench.measured.prompts, 'output')} diverged from plain decoding, each at a "
        "near-tie of the top logits."
    )


def grid_table(bench: GridBench) -> str:
    """Return the prediction for each tree next to its measurement, the choice marked, and the mean errors."""
    rows = [GRID_HEADER, *(_grid_row(row, chosen=index == 0) for index, row in enumerate(bench.trees))]
    columns = [Column(), *[Column(">")] * (len(GRID_HEADER) - 1)]
    return "\n".join([*aligned(rows, columns), "", *_grid_errors(bench), *_grid_outputs(bench)])


def grid_outputs_warning(bench: GridBench) -> Warning | None:
    """Return the warning that greedy outputs of some trees differ from plain decoding: a fault of treeopt."""
    differing = sum(row.measured.identical is False for row in bench.trees)
    if not differing:
        return None
    return Warning(
        f"the outputs of {counted(differing, 'tree')} DIFFER from plain decoding.",
        "Run treeopt bench tree TREE for each.",
    )


def _grid_row(row: GridTree, *, chosen: bool) -> list[str]:
    cells = [f"{'* ' if chosen else '  '}{describe_tree(row.tree)}"]
    forms = ("{:.2f}".format, milliseconds, "{:.2f}".format)
    for form, (predicted, measured) in zip(forms, _pairs(row), strict=True):
        cells += [form(measured), form(predicted), signed_percent(predicted / measured)]
    return [*cells, number_or_absent(paced_speedup(row.predicted.at_pace), ".2f")]


def _pairs(row: GridTree) -> tuple[tuple[float, float], ...]:
    """Return tokens per step, seconds of a step, and speedup, each as predicted and as measured."""
    predicted, measured = row.predicted, row.measured
    pairs = (
        (predicted.tokens_per_step, measured.tokens_per_step),
        (predicted.step_s, measured.step_s),
        (predicted.speedup, measured.speedup.value),
    )
    return tuple((nan if prediction is None else prediction, measurement) for prediction, measurement in pairs)


def _grid_errors(bench: GridBench) -> Iterator[str]:
    trees, plain_s = bench.trees, bench.predicted_plain_step_s
    first = trees[0].measured
    yield (
        f"Plain decoding: predicted {milliseconds(plain_s)} ms per token, measured {milliseconds(first.plain_step_s)} ms "
        f"({signed_percent(plain_s / first.plain_step_s)})."
    )
    tokens, step, speedup = (percent(_mean_error(pairs), 1) for pairs in zip(*map(_pairs, trees), strict=True))
    yield f"Mean absolute error: tokens per step {tokens}, step {step}, speedup {speedup}."
    paced = [(row.predicted.at_pace, row.measured) for row in trees if row.predicted.at_pace is not None]
    if paced:
        step = percent(_mean_error((predicted.step_s, measured.step_s) for predicted, measured in paced), 1)
        speedup = percent(_mean_error((predicted.speedup, measured.speedup.value) for predicted, measured in paced), 1)
        yield f"Mean absolute error at this pace: step {step}, speedup {speedup}."
    yield from pace_lines(first.pace)
    reached = percent(first.speedup.value / max(row.measured.speedup.value for row in trees), 1)
    if bench.plain_is_fastest:
        yield f"The plan chose plain decoding; its fastest tree (*) reaches {reached} of the best measured speedup."
    else:
        yield f"The chosen tree (*) reaches {reached} of the best measured speedup."
    if abs(plain_s / first.plain_step_s - 1) > MAX_PLAIN_ERROR:
        yield SPEED_CHANGED.sentence


def _mean_error(pairs: Iterable[tuple[float, float]]) -> float:
    return mean(abs(predicted / measured - 1) for predicted, measured in pairs)


def _grid_outputs(bench: GridBench) -> Iterator[str]:
    if (warning := grid_outputs_warning(bench)) is not None:
        yield warning.sentence
    elif all(row.measured.identical for row in bench.trees):
        yield "All outputs are identical to plain decoding, token by token."


def methods_table(bench: MethodsBench) -> str:
    """Return one line per method, temperature by temperature, and below them the assumptions of predictions."""
    blocks = []
    for temperature in bench.temperatures:
        rows = [row for row in bench.rows if row.temperature == temperature]
        table = [
            METHODS_HEADER,
            *map(_method_row, rows),
            *((row.method, f"not run: {row.reason}") for row in bench.not_run if row.temperature == temperature),
        ]
        blocks.append("\n".join([f"temperature {temperature:g}", "", *aligned(table, METHODS_COLUMNS)]))
        pace = pace_lines(rows[0].pace) if rows else []
        blocks.append("\n".join(["Draft, verify and host overhead were timed in a separate run.", *pace]))
        blocks += _assumptions(rows)
    return "\n\n".join(blocks)


def _assumptions(rows: Sequence[MethodRow]) -> list[str]:
    assumptions = dict.fromkeys(assumption for row in rows for assumption in row.assumed)
    lines = [
        f"  {', '.join(row.method for row in rows if assumption in row.assumed)}: {assumption}"
        for assumption in assumptions
    ]
    return ["\n".join(["Predictions assume:", *lines])] if lines else []


def _method_row(row: MethodRow) -> tuple[str, ...]:
    times_s = (row.step_s, row.draft_s, row.verify_s, row.overhead_s)
    return (
        row.method,
        row.rule,
        row.setting,
        f"{row.tokens_per_step:.2f}",
        *(milliseconds(seconds) if seconds > 0 else "0" for seconds in times_s),
        f"{row.tokens_per_s:.0f}",
        f"{row.speedup:.2f}",
        f"{row.predicted_speedup:.2f}",
        number_or_absent(paced_speedup(row.predicted_at_pace), ".2f"),
        f"{'yes' if row.lossless else 'NO'} ({row.evidence})",
    )
