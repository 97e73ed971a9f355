"""Heads that predict only some of the target's tokens."""

from pathlib import Path

import torch
from torch import Tensor

from treeopt.errors import FormatError
from treeopt.runtime.models.tensor_reader import TensorReader


def target_ids(folder: Path, tensors: TensorReader, known: int, vocabulary: int, device: torch.device) -> Tensor | None:
    """Return the target's token for each of the head's, int64 (known,); None where both number all tokens alike.

    The tensor `d2t` contains what is added to the head's own number.

    Raises FormatError for tokens outside the vocabulary, and for one that appears twice.
    """
    offsets = tensors.get_integers("d2t", (known,))
    ids = offsets + torch.arange(known)
    outside = ((ids < 0) | (ids >= vocabulary)).nonzero()[:, 0]
    if len(outside):
        first = int(outside[0])
        raise FormatError(
            folder,
            "d2t",
            f"expected offsets to tokens from 0 to {vocabulary - 1}. Got {int(offsets[first])} at {first}, which is "
            f"token {int(ids[first])}: are these ids? Subtract each one's own number.",
        )
    if len(ids.unique()) < known:
        values, counts = ids.unique(return_counts=True)
        twice = int(values[counts > 1][0])
        raise FormatError(
            folder,
            "d2t",
            f"expected different tokens. Got token {twice} more than once: take a complete checkpoint of a head.",
        )
    return None if torch.equal(ids, torch.arange(vocabulary)) else ids.to(device)


def spread_logits(logits: Tensor, ids: Tensor, vocabulary: int) -> Tensor:
    """Return logits (n, vocabulary) of the target's tokens from a head's (n, Vd): -inf for tokens that it does not predict."""
    spread = logits.new_full((len(logits), vocabulary), float("-inf"))
    spread[:, ids] = logits
    return spread
