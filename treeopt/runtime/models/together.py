"""Work on several texts at a time: passes run as one, so that weights are read once, and what is done row by row as well."""

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from treeopt.runtime.models.model import Output, reads_ragged
from treeopt.runtime.models.passes import Pass, TreePass


class PassCall(NamedTuple):
    """A pass and what it is to be given; the work is sent its `Output`."""

    run: Pass
    tokens: Tensor
    """int64 (rows,)."""


RowsFunction = Callable[..., tuple[Tensor, ...]]
"""From tensors of as many rows to others, each row of which depends on that row alone."""


class RowsCall(NamedTuple):
    """A function of rows, which texts share where it is the same object; the work is sent what it returns."""

    function: RowsFunction
    rows: tuple[Tensor, ...]


Result = TypeVar("Result")
Passing = Generator[PassCall | RowsCall, Any, Result]
"""Work on one text that yields what it needs run, is sent what that gives, and returns a result."""


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors one after the other; one alone as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


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


def rows_together(calls: Sequence[RowsCall]) -> list[tuple[Tensor, ...]]:
    """Return what functions of rows give of each text: those that are one are called once, with the rows of all texts."""
    by_function: dict[RowsFunction, list[int]] = {}
    for number, call in enumerate(calls):
        by_function.setdefault(call.function, []).append(number)
    found: dict[int, tuple[Tensor, ...]] = {}
    for function, numbers in by_function.items():
        rows = [calls[number].rows for number in numbers]
        if len(numbers) == 1:
            found[numbers[0]] = function(*rows[0])
            continue
        sizes = [each[0].shape[0] for each in rows]
        joined = function(*(torch.cat(column) for column in zip(*rows, strict=True)))
        found.update(zip(numbers, zip(*(each.split(sizes) for each in joined), strict=True), strict=True))
    return [found[number] for number in range(len(calls))]


def _finish(work: Passing[Result]) -> Result:
    """Return the result of work on one text."""
    found: Any = None  # starts it
    while True:
        try:
            call = work.send(found)
        except StopIteration as end:
            result: Result = end.value
            return result
        found = call.run(call.tokens) if isinstance(call, PassCall) else call.function(*call.rows)


def finish_together(works: Sequence[Passing[Result]]) -> list[Result]:
    """Return the results of work on different texts; what texts need at the same time is run together.

    Passes come when no text needs anything else, so that all texts that need one share it.
    """
    if len(works) == 1:
        return [_finish(works[0])]
    results: dict[int, Result] = {}
    passes: dict[int, PassCall] = {}
    rows: dict[int, RowsCall] = {}

    def go_on(sent: dict[int, Any]) -> None:
        for number, found in sent.items():
            try:
                call = works[number].send(found)
            except StopIteration as end:
                results[number] = end.value
                continue
            if isinstance(call, PassCall):
                passes[number] = call
            else:
                rows[number] = call

    go_on(dict.fromkeys(range(len(works))))  # None starts them
    while passes or rows:
        if rows:
            numbers, calls = list(rows), list(rows.values())
            rows.clear()
            go_on(dict(zip(numbers, rows_together(calls), strict=True)))
        else:
            numbers, waiting = list(passes), list(passes.values())
            passes.clear()
            go_on(dict(zip(numbers, run_together(waiting), strict=True)))
    return [results[number] for number in range(len(works))]
