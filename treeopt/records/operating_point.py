"""Interpolation between the measured context lengths and batch sizes of a profile.

    value(point) = sum over measured latencies of weight * value(latency)

Weights are bilinear in context length and batch size.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from treeopt.arguments import check_flag, check_integer
from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64
from treeopt.errors import InfeasibleError
from treeopt.records.engine import WholeSteps
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import StepLatency

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class OperatingPoint(ShortRepr):
    """A context length, a batch size and a sampling, with the neighbouring measured latencies."""

    context_tokens: int
    batch_size: int
    sampling: Sampling
    latencies: tuple[StepLatency, ...]
    """One if the point was measured, otherwise two or four."""
    weights: tuple[float, ...]
    """One per latency; they sum to 1 and are in [0, 1] unless extrapolated."""
    extrapolated: bool
    """Whether the point is outside the measured range."""

    @property
    def max_nodes(self) -> int:
        """The largest verification pass that all latencies cover."""
        return min(latency.verify.max_tokens for latency in self.latencies)

    @property
    def whole_steps(self) -> bool:
        """Whether `verify` contains an engine's whole steps."""
        return any(isinstance(latency, WholeSteps) for latency in self.latencies)

    def interpolate(self, values: Sequence[Float64]) -> Float64:
        """Return the weighted sum of one array per latency, all of the same shape."""
        return np.asarray(sum(weight * value for weight, value in zip(self.weights, values, strict=True)))


def find_operating_point(
    latencies: Sequence[StepLatency],
    sampling: Sampling,
    context_tokens: int | None = None,
    batch_size: int | None = None,
    *,
    extrapolate: bool = False,
) -> OperatingPoint:
    """Return the operating point between measured latencies; the arguments are those of `Profile.at`."""
    context_tokens = None if context_tokens is None else check_integer("context_tokens", context_tokens, 0)
    batch_size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
    check_flag("extrapolate", extrapolate)
    first = next((latency for latency in latencies if batch_size in (None, latency.batch_size)), latencies[0])
    context = first.context_tokens if context_tokens is None else context_tokens
    batch = first.batch_size if batch_size is None else batch_size
    by_size = _by_batch_size(latencies)
    covering = batch_sizes_around(latencies, context)
    inside = bool(covering) and covering[0] <= batch <= covering[-1]
    if not inside and not extrapolate:
        measured = ", ".join(f"{latency.context_tokens} tokens x {latency.batch_size}" for latency in latencies)
        raise InfeasibleError(
            f"context {context} tokens x batch {batch} was not measured, nor conditions around it. Measured: {measured}. "
            "Measure there.",
            field="extrapolate",
        )
    weighted = [
        (size_weight * context_weight, by_size[size][length])
        for size_weight, size in interpolation_weights(batch, covering if inside else list(by_size))
        for context_weight, length in interpolation_weights(context, sorted(by_size[size]))
    ]
    return OperatingPoint(
        context_tokens=context,
        batch_size=batch,
        sampling=sampling,
        latencies=tuple(latency for _, latency in weighted),
        weights=tuple(weight for weight, _ in weighted),
        extrapolated=not inside,
    )


def batch_sizes_around(latencies: Sequence[StepLatency], context_tokens: int) -> list[int]:
    """Return the batch sizes that were measured on both sides of a context length, or at it, in increasing order."""
    by_size = _by_batch_size(latencies)
    return [size for size, contexts in by_size.items() if min(contexts) <= context_tokens <= max(contexts)]


def _by_batch_size(latencies: Sequence[StepLatency]) -> dict[int, dict[int, StepLatency]]:
    """Return the latencies by context length, by increasing batch size."""
    by_size: dict[int, dict[int, StepLatency]] = {}
    for latency in sorted(latencies, key=lambda latency: latency.batch_size):
        by_size.setdefault(latency.batch_size, {})[latency.context_tokens] = latency
    return by_size


def weighted_neighbours(by_context: Mapping[int, T], context_tokens: int) -> tuple[tuple[float, T], ...]:
    """Return the measurements at the neighbouring context lengths with their weights, which sum to 1.

    Outside the measured range the nearest one has weight 1: extrapolated probabilities could leave [0, 1].
    """
    contexts = sorted(by_context)
    inside = min(max(context_tokens, contexts[0]), contexts[-1])
    return tuple((weight, by_context[context]) for weight, context in interpolation_weights(inside, contexts))


def interpolation_weights(value: int, measured: Sequence[int]) -> list[tuple[float, int]]:
    """Return the weights of the one or two neighbours in the increasing `measured`, whose weighted sum is `value`.

    >>> interpolation_weights(300, [256, 512])
    [(0.828125, 256), (0.171875, 512)]
    >>> interpolation_weights(256, [256, 512])
    [(1.0, 256)]
    """
    if value in measured or len(measured) == 1:
        return [(1.0, value if value in measured else measured[0])]
    right = min(max(bisect_left(measured, value), 1), len(measured) - 1)
    low, high = measured[right - 1], measured[right]
    weight = (value - low) / (high - low)
    return [(1 - weight, low), (weight, high)]
