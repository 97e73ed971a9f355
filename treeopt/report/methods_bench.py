"""All methods of speculation on one machine, as a table."""

from collections.abc import Sequence

from treeopt.records.bench_file import MethodsBench
from treeopt.records.results import Row
from treeopt.report.bench_heading import pace_lines, paced_speedup
from treeopt.report.text import milliseconds, number_or_absent


def methods_table(bench: MethodsBench) -> str:
    """Return one line per method, temperature by temperature, and below them what predictions assume."""
    blocks = []
    for temperature in bench.temperatures:
        rows = [row for row in bench.rows if row.temperature == temperature]
        width = max((len(row.setting) for row in rows), default=0)
        lines = [
            f"temperature {temperature:g}",
            "",
            (
                f"{'method':<14}{'rule':<10}{'setting':<{width}}{'tokens':>8}{'step':>8}{'draft':>8}{'verify':>8}{'host':>7}"
                f"{'tokens':>8}{'speedup':>9}{'predicted':>10}{'at pace':>8}  lossless"
            ),
            f"{'':<24}{'':<{width}}{'/step':>8}{'ms':>8}{'ms':>8}{'ms':>8}{'ms':>7}{'/s':>8}",
            *(_line(row, width) for row in rows),
            *(f"{row.method:<14}not run: {row.reason}" for row in bench.not_run if row.temperature == temperature),
        ]
        blocks.append("\n".join(line.rstrip() for line in lines))
        notes = pace_lines(rows[0].pace) if rows else []
        blocks.append("\n".join(["draft, verify and host (overhead) are from a run of their own.", *notes]))
        blocks += _assumptions(rows)
    return "\n\n".join(blocks)


def _assumptions(rows: Sequence[Row]) -> list[str]:
    """Return in one paragraph what predictions rest on beside measurements, none where there is nothing."""
    said = dict.fromkeys(each for row in rows for each in row.assumed)
    lines = [f"  {', '.join(row.method for row in rows if each in row.assumed)}: {each}" for each in said]
    return ["\n".join(["assumed, not measured, in what is predicted:", *lines])] if lines else []


def _line(row: Row, width: int) -> str:
    times = [
        milliseconds(each) if each > 0 else "0" for each in (row.step_s, row.draft_s, row.verify_s, row.overhead_s)
    ]
    step, draft, verify, overhead = times
    return (
        f"{row.method:<14}{row.rule:<10}{row.setting:<{width}}{row.tokens_per_step:>8.2f}{step:>8}{draft:>8}{verify:>8}"
        f"{overhead:>7}{row.tokens_per_s:>8.0f}{row.speedup:>9.2f}{row.predicted_speedup:>10.2f}"
        f"{number_or_absent(paced_speedup(row.predicted_at_pace), '.2f'):>8}"
        f"  {'yes' if row.lossless else 'NO'} ({row.evidence})"
    )
