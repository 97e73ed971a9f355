"""Many trees, as predicted and as decoded: a table of what each came to, and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treeopt.errors import Warning
from treeopt.planner.grid import GridRow, summary
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.latency import Estimate
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.results import Pace, PacedPrediction
from treeopt.report.bench_heading import headed_json, pace_lines, paced_speedup
from treeopt.report.text import milliseconds, number_or_absent
from treeopt.report.times_warnings import PLAIN_SPEED_CHANGED

CHOSEN, OTHER = "* ", "  "
MUCH = 0.05
"""Plain decoding off by more than this says that the machine changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridTreeReport:
    """One tree of a grid."""

    kind: str
    nodes: int
    depth: int
    parents: list[int]
    predicted_tokens_per_step: float
    measured_tokens_per_step: float
    predicted_step_s: float
    measured_step_s: float
    predicted_speedup: float
    measured_speedup: Estimate
    identical_to_plain_decoding: bool | None
    predicted_at_pace: PacedPrediction | None = None

    @classmethod
    def of(cls, row: GridRow) -> "GridTreeReport":
        """Return that of a row."""
        predicted, measured = row.predicted, row.measured
        return cls(
            kind=predicted.kind,
            nodes=predicted.tree.nodes,
            depth=predicted.tree.max_depth,
            parents=predicted.tree.parents.tolist(),
            predicted_tokens_per_step=predicted.tokens_per_step.value,
            measured_tokens_per_step=measured.tokens_per_step,
            predicted_step_s=predicted.step_s.value,
            measured_step_s=measured.step_s,
            predicted_speedup=predicted.speedup.value,
            measured_speedup=measured.speedup,
            identical_to_plain_decoding=measured.identical,
            predicted_at_pace=row.at_pace,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridReport:
    """A grid of trees, seconds and tokens."""

    rule: str
    temperature: float
    predicted_plain_step_s: float
    measured_plain_step_s: float
    trees: tuple[GridTreeReport, ...]
    pace: Pace | None = None

    @classmethod
    def of(cls, rows: Sequence[GridRow], plain_s: float, asked: MeasuredAcceptance) -> "GridReport":
        """Return that of a grid's rows, as an acceptance was measured; `plain_s` as for `grid_table`."""
        return cls(
            rule=asked.rule,
            temperature=asked.temperature,
            predicted_plain_step_s=plain_s,
            measured_plain_step_s=rows[0].measured.plain_step_s,
            trees=tuple(GridTreeReport.of(row) for row in rows),
            pace=rows[0].measured.pace,
        )


def grid_json(heading: BenchHeading, rows: Sequence[GridRow], plain_s: float, asked: MeasuredAcceptance) -> str:
    """Return the grid as one JSON object that begins with what it is of; other arguments as for `GridReport.of`."""
    return headed_json(heading, GridReport.of(rows, plain_s, asked))


def grid_table(rows: Sequence[GridRow], plain_s: float, *, plain_is_fastest: bool = False) -> str:
    """Return prediction beside measurement for every tree, the first one marked, and what they come to.

    Args:
        rows: the grid; the first is the plan's choice, or its fastest tree where plain decoding is the choice.
        plain_s: seconds of a plain step, as predicted.
        plain_is_fastest: whether plain decoding is the choice.
    """
    width = max(len(row.predicted.shape) for row in rows)
    group = f"{'predicted':>10}{'measured':>10}{'error':>8}"
    lines = [
        f"{'':{width + 2}}{'tokens per step':>28}{'step, ms':>28}{'speedup':>28}{'at this':>10}",
        f"{'':{width + 2}}{group}{group}{group}{'pace':>10}",
        *(_line(row, width, OTHER if number else CHOSEN) for number, row in enumerate(rows)),
        "",
        *_errors(rows, plain_s, plain_is_fastest=plain_is_fastest),
        *_texts(rows),
    ]
    return "\n".join(lines)


def _line(row: GridRow, width: int, mark: str) -> str:
    one, other = row.predicted, row.measured
    tokens = f"{one.tokens_per_step.value:>10.2f}{other.tokens_per_step:>10.2f}{row.tokens_error:>+8.1%}"
    step = f"{milliseconds(one.step_s.value):>10}{milliseconds(other.step_s):>10}{row.step_error:>+8.1%}"
    speedup = f"{one.speedup.value:>10.2f}{other.speedup.value:>10.2f}{row.speedup_error:>+8.1%}"
    at_pace = number_or_absent(paced_speedup(row.at_pace), ".2f")
    return f"{mark}{one.shape:<{width}}{tokens}{step}{speedup}{at_pace:>10}"


def _errors(rows: Sequence[GridRow], plain_s: float, *, plain_is_fastest: bool) -> Iterator[str]:
    """Yield how far predictions are off, and what is wrong with the machine where plain decoding's is far off."""
    found, plain = summary(rows), rows[0].measured.plain_step_s
    marked = "fastest tree, beside which plain decoding was chosen," if plain_is_fastest else "chosen tree"
    yield (
        f"plain decoding: predicted {milliseconds(plain_s)} ms a token, measured {milliseconds(plain)} "
        f"({plain_s / plain - 1:+.1%})"
    )
    yield (
        f"mean error without sign: tokens per step {found.tokens_error:.1%}, step {found.step_error:.1%}, "
        f"speedup {found.speedup_error:.1%}"
    )
    paced = [(row.at_pace, row.measured) for row in rows if row.at_pace is not None]
    if paced:
        step = sum(abs(one.step_s / other.step_s - 1) for one, other in paced) / len(paced)
        speedup = sum(abs(one.speedup / other.speedup.value - 1) for one, other in paced) / len(paced)
        yield f"the same of predictions at this pace: step {step:.1%}, speedup {speedup:.1%}"
    yield from pace_lines(rows[0].measured.pace)
    yield f"the {marked} (*) reaches {found.chosen_over_best:.1%} of the best measured speedup"
    if abs(plain_s / plain - 1) > MUCH:
        yield str(PLAIN_SPEED_CHANGED)


def _texts(rows: Sequence[GridRow]) -> Iterator[str]:
    """Yield whether texts are plain decoding's, where that is known."""
    differing = sum(row.measured.identical is False for row in rows)
    if differing:
        yield str(outputs_warning(differing))
    elif all(row.measured.identical for row in rows):
        yield "every text is plain decoding's, token by token"


def outputs_warning(trees: int) -> Warning:
    """Return the warning that greedy outputs are not those of plain decoding, which is a fault of treeopt."""
    return Warning(
        f"the outputs of {trees} trees DIFFER from plain decoding's.", "Look at each with treeopt bench tree TREE."
    )
