"""Many trees, as predicted and as measured: a table."""

from collections.abc import Iterable, Iterator
from math import nan
from statistics import mean

from treeopt.errors import Warning
from treeopt.records.bench_file import GridBench, GridTree
from treeopt.report.bench_heading import pace_lines, paced_speedup
from treeopt.report.text import milliseconds, number_or_absent
from treeopt.report.times_warnings import PLAIN_SPEED_CHANGED
from treeopt.trees import describe_tree

CHOSEN, OTHER = "* ", "  "
MUCH = 0.05
"""A larger error of plain decoding's time means that the machine changed."""


def grid_table(bench: GridBench) -> str:
    """Return prediction next to measurement for every tree, the first one marked, and the mean errors."""
    width = max(len(describe_tree(each.tree)) for each in bench.trees)
    group = f"{'predicted':>10}{'measured':>10}{'error':>8}"
    lines = [
        f"{'':{width + 2}}{'tokens per step':>28}{'step, ms':>28}{'speedup':>28}{'at this':>10}",
        f"{'':{width + 2}}{group}{group}{group}{'pace':>10}",
        *(_line(each, width, OTHER if number else CHOSEN) for number, each in enumerate(bench.trees)),
        "",
        *_errors(bench),
        *_texts(bench),
    ]
    return "\n".join(lines)


def outputs_warning(trees: int) -> Warning:
    """Return the warning that greedy outputs are not those of plain decoding, which is a fault of treeopt."""
    return Warning(
        f"the outputs of {trees} trees DIFFER from plain decoding's.", "Look at each with treeopt bench tree TREE."
    )


def _line(each: GridTree, width: int, mark: str) -> str:
    tokens, step, speedup = _pairs(each)
    columns = "".join(
        f"{form(one):>10}{form(other):>10}{one / other - 1:>+8.1%}"
        for form, (one, other) in ((_two_digits, tokens), (milliseconds, step), (_two_digits, speedup))
    )
    at_pace = number_or_absent(paced_speedup(each.predicted.at_pace), ".2f")
    return f"{mark}{describe_tree(each.tree):<{width}}{columns}{at_pace:>10}"


def _pairs(each: GridTree) -> tuple[tuple[float, float], ...]:
    """Return tokens per step, seconds of a step, and speedup, each as predicted and as measured."""
    predicted, measured = each.predicted, each.measured
    pairs = (
        (predicted.tokens_per_step, measured.tokens_per_step),
        (predicted.step_s, measured.step_s),
        (predicted.speedup, measured.speedup.value),
    )
    return tuple((nan if one is None else one, other) for one, other in pairs)


def _errors(bench: GridBench) -> Iterator[str]:
    """Yield how far predictions are off, and what is wrong with the machine where plain decoding's is far off."""
    trees, plain_s = bench.trees, bench.predicted_plain_step_s
    first = trees[0].measured
    marked = "fastest tree, beside which plain decoding was chosen," if bench.plain_is_fastest else "chosen tree"
    off = plain_s / first.plain_step_s - 1
    yield (
        f"plain decoding: predicted {milliseconds(plain_s)} ms a token, measured {milliseconds(first.plain_step_s)} "
        f"({off:+.1%})"
    )
    tokens, step, speedup = (_mean_error(pairs) for pairs in zip(*map(_pairs, trees), strict=True))
    yield f"mean error without sign: tokens per step {tokens:.1%}, step {step:.1%}, speedup {speedup:.1%}"
    paced = [(each.predicted.at_pace, each.measured) for each in trees if each.predicted.at_pace is not None]
    if paced:
        step = _mean_error((one.step_s, other.step_s) for one, other in paced)
        speedup = _mean_error((one.speedup, other.speedup.value) for one, other in paced)
        yield f"the same of predictions at this pace: step {step:.1%}, speedup {speedup:.1%}"
    yield from pace_lines(first.pace)
    best = max(each.measured.speedup.value for each in trees)
    yield f"the {marked} (*) reaches {first.speedup.value / best:.1%} of the best measured speedup"
    if abs(off) > MUCH:
        yield str(PLAIN_SPEED_CHANGED)


def _mean_error(pairs: Iterable[tuple[float, float]]) -> float:
    return mean(abs(predicted / measured - 1) for predicted, measured in pairs)


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


def _texts(bench: GridBench) -> Iterator[str]:
    """Yield whether texts are plain decoding's, where that is known."""
    identical = [each.measured.identical for each in bench.trees]
    if False in identical:
        yield str(outputs_warning(identical.count(False)))
    elif all(identical):
        yield "every text is plain decoding's, token by token"
