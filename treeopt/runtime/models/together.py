"""Passes of several texts run as one, so that the weights of a model are read once for all of them."""

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

from torch import Tensor

from treeopt.runtime.models.model import Output, reads_ragged
from treeopt.runtime.models.passes import Pass, TreePass


class PassCall(NamedTuple):
    """A pass and what it is to be given."""

    run: Pass
    tokens: Tensor
    """int64 (rows,)."""


Result = TypeVar("Result")
Passing = Generator[PassCall, Output, Result]
"""Work on one text that yields each pass it needs, is sent what the pass gives, and returns a result."""


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


def finish_together(works: Sequence[Passing[Result]]) -> list[Result]:
    """Return the results of work on different texts; passes that texts need at the same time are run together."""
    results: dict[int, Result] = {}
    sent: dict[int, Output | None] = dict.fromkeys(range(len(works)))
    while sent:
        calls = {}
        for number, output in sent.items():
            try:
                calls[number] = works[number].send(output)  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                results[number] = end.value
        sent = dict(zip(calls, run_together(list(calls.values())), strict=True))
    return [results[number] for number in range(len(works))]
