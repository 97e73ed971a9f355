"""A toy target whose sequences are Markov chains of known distribution, and how far decoded sequences are from it.

Of 1024 tokens, 0 to 4 are a state each; all others are one state, a tail of about a quarter of the distribution in
which every token has about a four-thousandth, so that noise of few bits shows.  The next token depends on the state
only.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from tests.support.slow_distribution import slow_distribution
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.model import NO_STATES, Output, Outputs, SequenceCache

VOCABULARY, STATES = 1024, 6
TAIL = VOCABULARY - STATES + 1
LAGS = np.arange(1, 21)
CHAINS = 200


class Cache(SequenceCache):
    """As much of `KVCache` as a model without memory needs, its arguments checked."""

    fed = 0

    def feed(self, sequence):
        """Check what a pass feeds."""
        nodes = sequence.nodes
        assert len(sequence.tokens) == nodes.rows == len(nodes.visible)
        assert min(nodes.depth) >= 0
        assert self.length + nodes.start + nodes.rows <= self.capacity
        self.fed = nodes.start + nodes.rows

    def commit(self, path):
        assert list(path) == sorted(set(path))
        assert path[0] == 0
        assert path[-1] < self.fed
        self.length, self.fed = self.length + len(path), 0

    def clear(self):
        self.length = self.fed = 0

    def _zero_nodes(self):
        """Do nothing: there are no entries."""


class Memoryless:
    """The parts of `Transformer` that decoding uses, of a model whose logits follow from each token alone."""

    device, dtype, parameters, weight_bytes = torch.device("cpu"), torch.float32, 1, 4

    def rows(self, tokens):
        """Return the logits (n, V) after tokens."""
        raise NotImplementedError

    def new_caches(self, capacity, sequences):
        return [Cache(capacity) for _ in range(sequences)]

    def cache_bytes(self, _):
        return 0

    def pass_bytes(self, _):
        return 0

    def prefill(self, tokens, cache, requested_states=NO_STATES):  # noqa: ARG002
        assert cache.length == 0
        cache.length = len(tokens)

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):  # noqa: ARG002
        for each in inputs:
            each.cache.feed(each)
        found = [self.rows(each.tokens)[-1 if last_only else 0 :] for each in inputs]
        return Outputs(Output(torch.cat(found)), [len(each) for each in found])


class Markov(Memoryless):
    """A model whose logits are log P[state of the token]."""

    def __init__(self, transitions, *, dtype=torch.float32, max_positions=40_000):
        self.dtype = dtype
        self.name = "toy"
        self.config = ModelConfig(
            vocabulary=VOCABULARY,
            hidden=1,
            intermediate=1,
            layers=1,
            heads=1,
            key_value_heads=1,
            head_size=2,
            norm_epsilon=1e-5,
            rope_base=1e4,
            max_positions=max_positions,
            tied_head=False,
            end_tokens=(),
        )
        self.logits = torch.from_numpy(np.log(token_distributions(transitions))).to(dtype)
        """(STATES, V), after a token of each state."""

    def chain(self, sampling):
        """Return the chain of states that direct sampling from this model follows."""
        distributions = np.array([slow_distribution(row.tolist(), sampling) for row in self.logits])
        return Chain(np.column_stack([distributions[:, : STATES - 1], distributions[:, STATES - 1 :].sum(1)]))

    def rows(self, tokens):
        return self.logits[tokens.clamp(max=STATES - 1)]


def token_distributions(transitions):
    """Return the distributions of tokens, (states, V), whose states have the distributions `transitions`, (states, states)."""
    tail = np.repeat(transitions[:, -1:] / TAIL, TAIL, axis=1)
    return np.concatenate([transitions[:, :-1], tail], axis=1)


def random_transitions(seed, tail=0.25):
    """Return distributions of the next state after each, all with about the same tail."""
    generator = np.random.default_rng(seed)
    tails = tail * generator.uniform(0.8, 1.2, (STATES, 1))
    return np.concatenate([generator.dirichlet(np.ones(STATES - 1), STATES) * (1 - tails), tails], axis=1)


def states(tokens):
    return np.minimum(tokens, STATES - 1)


@dataclass(frozen=True)
class Chain:
    """The exact distribution of a Markov chain of states in the long run, and distances from it."""

    transitions: np.ndarray

    @property
    def stationary(self):
        return np.linalg.matrix_power(self.transitions, 500)[0]

    def ngrams(self, n):
        """Return the distribution of n states in a row, flat."""
        distribution = self.stationary
        for _ in range(n - 1):
            distribution = (distribution.reshape(-1, STATES)[:, :, None] * self.transitions).ravel()
        return distribution

    def agreement(self):
        """Return the probability of the same state at each of the lags."""
        powers = (np.linalg.matrix_power(self.transitions, lag) for lag in LAGS)
        return np.array([self.stationary @ np.diag(power) for power in powers])

    def sampled(self, count):
        """Return sequences sampled directly, states (CHAINS, count)."""
        generator = np.random.default_rng(0)
        below = self.transitions.cumsum(1)[:, :-1]
        found = np.zeros((CHAINS, count), np.int64)
        noise = generator.random((count, CHAINS, 1))
        for step in range(1, count):
            found[:, step] = (noise[step] >= below[found[:, step - 1]]).sum(1)
        return found

    def distances(self, text):
        """Return how far a text, states (count,), is from the distribution.

        The total variation of its 1-, 2- and 3-grams, and its largest error in the agreement of states at a lag.
        """
        count, found = len(text), []
        for n in (1, 2, 3):
            code = sum(text[i : count - n + 1 + i] * STATES ** (n - 1 - i) for i in range(n))
            share = np.bincount(code, minlength=STATES**n) / len(code)
            found.append(np.abs(share - self.ngrams(n)).sum() / 2)
        agreement = np.array([np.mean(text[lag:] == text[:-lag]) for lag in LAGS])
        return np.array([*found, np.abs(agreement - self.agreement()).max()])

    def excess(self, text):
        """Return the largest distance of a text in units of the noise floor."""
        return float((self.distances(text) / noise_floor(self.transitions.tobytes(), len(text))).max())


@cache
def noise_floor(transitions, count):
    """Return the largest distances among CHAINS directly sampled sequences of `count` states."""
    distribution = Chain(np.frombuffer(transitions).reshape(STATES, STATES))
    return np.max([distribution.distances(direct) for direct in distribution.sampled(count)], axis=0)
