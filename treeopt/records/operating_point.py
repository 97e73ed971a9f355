"""One context length and batch size of a profile: measured there, or interpolated between what was measured around it.

    value(point) = sum over measured latencies of weight * value(latency)

Weights are bilinear in context length and batch size.  Nothing else interpolates between measured conditions.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from treeopt.arguments import flag, whole
from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64
from treeopt.errors import InfeasibleError
from treeopt.records.engine import WholeSteps
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import StepLatency

Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class OperatingPoint(ShortRepr):
    """A context length, a batch size and a sampling, with the measured latencies around them."""

    context_tokens: int
    batch_size: int
    sampling: Sampling
    latencies: tuple[StepLatency, ...]
    """One if the point was measured, else two or four."""
    weights: tuple[float, ...]
    """Of each latency; they sum to 1, and lie between 0 and 1 unless extrapolated."""
    extrapolated: bool
    """Whether the point lies outside what was measured."""

    @property
    def max_nodes(self) -> int:
        """The largest verification pass that all latencies have."""
        return min(latency.verify.max_tokens for latency in self.latencies)

    @property
    def whole_steps(self) -> bool:
        """Whether an engine's whole steps take the place of passes: they include drafting, and are never padded."""
        return any(isinstance(latency, WholeSteps) for latency in self.latencies)

    def interpolate(self, values: Sequence[Float64]) -> Float64:
        """Return the weighted sum of one value per latency, all in the same shape."""
        return np.asarray(sum(weight * value for weight, value in zip(self.weights, values, strict=True)))

    def around(self, by_context: Mapping[int, Measured]) -> tuple[tuple[float, Measured], ...]:
        """Return what was measured at the context lengths around this one, each with its weight; see `around`."""
        return around(by_context, self.context_tokens)


def operating_point(
    latencies: Sequence[StepLatency],
    sampling: Sampling,
    context_tokens: int | None = None,
    batch_size: int | None = None,
    *,
    extrapolate: bool = False,
) -> OperatingPoint:
    """Return the operating point of some latencies; see `Profile.at`."""
    context_tokens = None if context_tokens is None else whole("context_tokens", context_tokens, 0)
    batch_size = None if batch_size is None else whole("batch_size", batch_size, 1)
    flag("extrapolate", extrapolate)
    first = next((latency for latency in latencies if batch_size in (None, latency.batch_size)), latencies[0])
    context = first.context_tokens if context_tokens is None else context_tokens
    batch = first.batch_size if batch_size is None else batch_size
    by_size: dict[int, dict[int, StepLatency]] = {}
    for latency in sorted(latencies, key=lambda each: each.batch_size):
        by_size.setdefault(latency.batch_size, {})[latency.context_tokens] = latency
    covering = [size for size, contexts in by_size.items() if min(contexts) <= context <= max(contexts)]
    inside = bool(covering) and covering[0] <= batch <= covering[-1]
    if not inside and not extrapolate:
        measured = ", ".join(f"{each.context_tokens} tokens x {each.batch_size}" for each in latencies)
        raise InfeasibleError(
            f"context {context} tokens x batch {batch} was not measured, nor conditions around it. Measured: {measured}. "
            "Profile there.",
            field="extrapolate",
        )
    weighted = [
        (of_size * of_context, by_size[size][length])
        for of_size, size in weights_of(batch, covering if inside else list(by_size))
        for of_context, length in weights_of(context, sorted(by_size[size]))
    ]
    return OperatingPoint(
        context_tokens=context,
        batch_size=batch,
        sampling=sampling,
        latencies=tuple(latency for _, latency in weighted),
        weights=tuple(weight for weight, _ in weighted),
        extrapolated=not inside,
    )


def around(by_context: Mapping[int, Measured], context_tokens: int) -> tuple[tuple[float, Measured], ...]:
    """Return what was measured at the context lengths around one, each with its weight; weights sum to 1.

    Outside the measured lengths the nearest one holds: a straight line would leave the range of probabilities.
    """
    contexts = sorted(by_context)
    inside = min(max(context_tokens, contexts[0]), contexts[-1])
    return tuple((weight, by_context[context]) for weight, context in weights_of(inside, contexts))


def weights_of(value: int, measured: Sequence[int]) -> list[tuple[float, int]]:
    """Return the weights of the one or two measured numbers, which rise, whose weighted sum is `value`.

    >>> weights_of(300, [256, 512])
    [(0.828125, 256), (0.171875, 512)]
    >>> weights_of(256, [256, 512])
    [(1.0, 256)]
    """
    if value in measured or len(measured) == 1:
        return [(1.0, value if value in measured else measured[0])]
    right = min(max(bisect_left(measured, value), 1), len(measured) - 1)
    low, high = measured[right - 1], measured[right]
    weight = (value - low) / (high - low)
    return [(1 - weight, low), (weight, high)]
