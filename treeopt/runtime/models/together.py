"""Passes over several texts at a time: they run as one, so that weights are read once."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from treeopt.runtime.models.model import Output, RaggedOutputs, reads_ragged
from treeopt.runtime.models.passes import Pass, TreePass


class PassCall(NamedTuple):
    """A pass and what it is to be given; the work is sent its `Output`."""

    run: Pass
    tokens: Tensor
    """int64 (rows,)."""


Result = TypeVar("Result")
Passing = Generator[PassCall, Output, Result]
"""Work on one text that yields the passes that it needs, is sent what each gives, and returns a result."""


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors one after the other; one alone as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def joined_logits(outputs: Sequence[Output]) -> Tensor:
    """Return the logits of outputs one after the other, as they are where one pass gave them."""
    return outputs.logits if isinstance(outputs, RaggedOutputs) else joined([output.logits for output in outputs])


def run_together(calls: Sequence[PassCall]) -> list[Output]:
    """Return what passes of different texts give: from one pass of the model, or in turn where they cannot share one.

    They share one where all are operation by operation, over one `RaggedModel`.
    """
    if len(calls) == 1:
        return [calls[0].run(calls[0].tokens)]
    runs = [call.run for call in calls if isinstance(call.run, TreePass)]
    models = {id(run.model): run.model for run in runs}
    model = next(iter(models.values())) if len(models) == 1 and len(runs) == len(calls) else None
    if model is None or not reads_ragged(model):
        return [call.run(call.tokens) for call in calls]
    return model.forward_ragged([run.rows(call.tokens) for run, call in zip(runs, calls, strict=True)], runs[0].wants)


def _finish(work: Passing[Result]) -> Result:
    """Return the result of work on one text."""
    output: Any = None  # starts it
    while True:
        try:
            call = work.send(output)
        except StopIteration as end:
            result: Result = end.value
            return result
        output = call.run(call.tokens)


def finish_together(works: Sequence[Passing[Result]]) -> list[Result]:
    """Return the results of work on different texts; passes that texts need at the same time are run together."""
    if len(works) == 1:
        return [_finish(works[0])]
    results: dict[int, Result] = {}
    sent: dict[int, Any] = dict.fromkeys(range(len(works)))  # None starts them
    while sent:
        calls: dict[int, PassCall] = {}
        for number, output in sent.items():
            try:
                calls[number] = works[number].send(output)
            except StopIteration as end:
                results[number] = end.value
        sent = dict(zip(calls, run_together(list(calls.values())) if calls else (), strict=True))
    return [results[number] for number in range(len(works))]
