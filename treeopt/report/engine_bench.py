"""Draft lengths compared in an engine: a table."""

from treeopt.records.results import EngineBench, EngineRow
from treeopt.report.losslessness_text import losslessness_lines
from treeopt.report.table import Column, aligned
from treeopt.report.text import number_or_absent

DRIFT = 0.05
"""Change of plain decoding's speed from which it is told."""


def engine_bench_table(found: EngineBench, default: int | None) -> str:
    """Return a line for each length, predicted beside measured, and how much the choice leaves."""
    rows = [
        (
            "",
            "draft tokens",
            "tokens/step",
            "predicted",
            "tokens/s",
            "predicted",
            "speedup",
            "predicted",
            "repeats",
            "text",
        )
    ]
    for each in found.rows:
        name = "plain" if each.length == 0 else "default" if each.length == default else ""
        rows.append(
            (
                ("* " if each.chosen else "  ") + name,
                str(each.length),
                f"{each.tokens_per_step:.2f}",
                number_or_absent(each.predicted_tokens_per_step, ".2f"),
                f"{each.tokens_per_s:.0f}",
                number_or_absent(each.predicted_tokens_per_s, ".0f"),
                f"{each.speedup:.2f}",
                number_or_absent(each.predicted_speedup, ".2f"),
                f"{each.spread:.0%}",
                {None: "sampled", True: "identical", False: "DIFFERS"}[each.identical],
            )
        )
    best = max(found.rows, key=lambda row: row.tokens_per_s)
    verdict = (
        "The chosen length is the fastest measured."
        if best.chosen
        else f"{_named(best)} is {found.regret:.1%} faster than the choice, {_named(found.chosen)}; repeats lie {max(best.spread, found.chosen.spread):.0%} apart."
    )
    columns = [Column(), *[Column(">")] * 8, Column()]
    lines = [f"{found.engine} ({found.version})", "", *aligned(rows, columns), "", verdict]
    return "\n".join([*lines, *_drift(found.rows[0]), *losslessness_lines(found)])


def _drift(plain: EngineRow) -> list[str]:
    """Return how much the machine's speed has changed since the probe, where repeats do not explain it."""
    if plain.predicted_tokens_per_s is None:
        return []
    change = plain.tokens_per_s / plain.predicted_tokens_per_s - 1
    if abs(change) < max(DRIFT, plain.spread):
        return []
    word = "slower" if change < 0 else "faster"
    told = f"Plain decoding is {abs(change):.0%} {word} than when it was probed"
    return [f"{told}: the machine runs at another speed, or beside other programs. Compare speedups, or probe again."]


def _named(row: EngineRow) -> str:
    return "plain decoding" if row.length == 0 else f"{row.length} draft token{'s' * (row.length > 1)}"
