"""Passes over several texts at a time: they run as one, so that weights are read once."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from treeopt.runtime.models.model import Output, RaggedOutputs, reads_ragged
from treeopt.runtime.models.passes import Pass, TreePass


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
    whole = outputs.logits
    if whole.shape[0] == len(outputs):
        return whole
    return whole[[end - 1 for end in accumulate(outputs.sizes)]]


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
