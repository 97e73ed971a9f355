"""One tree, as predicted and as measured, in a few lines."""

from treeopt.errors import Warning
from treeopt.records.bench_file import TreeBench
from treeopt.records.results import Measured
from treeopt.records.rules import LOSSY_RULES
from treeopt.report.bench_heading import pace_lines, paced_speedup
from treeopt.report.text import milliseconds, number_or_absent

OUTPUT_DIFFERS = Warning("the output DIFFERS from plain decoding's.", "Report it with the --output file.")


def tree_bench_table(bench: TreeBench) -> str:
    """Return prediction next to measurement."""
    predicted, measured, at_pace = bench.predicted, bench.measured, bench.predicted.at_pace
    tokens = number_or_absent(predicted.tokens_per_step, ".2f")
    steps = [
        "-" if each is None else milliseconds(each)
        for each in (predicted.step_s, None if at_pace is None else at_pace.step_s)
    ]
    speedups = [number_or_absent(each, ".2f") for each in (predicted.speedup, paced_speedup(at_pace))]
    rows = [
        ("", "predicted", "at this pace", "measured"),
        ("tokens per step", tokens, "-" if at_pace is None else tokens, f"{measured.tokens_per_step:.2f}"),
        ("step, ms", *steps, milliseconds(measured.step_s)),
        ("speedup", *speedups, f"{measured.speedup.value:.2f}"),
    ]
    lines = [f"{name:<18}{left:>10}{middle:>14}{right:>10}" for name, left, middle, right in rows]
    lines += ["", *pace_lines(measured.pace)] if measured.pace else []
    lines.append(f"\n{measured.tokens} tokens decoded in whole steps; {_verdict(measured, bench.rule)}.")
    if bench.drafter != "model":
        lines.append(f"Drafted by {bench.drafter}.")
    return "\n".join(lines)


def _verdict(measured: Measured, rule: str) -> str:
    """Return in words whether the text is plain decoding's."""
    if measured.divergences is None:
        lossy = f"; rule {rule} is lossy: they do not follow the target's distribution" if rule in LOSSY_RULES else ""
        return f"above temperature 0 texts are not compared{lossy}"
    if not measured.divergences:
        return "the text is plain decoding's, token by token"
    count = len(measured.divergences)
    if all(each.near_tie for each in measured.divergences):
        return f"{count} of {measured.prompts} texts part from plain decoding's, each at a near-tie of the top logits"
    return str(OUTPUT_DIFFERS)
