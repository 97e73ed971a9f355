"""Passes over several texts at a time: they run as one, so that weights are read once."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.runtime.models.model import Output, RaggedOutputs, TextRows
from treeopt.runtime.models.passes import Pass, SharedPass


class PassCall(NamedTuple):
    """A pass and what it is to be given."""

    run: Pass
    tokens: Tensor
    """int64 (rows,)."""


def joined(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors one after the other; one alone as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def joined_logits(outputs: Sequence[Output]) -> Tensor:
    """Return the logits of outputs one after the other, as they are where one pass gave them."""
    return outputs.logits if isinstance(outputs, RaggedOutputs) else joined([output.logits for output in outputs])


def last_logits(outputs: Sequence[Output]) -> Tensor:
    """Return the logits (outputs, V) after the last token of each output."""
    if not isinstance(outputs, RaggedOutputs):
        return joined([output.logits[-1:] for output in outputs])
    return last_rows(outputs.logits, outputs.sizes)


def last_rows(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the last row of each of some texts, (texts, …), of which each has so many, one text after the other."""
    if rows.shape[0] == len(sizes):
        return rows
    return rows[-1:] if len(sizes) == 1 else rows[[end - 1 for end in accumulate(sizes)]]


def run_together(calls: Sequence[PassCall]) -> list[Output]:
    """Return what passes of different texts give: from one, or in turn where they cannot share one."""
    if len(calls) == 1:
        return [calls[0].run(calls[0].tokens)]
    runs = [call.run for call in calls if isinstance(call.run, SharedPass)]
    if len(runs) < len(calls) or not all(runs[0].joins(run) for run in runs):
        return [call.run(call.tokens) for call in calls]
    return runs[0].together(runs, [call.tokens for call in calls])


def run_by_memory(
    parts: Sequence[TextRows],
    memory: Callable[[TextRows], object],
    run: Callable[[Sequence[TextRows]], list[Output]],
) -> list[Output]:
    """Return the outputs of texts, from one pass over those whose caches lie in the same memory.

    Args:
        parts: of each text.
        memory: where the cache of a text lies.
        run: the pass over texts in one memory.
    """
    of = [memory(part) for part in parts]
    if all(each is of[0] for each in of):
        return run(parts)
    found = dict[int, Output]()
    for one in {id(each): each for each in of}.values():
        numbers = [number for number, each in enumerate(of) if each is one]
        found.update(zip(numbers, run([parts[number] for number in numbers]), strict=True))
    return [found[number] for number in range(len(parts))]
