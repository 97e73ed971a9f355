"""Table of `treeopt bench engine`: draft lengths compared, and how outputs differ from the engine's plain decoding."""

from collections.abc import Sequence

from treeopt.errors import EngineError, Warning
from treeopt.records.engine import ChainLatency, lengths_around
from treeopt.records.results import FAULT, NEAR_TIE, UNCHECKED, EngineBench, EngineRow, OutputDivergence
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, number_or_absent, percent

MIN_CHANGE = 0.05
"""Change of plain decoding's speed since the probe from which it is reported."""
MAX_FAULTS = 5
"""Faults that are described one by one."""
HEADER = (
    "",
    "draft tokens",
    "tokens/step",
    "predicted",
    "tokens/s",
    "predicted",
    "speedup",
    "predicted",
    "repeats",
    "outputs",
)


def engine_bench_table(bench: EngineBench, default: int | None) -> str:
    """Return a line for each draft length, the gap to the best, and how outputs differ; `default` is the engine's length."""
    rows = [HEADER, *(_row(row, default) for row in bench.rows)]
    best = bench.best
    if best.chosen:
        verdict = "The chosen length is the fastest measured."
    else:
        spread = max(best.spread, bench.chosen.spread)
        verdict = (
            f"{_length(best).capitalize()} is {percent(bench.gap_to_best, 1)} faster than the choice, {_length(bench.chosen)}. "
            f"Repeats differ by up to {percent(spread)}."
        )
    columns = [Column(), *[Column(">")] * 8, Column()]
    lines = [f"{bench.engine} ({bench.version})", "", *aligned(rows, columns), "", verdict]
    return "\n".join([*lines, *_change_since_probe(bench.rows[0]), *losslessness_lines(bench)])


def _row(row: EngineRow, default: int | None) -> tuple[str, ...]:
    name = "plain" if row.length == 0 else "default" if row.length == default else ""
    return (
        ("* " if row.chosen else "  ") + name,
        str(row.length),
        f"{row.tokens_per_step:.2f}",
        number_or_absent(row.predicted.tokens_per_step, ".2f"),
        f"{row.tokens_per_s:.0f}",
        number_or_absent(row.predicted.tokens_per_s, ".0f"),
        f"{row.speedup:.2f}",
        number_or_absent(row.predicted.speedup, ".2f"),
        percent(row.spread),
        {None: "sampled", True: "identical", False: "DIFFER"}[row.identical],
    )


def _change_since_probe(plain: EngineRow) -> list[str]:
    """Return a line on a change of the machine's speed that exceeds the spread of repeats."""
    predicted = plain.predicted.tokens_per_s
    if predicted is None:
        return []
    change = plain.tokens_per_s / predicted - 1
    if abs(change) < max(MIN_CHANGE, plain.spread):
        return []
    comparison = f"Plain decoding is {percent(abs(change))} {'slower' if change < 0 else 'faster'} than at the probe"
    reason = "the machine's speed has changed, or other programs are running"
    return [f"{comparison}: {reason}. Compare speedups, or probe again."]


def _length(row: EngineRow) -> str:
    return "plain decoding" if row.length == 0 else counted(row.length, "draft token")


def losslessness_lines(bench: EngineBench) -> list[str]:
    """Return a line for each length whose outputs differ, and one for each of the first faults; none above temperature 0."""
    check = bench.losslessness
    if check is None:
        return []
    if not _divergences(bench):
        return ["All outputs are identical to plain decoding."]
    rows: list[tuple[str, ...]] = [("draft tokens", "identical", NEAR_TIE + "s", "largest gap", FAULT + "s", UNCHECKED)]
    rows += [_divergence_row(row, check.prompts) for row in bench.rows if row.length or row.divergences]
    heading = f"Outputs compared with plain decoding; a near-tie is a gap of at most {check.near_tie_nats:.2g} nats (--near-tie):"
    lines = ["", heading, *aligned(rows, [Column(">")] * 6)]
    faults = [(row, divergence) for row in bench.rows for divergence in row.divergences if divergence.verdict == FAULT]
    lines += [_fault_line(row, divergence) for row, divergence in faults[:MAX_FAULTS]]
    if len(faults) > MAX_FAULTS:
        lines.append(f"{len(faults) - MAX_FAULTS} more: see the file of --output FILE.")
    if check.unchecked is not None:
        lines.append(f"Not checked: {check.unchecked}")
    return lines


def interpolated_length_warning(latency: ChainLatency, chosen: int) -> Warning | None:
    """Return the warning that the chosen length lies between probed ones; None if it was probed."""
    lengths = [chain.length for chain in latency.chains]
    around = lengths_around(lengths, chosen)
    if around is None:
        return None
    return Warning(
        f"the chosen length, {counted(chosen, 'draft token')}, was not probed. Its prediction is interpolated between lengths "
        f"{around[0]} and {around[1]}.",
        f"Probe with --lengths {','.join(map(str, sorted([*lengths, chosen])))} to measure it.",
    )


def losslessness(bench: EngineBench) -> tuple[Warning | None, EngineError | None]:
    """Return the warning for outputs that differ, and the error for an engine that is not shown to be lossless.

    There is no error if outputs diverge at near-ties at most.
    """
    divergences = _divergences(bench)
    if not divergences:
        return None, None
    if faults := _divergences(bench, FAULT):
        warning = Warning(
            f"{_outputs(faults)} of {bench.engine} diverged from plain decoding by more than rounding explains.",
            "Report it to its developers with the positions in the --output file. If it computes in a coarser dtype than assumed "
            "here, raise --near-tie.",
        )
        return warning, EngineError(
            f"{bench.engine}: expected the outputs of plain decoding up to near-ties. Got {_outputs(faults)} with a fault: report "
            "it, or raise --near-tie for a coarser dtype."
        )
    if unstable := bench.rows[0].divergences:
        warning = Warning(
            f"plain decoding of {bench.engine} is not repeatable: {_outputs(unstable)} changed.",
            "Let it decode one sequence at a time, without a prompt cache, and bench again.",
        )
        return warning, EngineError(
            f"{bench.engine}: expected repeatable plain decoding. Got {_outputs(unstable)} that changed: let it decode one "
            "sequence at a time."
        )
    if unchecked := _divergences(bench, UNCHECKED):
        warning = Warning(
            f"outputs of {bench.engine} diverged from plain decoding. In 16-bit floats, passes of different sizes round "
            "differently, which decides near-ties.",
            "Run it in 32-bit floats, and report it to its developers if outputs still differ.",
        )
        reason = None if bench.losslessness is None else bench.losslessness.unchecked
        return warning, EngineError(
            f"{bench.engine}: expected divergences that can be checked. Got {_outputs(unchecked)} not checked: "
            f"{reason or 'its log-probabilities do not cover them'}"
        )
    gap = _largest_gap(divergences)
    ties = f"near-ties of at most {gap:.2g} nats" if gap else "exact ties"
    warning = Warning(
        f"{_outputs(divergences)} of {bench.engine} diverged from plain decoding at {ties}, which rounding decides.",
        "Run it in 32-bit floats if you need identical outputs.",
    )
    return warning, None


def _divergences(bench: EngineBench, verdict: str | None = None) -> list[OutputDivergence]:
    """Return the divergences with a verdict, by default all."""
    return [divergence for row in bench.rows for divergence in row.divergences if verdict in (None, divergence.verdict)]


def _outputs(divergences: Sequence[OutputDivergence]) -> str:
    return counted(len(divergences), "output")


def _largest_gap(divergences: Sequence[OutputDivergence]) -> float:
    return max(divergence.gap or 0.0 for divergence in divergences)


def _divergence_row(row: EngineRow, prompts: int) -> tuple[str, ...]:
    by_verdict = {
        verdict: [divergence for divergence in row.divergences if divergence.verdict == verdict]
        for verdict in (NEAR_TIE, FAULT, UNCHECKED)
    }
    near_ties = by_verdict[NEAR_TIE]
    identical = prompts - len({divergence.prompt for divergence in row.divergences})
    return (
        "plain again" if row.length == 0 else str(row.length),
        f"{identical} of {prompts}",
        str(len(near_ties)),
        f"{_largest_gap(near_ties):.2g}" if near_ties else "-",
        str(len(by_verdict[FAULT])),
        str(len(by_verdict[UNCHECKED])),
    )


def _fault_line(row: EngineRow, divergence: OutputDivergence) -> str:
    position = (
        f"{counted(row.length, 'draft token')}, prompt {divergence.prompt}, after {divergence.position} characters"
    )
    if divergence.gap is None:
        return f"Fault: {position}: the output ends too early."
    at_least = "more than " if divergence.at_least else ""
    return (
        f'Fault: {position}: "{divergence.other}" instead of "{divergence.plain}", {at_least}{divergence.gap:.2g} nats less '
        "likely."
    )
