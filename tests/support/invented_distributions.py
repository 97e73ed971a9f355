"""Invented distributions of a target and a draft after every short prefix, adversarial ones among them."""

from itertools import product

import numpy as np


def prefix_generator(seed, prefix):
    """Return a generator that depends on seed and prefix only."""
    return np.random.default_rng([seed, len(prefix), *prefix])


def dirichlet(seed, vocabulary, concentration=0.7):
    return lambda prefix: prefix_generator(seed, prefix).dirichlet(np.full(vocabulary, concentration))


def one_hot(seed, vocabulary):
    return lambda prefix: np.eye(vocabulary)[prefix_generator(seed, prefix).integers(vocabulary)]


def with_zeros(seed, vocabulary, zeros):
    def distribution(prefix):
        generator = prefix_generator(seed, prefix)
        weights = generator.dirichlet(np.ones(vocabulary))
        weights[generator.permutation(vocabulary)[:zeros]] = 0
        return weights / weights.sum()

    return distribution


def part(vocabulary, tokens):
    """Return the distribution that is even over some tokens, whatever the prefix."""
    distribution = np.isin(np.arange(vocabulary), tokens) / len(tokens)
    return lambda _: distribution


def far_apart(seed, vocabulary):
    """Return distributions of which a format with 8 bits of exponent keeps one token: the others are e^-94, e^-96 and so on."""

    def distribution(prefix):
        logits = np.append(0.0, -92.0 - 2.0 * np.arange(1, vocabulary))
        weights = np.exp(prefix_generator(seed, prefix).permutation(logits))
        return weights / weights.sum()

    return distribution


def cut_to(distribution, kept):
    """Return the distributions with all but the likeliest tokens cut, as top-k and top-p do."""

    def after(prefix):
        weights = distribution(prefix)
        weights = np.where(weights >= np.sort(weights)[-kept], weights, 0.0)
        return weights / weights.sum()

    return after


def adversarial(size):
    """Return pairs of distributions, target and draft, over `size` tokens, by name."""
    upper, lower = list(range(size // 2, size)), list(range(size // 2))
    return {
        "random": (dirichlet(1, size), dirichlet(2, size)),
        "near": (dirichlet(3, size, 30.0), dirichlet(4, size, 30.0)),
        "peaked": (dirichlet(5, size, 0.1), dirichlet(6, size, 0.1)),
        "equal": (dirichlet(20, size), dirichlet(20, size)),
        "equal with a zero": (with_zeros(21, size, 1), with_zeros(21, size, 1)),
        "disjoint": (part(size, upper), part(size, lower)),
        "one-hot target": (one_hot(7, size), dirichlet(8, size)),
        "one-hot draft": (dirichlet(9, size), one_hot(10, size)),
        "both one-hot": (one_hot(11, size), one_hot(12, size)),
        "the same one-hot": (one_hot(11, size), one_hot(11, size)),
        "one token never drafted": (dirichlet(13, size), with_zeros(14, size, 1)),
        "two tokens never drafted": (dirichlet(15, size), with_zeros(16, size, 2)),
        "zeros in both": (with_zeros(17, size, size - 2), with_zeros(18, size, size - 2)),
        "even draft": (dirichlet(19, size), part(size, range(size))),
        "top-k of 1": (cut_to(dirichlet(22, size), 1), cut_to(dirichlet(23, size), 2)),
        "top-p cuts what is drafted": (cut_to(part(size, [0]), 1), part(size, range(1, size))),
        "target far apart": (far_apart(24, size), dirichlet(25, size)),
        "draft far apart": (dirichlet(26, size), far_apart(27, size)),
        "both far apart": (far_apart(28, size), far_apart(29, size)),
    }


class PairDistributions:
    """Distributions of target and draft after every prefix of up to `depth` tokens."""

    def __init__(self, target, draft, vocabulary, depth):
        self.vocabulary, self.depth = vocabulary, depth
        prefixes = [prefix for length in range(depth + 1) for prefix in product(range(vocabulary), repeat=length)]
        self.row = {prefix: row for row, prefix in enumerate(prefixes)}
        self.target, self.draft = (
            np.stack([distribution(prefix) for prefix in prefixes]) for distribution in (target, draft)
        )

    def completed(self, prefix, distribution):
        """Return the joint distribution of the tokens after a prefix up to depth + 1, the first by `distribution`, the rest by the target."""
        if len(prefix) == self.depth:
            return distribution
        after = [self.target_distribution((*prefix, token)) for token in range(self.vocabulary)]
        return np.stack([p * below for p, below in zip(distribution, after, strict=True)])

    def target_distribution(self, prefix=()):
        """Return the joint distribution of the tokens after a prefix up to depth + 1."""
        return self.completed(prefix, self.target[self.row[prefix]])
