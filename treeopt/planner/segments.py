"""Ranges of context lengths and batch sizes in which one option is the fastest, and the fastest chain by batch size."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TypeVar

from treeopt.array_record import ShortRepr
from treeopt.planner.model import StepModel, model_at
from treeopt.planner.options import Option
from treeopt.planner.request import PlanRequest
from treeopt.planner.tokens import token_models
from treeopt.records.operating_point import batch_sizes_around
from treeopt.records.profile import Profile
from treeopt.tabular import Row
from treeopt.trees import chain

CLOSE = 1e-9
"""Relative difference up to which speeds are equal; then the shorter chain, or the smaller tree, wins."""
Choice = TypeVar("Choice", bound=Hashable)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Segment(ShortRepr):
    """A range of batch sizes and context lengths, both ends included, in which one option is the fastest."""

    temperature: float
    batch_sizes: tuple[int, int]
    context_tokens: tuple[int, int]
    option: Option
    """With its prediction at the start of the range."""

    @property
    def row(self) -> Row:
        """The columns of a segment in tables."""
        return {
            "rule": self.option.rule,
            "lossy": self.option.lossy,
            "temperature": self.temperature,
            "first_batch_size": self.batch_sizes[0],
            "last_batch_size": self.batch_sizes[1],
            "first_context_tokens": self.context_tokens[0],
            "last_context_tokens": self.context_tokens[1],
            **self.option.row,
        }


def find_winners(measured: Sequence[int], fastest: Callable[[int], Choice]) -> list[tuple[tuple[int, int], Choice]]:
    """Return each choice with the range, both ends included, in which it is the fastest, in increasing order.

    Where it switches is found by bisection between different neighbours.

    Args:
        measured: increasing numbers; the ranges cover all from the first to the last.
        fastest: returns the fastest choice at a number.
    """
    winners = {value: fastest(value) for value in measured}
    switches = set[int]()
    pending = list(pairwise(measured))
    while pending:
        low, high = pending.pop()
        if winners[low] == winners[high]:
            continue
        if high - low == 1:
            switches.add(high)
            continue
        middle = (low + high) // 2
        winners[middle] = fastest(middle)
        pending += [(low, middle), (middle, high)]
    starts = [measured[0], *sorted(switches)]
    ends = [*(start - 1 for start in starts[1:]), measured[-1]]
    return [((start, end), winners[start]) for start, end in zip(starts, ends, strict=True)]


def first_fastest(speedups: Sequence[float]) -> int:
    """Return the index of the largest speedup, of equal ones the first."""
    best = 0
    for index, speedup in enumerate(speedups):
        if speedup > speedups[best] * (1 + CLOSE):
            best = index
    return best


def fastest_length(model: StepModel, *, max_length: int | None = None) -> int:
    """Return the draft tokens of the fastest chain, in a tie of the shortest; 0 is plain decoding.

    Args:
        model: predicts steps at one operating point.
        max_length: most draft tokens; by default all depths that were measured.
    """
    longest = model.longest_chain if max_length is None else min(model.longest_chain, max_length)
    return first_fastest(model.speedups([chain(length) for length in range(longest + 1)]).tolist())


def chain_schedule(profile: Profile, request: PlanRequest | None = None) -> tuple[Segment, ...]:
    """Return the fastest chain of every batch size from the smallest to the largest measured at a context, in ranges.

    Args:
        profile: what was measured.
        request: acceptance, context length, by default the first measured, and limits of the chains.

    Raises InfeasibleError for a context outside the measured ones.
    """
    request = request or PlanRequest()
    acceptance = profile.acceptance(rule=request.rule, temperature=request.temperature)
    tokens = token_models(profile, acceptance, raw=request.raw)
    latencies = profile.latencies_at(acceptance.temperature)
    context = latencies[0].context_tokens if request.context_tokens is None else request.context_tokens
    batch_sizes = batch_sizes_around(latencies, context) or [latencies[0].batch_size]  # `at` raises for this one
    models = {}
    for batch_size in range(batch_sizes[0], batch_sizes[-1] + 1):
        point = profile.at(context, batch_size, acceptance.sampling)
        models[batch_size] = model_at(point, tokens.at(context))
    lengths = {size: fastest_length(model, max_length=request.max_length) for size, model in models.items()}
    segments = []
    for length, group in groupby(models, key=lambda size: lengths[size]):
        sizes = list(group)
        segments.append(
            Segment(
                temperature=acceptance.temperature,
                batch_sizes=(sizes[0], sizes[-1]),
                context_tokens=(context, context),
                option=models[sizes[0]].predict(chain(length)),
            )
        )
    return tuple(segments)
