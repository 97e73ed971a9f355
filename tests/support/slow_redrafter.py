"""A recurrent head and its beam search in plain Python: lists, loops, no tensors."""

import math


def product(matrix, vector):
    return [sum(weight * x for weight, x in zip(row, vector, strict=True)) for row in matrix]


def plus(*vectors):
    return [sum(values) for values in zip(*vectors, strict=True)]


def silu(vector):
    return [x / (1 + math.exp(-x)) for x in vector]


def normed(vector):
    """Return the vector of root mean square 1."""
    size = math.sqrt(sum(x * x for x in vector) / len(vector) + 1e-9)
    return [x / size for x in vector]


class SlowHead:
    """The head of weights by name, as lists, on a target's embedding and output layer."""

    def __init__(self, weights, embedding, output):
        self.weights = weights
        self.embedding = embedding
        self.output = output

    def log_probs_after(self, hidden, tokens):
        """Return the log-probabilities of the token after some, the root first; `hidden` is the target's before it."""
        weights, (root, *drafts) = self.weights, tokens
        state = normed(self.embedding[root])
        for token in drafts:
            embedded = normed(self.embedding[token])
            recurred = product(weights["state.weight"], state)
            state = silu(plus(recurred, product(weights["token.weight"], embedded), weights["state.bias"]))
        x = plus(product(weights["input.weight"], [*hidden, *state]), weights["input.bias"])
        for index in range(sum(name.startswith("blocks.") for name in weights) // 2):
            inner = plus(product(weights[f"blocks.{index}.weight"], x), weights[f"blocks.{index}.bias"])
            x = plus(x, silu(inner))
        logits = product(self.output, x)
        total = math.log(sum(map(math.exp, logits)))
        return [logit - total for logit in logits]


def slow_beams(log_probs_after, width, length):
    """Return the beams, the best first: at every length the best of all that go on from those before.

    `log_probs_after(path)` returns the log-probabilities of the token after a path.
    """
    beams = [(0.0, ())]
    for _ in range(length):
        longer = [
            (total + log_prob, (*path, token))
            for total, path in beams
            for token, log_prob in enumerate(log_probs_after(path))
        ]
        beams = sorted(longer, key=lambda beam: -beam[0])[:width]
    return [path for _, path in beams]


def beginnings(beams):
    """Return all beginnings of beams, the empty one first, in level order, siblings in the order they come first."""
    order = [()]
    for path in order:
        below = [beam[: len(path) + 1] for beam in beams if beam[: len(path)] == path and len(beam) > len(path)]
        order += dict.fromkeys(below)
    return order
