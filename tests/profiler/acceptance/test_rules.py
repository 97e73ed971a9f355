"""Acceptance of every rule, against values computed from logits, enumeration, and decoding."""

from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from tests.support.passes import logits_after
from tests.support.slow_distribution import slow_distribution
from treeopt.profiler.acceptance.positions import PositionSampler, continue_prompts
from treeopt.profiler.decoding import Decoding
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import level_widths

WARM = Sampling(1.0)
CUT = Sampling(0.8, 0.9, 12)
BRANCHING = 3


def make_sampler(target, rule, *, sampling=WARM, draft_sampling=None, seed=0):
    decoding = Decoding(rule=rule, sampling=sampling, draft_sampling=draft_sampling)
    return PositionSampler(target, decoding, branching=BRANCHING, seed=seed)


@pytest.fixture
def generate(target, draft, prompts, monkeypatch):
    """Return a function from a rule to the counted positions, the target's distributions, the draft's children, the tokens."""

    def generate(rule, *, sampling, draft_sampling=None, positions=60):
        fed, forward = [], target.forward

        def record(inputs, *arguments, **options):
            (sequence,) = inputs
            fed.extend(sequence.tokens.tolist())
            return forward(inputs, *arguments, **options)

        sampler = make_sampler(target, rule, sampling=sampling, draft_sampling=draft_sampling)
        with monkeypatch.context() as patch:
            patch.setattr(target, "forward", record)
            (counted,) = continue_prompts(target, draft, [sampler], prompts[:1], positions)
        sequences = [[*prompts[0][:-1], *fed[: position + 1]] for position in range(positions)]
        target_logits, draft_logits = ([logits_after(model, text) for text in sequences] for model in (target, draft))
        distributions = np.array([slow_distribution(logits.tolist(), sampling) for logits in target_logits])
        children = np.array([logits.topk(BRANCHING).indices.tolist() for logits in draft_logits])
        return counted, distributions, children, fed[1:]

    return generate


@pytest.mark.parametrize(("sampling", "draft_sampling"), [(WARM, None), (CUT, Sampling(3.0))])
def test_target_accepts_the_likeliest_children_with_the_targets_probability(generate, sampling, draft_sampling):
    counted, distributions, children, tokens = generate("target", sampling=sampling, draft_sampling=draft_sampling)
    np.testing.assert_allclose(counted.expected, np.take_along_axis(distributions, children, axis=1), atol=1e-6)
    assert counted.expected.sum(axis=1).min() < 0.5
    rows = zip(counted.accepted_rank, children, distributions, tokens, strict=False)
    for rank, level, distribution, token in rows:  # the sequence continues with the accepted child
        assert distribution[token] > 0
        assert (token == level[rank]) if rank != REJECTED else (token not in level)
    assert {REJECTED, 0, 1} <= set(counted.accepted_rank.tolist())


@pytest.mark.parametrize(("sampling", "counts"), [(WARM, {2, 3}), (CUT, {1, 2, 3}), (Sampling(0.15), {0, 1, 2})])
def test_typical_accepts_the_likeliest_of_the_children_above_the_threshold(generate, sampling, counts):
    counted, distributions, children, tokens = generate("typical", sampling=sampling)
    likely_counts = set()
    for expected, rank, distribution, level, token in zip(
        counted.expected, counted.accepted_rank, distributions, children, [*tokens, None], strict=True
    ):
        entropy = -sum(p * np.log(p) for p in distribution if p > 0)
        likely = [k for k, child in enumerate(level) if distribution[child] > min(0.3, 0.09 * np.exp(-entropy))]
        likely_counts.add(len(likely))
        best = max(likely, key=lambda k: distribution[level[k]], default=REJECTED)
        assert rank == best
        assert expected.tolist() == [float(k == best) for k in range(BRANCHING)]
        assert best == REJECTED or token in (None, level[best])
    assert likely_counts >= counts


TARGET, DRAFT = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.35, 0.3, 0.25, 0.1])
"""The distributions after every token."""


def accept_in_turn(children, draft, *, replacement):
    """Return the probability of each child to be accepted if one after the other is tried."""
    p, q = TARGET.copy(), draft.copy()
    left, reach = 1.0, []
    for x in children:
        accept = min(1.0, p[x] / q[x])
        reach.append(left * accept)
        left -= reach[-1]
        p = np.maximum(p - q, 0)
        p /= p.sum() or 1.0
        if not replacement:
            q[x] = 0
            q /= q.sum()
    return np.array(reach)


def enumerate_draws(draft, *, replacement):
    """Yield every draw of the children with its probability."""
    if replacement:
        for children in product(range(4), repeat=BRANCHING):
            yield children, draft[list(children)].prod()
        return
    for children in permutations(range(4), BRANCHING):
        left, probability = 1.0, 1.0
        for x in children:
            probability *= draft[x] / left
            left -= draft[x]
        yield children, probability


def enumerate_acceptance(draft, *, replacement):
    draws = enumerate_draws(draft, replacement=replacement)
    return sum(weight * accept_in_turn(children, draft, replacement=replacement) for children, weight in draws)


COOLER = DRAFT**2 / (DRAFT**2).sum()
"""The draft at temperature 0.5."""
EXACT = {
    "sequoia": enumerate_acceptance(DRAFT, replacement=False),
    "specinfer": enumerate_acceptance(DRAFT, replacement=True),
    "target": TARGET[np.argsort(-DRAFT)[:BRANCHING]],
    "traversal": enumerate_acceptance(DRAFT, replacement=False),
    "typical": np.array([0.0, 0.0, 1.0]),  # 0.1, 0.2 and 0.3 are above the threshold, and 0.3 is the likeliest
}
"""Acceptance of each rank."""


@pytest.fixture(scope="module")
def pair(make_markov):
    return [make_markov(np.log(distribution)) for distribution in (TARGET, DRAFT)]


@pytest.fixture(scope="module")
def average(pair):
    """Return a function from a rule to the mean expected acceptance of 720 positions, and its standard error."""

    def average(rule, draft_sampling=None):
        samplers = [make_sampler(pair[0], rule, draft_sampling=draft_sampling, seed=seed) for seed in range(6)]
        counted = continue_prompts(*pair, samplers, [[0]] * len(samplers), 120)
        expected = np.concatenate([positions.expected for positions in counted])
        return expected.mean(axis=0), expected.std(axis=0) / len(expected) ** 0.5

    return average


@pytest.mark.parametrize("rule", EXACT)
def test_mean_acceptance_is_that_of_enumeration(average, rule):
    """Four standard errors are at most 0.08."""
    mean, error = average(rule)
    assert np.all(np.abs(mean - EXACT[rule]) <= 4 * error + 1e-7)
    assert error.max() < 0.02
    for other, exact in EXACT.items():  # negative control: the acceptance of other rules is refuted
        same = other == rule or {other, rule} == {"sequoia", "traversal"}
        assert same or np.any(np.abs(mean - exact) > 4 * error + 1e-7)


@pytest.mark.parametrize(("rule", "replacement"), [("sequoia", False), ("specinfer", True)])
def test_children_are_drawn_with_the_draft_sampling(average, rule, replacement):
    exact = enumerate_acceptance(COOLER, replacement=replacement)
    mean, error = average(rule, Sampling(0.5))
    assert np.all(np.abs(mean - exact) <= 4 * error + 1e-7)
    assert np.abs(exact - EXACT[rule]).max() > 8 * error.max()


@pytest.mark.parametrize("rule", EXACT)
def test_decoding_accepts_each_rank_with_the_enumerated_probability(pair, rule):
    """A chi-squared test of 600 steps; it refutes a probability that is 0.08 off with a power of 0.9."""
    steps = 600
    decoder = Decoder(*pair, level_widths([BRANCHING]), rule=rule, temperature=1.0, seed=8, lossy=True)
    counts = np.zeros(BRANCHING + 1)
    for step in range(steps):
        if step % 50 == 0:
            decoder.start([0])
        path = decoder.step().path
        counts[path[1] - 1 if len(path) == 2 else BRANCHING] += 1
    distribution = np.append(EXACT[rule], 1 - EXACT[rule].sum())
    possible = distribution > 1e-12
    assert counts[~possible].sum() == 0
    assert possible.sum() == 1 or stats.chisquare(counts[possible], steps * distribution[possible]).pvalue > 1e-3
