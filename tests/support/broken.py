"""Rules with one mistake each, as other programs have made them: every check of losslessness must find all of them.

The tests take the place of `Rule.accept_test`, so that a verifier has to be told not to test by loops on the host.
"""

from dataclasses import replace
from functools import partialmethod

import torch

from tests.support.enumeration import ORDERS
from treeopt.runtime import Verifier
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.distributions import EPSILON, uniform
from treeopt.runtime.rules.rule import TopDown
from treeopt.runtime.rules.sample_children import ChildIndices, take_likeliest

LEAST = 1e-300


def by_rank(siblings, tokens):
    """Yield the children of each rank and their tokens (c, 1); their parents are the first c."""
    for children in siblings.children.split(siblings.counts):
        yield children, tokens[children][:, None]


def rejection(*, upside_down=False, update=True, residual=True, fall_back=True):
    """Return the test of `sequoia` written once more, with one mistake where one is asked for."""

    def accept_test(siblings, tokens, draft, target, acceptance):
        if not fall_back:
            draft *= draft > 10 * EPSILON
        for children, x in by_rank(siblings, tokens):
            p, q = target[: len(x)], draft[: len(x)]
            over, under = (q, p) if upside_down else (p, q)
            ratio = over.gather(1, x) / under.gather(1, x).clamp_min(LEAST)
            acceptance[children] = ratio.clamp(max=1.0).squeeze(1)
            if residual:
                rest = (p - q).clamp_min(0.0)
                p.copy_(torch.where(rest.sum(1, keepdim=True) > 0, rest, p))
                p /= p.sum(1, keepdim=True)
            if update:
                q.scatter_(1, x, 0.0)
                q /= q.sum(1, keepdim=True).clamp_min(LEAST)

    return accept_test


def argmax_accepted(siblings, tokens, draft, target, acceptance):  # noqa: ARG001
    """Accept a child if the target finds it the likeliest, as at temperature 0."""
    best = target.argmax(1, keepdim=True)
    for children, x in by_rank(siblings, tokens):
        acceptance[children] = (best[: len(x)] == x).double().squeeze(1)


def target_not_renewed(siblings, tokens, draft, target, acceptance):  # noqa: ARG001
    """Test as `target`, but a child that was not accepted may still be the token after it."""
    for children, x in by_rank(siblings, tokens):
        acceptance[children] = target[: len(x)].gather(1, x).squeeze(1)


def traversal(*, ratio=False, next_distribution=True):
    """Return the test of `traversal` with another formula for what is left, or with siblings' distributions not renewed."""

    def accept_test(siblings, tokens, draft, target, acceptance):
        paths = acceptance[siblings.parents][:, None]
        for children, x in by_rank(siblings, tokens):
            p, q, a = target[: len(x)], draft[: len(x)], paths[: len(x)]
            accepted = a * p.gather(1, x) / q.gather(1, x).clamp_min(LEAST)
            acceptance[children] = accepted.clamp(max=1.0).squeeze(1)
            rest = (a * p - q).clamp_min(0.0)
            mass = rest.sum(1, keepdim=True)
            p.copy_(torch.where(mass > 0, rest / mass.clamp_min(LEAST), p))
            a.copy_(mass.clamp(max=1.0) if ratio else mass / (mass + (1 - a)).clamp_min(LEAST))
            if next_distribution:
                q.scatter_(1, x, 0.0)
                q /= q.sum(1, keepdim=True).clamp_min(LEAST)
        acceptance[siblings.parents] = paths.squeeze(1)
        acceptance[0] = 1.0

    return accept_test


SEQUOIA, SPECINFER, TARGET, TRAVERSAL = (RULES[name] for name in ("sequoia", "specinfer", "target", "traversal"))

BROKEN_TESTS = {
    "sequoia, ratio upside down": replace(SEQUOIA, accept_test=rejection(upside_down=True)),
    "sequoia, draft distribution not renewed": replace(SEQUOIA, accept_test=rejection(update=False)),
    "sequoia, target distribution not renewed": replace(SEQUOIA, accept_test=rejection(residual=False)),
    "sequoia, likeliest accepted": replace(SEQUOIA, accept_test=argmax_accepted),
    "specinfer, draft distribution renewed": replace(SPECINFER, accept_test=SEQUOIA.accept_test),
    "specinfer, likeliest accepted": replace(SPECINFER, accept_test=argmax_accepted),
    "target, target distribution not renewed": replace(TARGET, accept_test=target_not_renewed),
    "target, tested as sampled": replace(TARGET, accept_test=SEQUOIA.accept_test),
    "target, likeliest accepted": replace(TARGET, accept_test=argmax_accepted),
    "traversal, ratio of norms": replace(TRAVERSAL, accept_test=traversal(ratio=True)),
    "traversal, siblings' distribution not renewed": replace(TRAVERSAL, accept_test=traversal(next_distribution=False)),
    "traversal, selected from the top": replace(TRAVERSAL, selection=TopDown()),
    "traversal, likeliest accepted": replace(
        TRAVERSAL, accept_test=argmax_accepted, by_level=False, selection=TopDown()
    ),
}


def likelier_first(orders):
    """Siblings are put in the order of their draft probability after they were sampled."""
    return lambda distribution, count: [
        (sorted(sampled, key=lambda x: -distribution[x]), weight) for sampled, weight in orders(distribution, count)
    ]


def less_likely_first(orders):
    return lambda distribution, count: [
        (sorted(sampled, key=lambda x: distribution[x]), weight) for sampled, weight in orders(distribution, count)
    ]


def least_likely_dropped(orders):
    """One child more is sampled, and the least likely is dropped without being tried."""

    def drawn_and_dropped(distribution, count):
        found = []
        for sampled, weight in orders(distribution, min(count + 1, len(distribution))):
            dropped = min(range(len(sampled)), key=lambda i: distribution[sampled[i]])
            found.append(((*sampled[:dropped], *sampled[dropped + 1 :])[:count], weight))
        return found

    return drawn_and_dropped


BROKEN_ORDERS = {
    f"{rule}, {mistake.__name__.replace('_', ' ')}": (RULES[rule], mistake(ORDERS[rule]))
    for rule in ("sequoia", "specinfer", "traversal")
    for mistake in (likelier_first, less_likely_first, least_likely_dropped)
}


def by_sequence(sample):
    """Return the draw of a batch, given that of one sequence."""

    def sample_batch(distribution, wanted, generators):
        return torch.stack([sample(probs, wanted, each) for probs, each in zip(distribution, generators, strict=True)])

    return sample_batch


def draw_likelier_first(draw):
    """`likelier_first` as the runtime samples."""

    def sample(distribution, wanted, generator):
        (tokens,) = draw(distribution[None], wanted, [generator])
        chance = distribution[wanted.node, tokens].double()
        return tokens[(2.0 * wanted.node - chance).argsort(stable=True)]

    return by_sequence(sample)


def draw_likeliest(distribution, wanted: ChildIndices, generators):
    return take_likeliest(distribution, wanted, generators)


def coarse_uniform(generator, count, device):
    """Return what `uniform` returns, with 2 bits."""
    return uniform(generator, count, device).mul_(4).floor_().div_(4)


def verify_with_tensors(monkeypatch):
    """Let every verifier test with tensors, so that a rule's own `accept_test` is used."""
    monkeypatch.setattr(Verifier, "__init__", partialmethod(Verifier.__init__, on_host=False))
