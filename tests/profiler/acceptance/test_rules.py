"""Acceptance of rules beside `sequoia`, computed once more from logits or by enumeration, and found by decoding."""

from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from tests.support.passes import logits_after
from tests.support.slow_distribution import slow_distribution
from treeopt.profiler.acceptance.positions import AcceptanceSequence
from treeopt.profiler.decoding import Decoding
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.trees import level_widths

WARM = Sampling(1.0)
CUT = Sampling(0.8, 0.9, 12)
BRANCHING = 3


def text_of(target, draft, rule, *, sampling=WARM, draft_sampling=None, seed=0):
    return AcceptanceSequence(
        target,
        draft,
        Decoding(rule=rule, sampling=sampling, draft_sampling=draft_sampling),
        branching=BRANCHING,
        depth=4,
        seed=seed,
    )


@pytest.fixture
def generated(target, draft, prompts, monkeypatch):
    """Return a function that counts a rule's text and tells what the target's and the draft's logits were."""

    def generate(rule, *, sampling, draft_sampling=None, positions=80):
        fed, forward = [], target.forward

        def seen(inputs, *arguments, **keywords):
            (sequence,) = inputs
            fed.extend(sequence.tokens.tolist())
            return forward(inputs, *arguments, **keywords)

        monkeypatch.setattr(target, "forward", seen)
        found = text_of(target, draft, rule, sampling=sampling, draft_sampling=draft_sampling).positions(
            prompts[0], positions
        )
        monkeypatch.undo()
        texts = [[*prompts[0][:-1], *fed[: position + 1]] for position in range(positions)]
        logits = [[logits_after(model, text) for text in texts] for model in (target, draft)]
        distributions = np.array([slow_distribution(each.tolist(), sampling) for each in logits[0]])
        children = np.array([each.topk(BRANCHING).indices.tolist() for each in logits[1]])
        return found, distributions, children, fed[1:]

    return generate


@pytest.mark.parametrize(("sampling", "draft_sampling"), [(WARM, None), (CUT, Sampling(3.0))])
def test_target_accepts_the_likeliest_children_as_often_as_the_target_samples_them(generated, sampling, draft_sampling):
    found, distributions, children, _ = generated("target", sampling=sampling, draft_sampling=draft_sampling)
    np.testing.assert_allclose(found.expected, np.take_along_axis(distributions, children, axis=1), atol=1e-6)
    assert found.expected.sum(axis=1).min() < 0.5


def test_target_goes_on_with_the_child_that_it_accepted(generated):
    found, distributions, children, following = generated("target", sampling=WARM)
    for rank, tokens, distribution, token in zip(found.accepted_rank, children, distributions, following, strict=False):
        assert distribution[token] > 0
        assert (token == tokens[rank]) if rank != REJECTED else (token not in tokens)
    assert {REJECTED, 0, 1} <= set(found.accepted_rank.tolist())


@pytest.mark.parametrize(("sampling", "counts"), [(WARM, {2, 3}), (CUT, {1, 2, 3}), (Sampling(0.15), {0, 1, 2})])
def test_typical_accepts_the_likeliest_of_the_children_that_are_likely_enough(generated, sampling, counts):
    found, distributions, children, following = generated("typical", sampling=sampling)
    kept_of = []
    for expected, rank, distribution, tokens, token in zip(
        found.expected, found.accepted_rank, distributions, children, [*following, None], strict=True
    ):
        entropy = -sum(p * np.log(p) for p in distribution if p > 0)
        kept = [k for k, child in enumerate(tokens) if distribution[child] > min(0.3, 0.09 * np.exp(-entropy))]
        kept_of.append(len(kept))
        best = max(kept, key=lambda k: distribution[tokens[k]], default=REJECTED)
        assert rank == best
        assert expected.tolist() == [float(k == best) for k in range(BRANCHING)]
        assert best == REJECTED or token in (None, tokens[best])
    assert set(kept_of) >= counts


DISTRIBUTIONS = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.35, 0.3, 0.25, 0.1])
"""Of target and draft, after every text."""


def in_turn(children, draft, *, replacement):
    """Return how probable each child is to be accepted when one after the other is tried."""
    p, q = DISTRIBUTIONS[0].copy(), draft.copy()
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


def drawn(draft, *, replacement):
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


def by_enumeration(draft, *, replacement):
    draws = drawn(draft, replacement=replacement)
    return sum(weight * in_turn(children, draft, replacement=replacement) for children, weight in draws)


EXACT = {
    "sequoia": by_enumeration(DISTRIBUTIONS[1], replacement=False),
    "specinfer": by_enumeration(DISTRIBUTIONS[1], replacement=True),
    "target": DISTRIBUTIONS[0][np.argsort(-DISTRIBUTIONS[1])[:BRANCHING]],
    "traversal": by_enumeration(DISTRIBUTIONS[1], replacement=False),
    "typical": np.array([0.0, 0.0, 1.0]),  # of 0.1, 0.2 and 0.3 all are likely enough, and 0.3 is the likeliest
}
"""Acceptance of each rank."""
all_rules = pytest.mark.parametrize("rule", EXACT)


@pytest.fixture(scope="module")
def pair(make_markov):
    return [make_markov(np.log(distribution)) for distribution in DISTRIBUTIONS]


@all_rules
def test_on_average_it_is_what_enumeration_says(pair, rule):
    text = text_of(*pair, rule)
    expected = np.concatenate([text.positions([0], 120).expected for _ in range(6)])
    error = expected.std(axis=0) / len(expected) ** 0.5
    assert np.all(np.abs(expected.mean(axis=0) - EXACT[rule]) <= 4 * error + 1e-7)
    assert error.max() < 0.02


@pytest.mark.parametrize(("rule", "replacement"), [("sequoia", False), ("specinfer", True)])
def test_children_are_drawn_as_the_draft_is_asked_to_sample(pair, rule, replacement):
    cooler = DISTRIBUTIONS[1] ** 2 / (DISTRIBUTIONS[1] ** 2).sum()
    exact = by_enumeration(cooler, replacement=replacement)
    text = text_of(*pair, rule, draft_sampling=Sampling(0.5))
    expected = np.concatenate([text.positions([0], 120).expected for _ in range(6)])
    error = expected.std(axis=0) / len(expected) ** 0.5
    assert np.all(np.abs(expected.mean(axis=0) - exact) <= 4 * error + 1e-7)
    assert np.abs(exact - EXACT[rule]).max() > 8 * error.max()


@all_rules
def test_decoding_accepts_each_rank_as_often(pair, rule):
    steps = 1000
    decoder = Decoder(*pair, level_widths([BRANCHING]), rule=rule, temperature=1.0, seed=8, lossy=True)
    counts = np.zeros(BRANCHING + 1)
    for step in range(steps):
        if step % 50 == 0:
            decoder.start([0])
        path = decoder.step().path
        counts[path[1] - 1 if len(path) == 2 else BRANCHING] += 1
    distribution = np.append(EXACT[rule], 1 - EXACT[rule].sum())
    there = distribution > 1e-12
    assert counts[~there].sum() == 0
    assert there.sum() == 1 or stats.chisquare(counts[there], steps * distribution[there]).pvalue > 1e-3


def test_the_tests_tell_the_rules_apart(pair):
    """The control: of no two rules that differ could the counts have come."""
    for one, other in permutations(EXACT, 2):
        if {one, other} == {"sequoia", "traversal"}:
            continue  # at depth 1 they are the same
        assert np.abs(EXACT[one] - EXACT[other]).max() > 0.02
    text = text_of(*pair, "specinfer")
    expected = np.concatenate([text.positions([0], 120).expected for _ in range(6)])
    error = expected.std(axis=0) / len(expected) ** 0.5
    assert np.any(np.abs(expected.mean(axis=0) - EXACT["sequoia"]) > 6 * error)
