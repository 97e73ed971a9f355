"""Several texts at a time, as predicted and as decoded: a table for all batch sizes, and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from treeopt.errors import Warning
from treeopt.records.batch_bench import BatchBench, BatchRow, BatchSize
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.results import Divergence, Pace, PacedPrediction
from treeopt.records.rules import LOSSY_RULES, rule_label
from treeopt.report.bench_heading import headed_json, pace_lines, paced_speedup
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, milliseconds, number_or_absent
from treeopt.report.times_warnings import PLAIN_SPEED_CHANGED
from treeopt.trees import TokenTree, kind_of

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """One way at one batch size; seconds, tokens, tokens per second of all texts, shares."""

    kind: str
    nodes: int
    depth: int
    parents: list[int]
    chosen: bool
    measured_tokens_per_s: float
    predicted_tokens_per_s: float | None
    measured_tokens_per_step: float
    predicted_tokens_per_step: float | None
    measured_step_s: float
    predicted_step_s: float | None
    measured_speedup: float
    predicted_speedup: float | None
    predicted_at_pace: PacedPrediction | None
    spread: float
    overhead: float
    prefill_s: float
    texts: int
    equal_texts: int
    near_ties: int | None
    """None above temperature 0, where they are not told from faults."""
    divergences: tuple[Divergence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    batch_size: int
    regret: float | None
    pace: Pace | None
    settings: tuple[_Setting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    rule: str
    lossy: bool
    temperature: float
    prompts: int
    max_new_tokens: int
    rounds: int
    sizes: tuple[_Size, ...]


def batch_bench_json(heading: BenchHeading, found: BatchBench) -> str:
    """Return everything as one JSON object that begins with what it is of."""
    report = _Report(
        rule=found.rule,
        lossy=found.rule in LOSSY_RULES,
        temperature=found.temperature,
        prompts=found.prompts,
        max_new_tokens=found.max_new_tokens,
        rounds=found.rounds,
        sizes=tuple(
            _Size(
                batch_size=each.batch_size,
                regret=each.regret,
                pace=each.pace,
                settings=tuple(_setting(row, each.batch_size, found.temperature) for row in each.rows),
            )
            for each in found.sizes
        ),
    )
    return headed_json(heading, report)


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


def setting_name(tree: TokenTree) -> str:
    """Return in words what each step verifies: `plain`, `chain of 5 nodes` or `tree of 8 nodes, depth 4`."""
    kind = kind_of(tree)
    if kind == "plain":
        return kind
    return f"{kind} of {tree.nodes} nodes" + (f", depth {tree.max_depth}" if kind == "tree" else "")


def _setting(row: BatchRow, size: int, temperature: float) -> _Setting:
    measured = row.measured
    return _Setting(
        kind=kind_of(row.tree),
        nodes=row.tree.nodes,
        depth=row.tree.max_depth,
        parents=row.tree.parents.tolist(),
        chosen=row.chosen,
        measured_tokens_per_s=measured.tokens_per_s,
        predicted_tokens_per_s=row.predicted_tokens_per_s,
        measured_tokens_per_step=measured.batch_tokens_per_step / size,
        predicted_tokens_per_step=row.predicted_tokens_per_step,
        measured_step_s=measured.step_s,
        predicted_step_s=row.predicted_step_s,
        measured_speedup=measured.speedup,
        predicted_speedup=row.predicted_speedup,
        spread=measured.spread,
        predicted_at_pace=row.predicted_at_pace,
        overhead=measured.overhead,
        prefill_s=measured.prefill_s,
        texts=measured.texts,
        equal_texts=measured.texts - len(measured.divergences),
        near_ties=None if temperature else sum(each.near_tie for each in measured.divergences),
        divergences=measured.divergences,
    )


def _line(row: BatchRow, size: BatchSize, *, first: bool) -> tuple[str, ...]:
    measured, promised = row.measured, row.predicted_tokens_per_s
    return (
        str(size.batch_size) if first else "",
        ("* " if row.chosen else "  ") + setting_name(row.tree),
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
        return f"{texts}: the choice, {setting_name(chosen.tree)}, is the fastest measured."
    spread = max(best.measured.spread, chosen.measured.spread)
    return (
        f"{texts}: {setting_name(best.tree)} is {regret:.1%} faster than the choice, {setting_name(chosen.tree)}; rounds lie "
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
