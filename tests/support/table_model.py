"""Toy models whose logits follow from the last token, and drafts of them that are not finite after some tokens."""

import numpy as np
import torch

from tests.support.markov import Memoryless
from treeopt.runtime import distribution
from treeopt.runtime.models.model import ModelSizes

NAN, INF = float("nan"), float("inf")
NOT_FINITE = {
    "all NaN": lambda row: row.fill_(NAN),
    "one NaN": lambda row: row.index_fill_(0, torch.tensor([1]), NAN),
    "one infinity": lambda row: row.index_fill_(0, torch.tensor([2]), INF),
    "nothing allowed": lambda row: row.fill_(-INF),
}
"""What spoils the logits (V,) after a token."""


class Table(Memoryless):
    """A model whose logits are a row of a table, (V, V)."""

    def __init__(self, logits, name="toy"):
        self.logits, self.name = logits, name
        self.config = ModelSizes(vocabulary=len(logits), max_positions=1000, end_tokens=())

    @classmethod
    def random(cls, seed, vocabulary, name="toy"):
        return cls(2 * torch.randn((vocabulary,) * 2, generator=torch.Generator().manual_seed(seed)), name)

    def spoiled(self, tokens, spoil, name="broken draft"):
        """Return the model with the logits after some tokens spoiled."""
        logits = self.logits.clone()
        for token in tokens:
            spoil(logits[token])
        return Table(logits, name)

    def rows(self, tokens):
        return self.logits[tokens]

    def text(self, root, count):
        """Return the greedy text after a token."""
        found = [root]
        for _ in range(count):
            found.append(int(self.logits[found[-1]].argmax()))
        return found[1:]

    def joint(self, root, length, sampling):
        """Return the joint distribution of the next tokens after one, (V,) * length."""
        probs = distribution(self.logits, sampling).double().numpy()
        probs = probs / probs.sum(1, keepdims=True)
        found = probs[root]
        for _ in range(length - 1):
            found = found[..., None] * probs
        return found


def counted(decoder, prompt, length, sequences, vocabulary):
    """Return the counts of every sequence of `length` tokens, (V,) * length, and their steps."""
    counts, steps = np.zeros((vocabulary,) * length), 0
    for _ in range(sequences):
        text = list(decoder.stream(prompt, length))
        counts[tuple(token for step in text for token in step)] += 1
        steps += len(text)
    return counts, steps
