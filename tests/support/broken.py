"""Rules with one mistake each, as other programs have made them: every check of losslessness must find all of them.

The judges take the place of `Rule.judge`, so that a verifier has to be told not to judge by loops on the host.
"""

from dataclasses import replace

import torch

from tests.support.enumeration import ORDERS
from treeopt.runtime.rules import RULES
from treeopt.runtime.rules.sample_children import LAST, Places, likeliest, places
from treeopt.runtime.rules.selection import TopDown

LEAST = 1e-300


def by_rank(families, tokens):
    """Yield the children of each rank and their tokens (c, 1); their parents are the first c."""
    for children in families.children.split(families.counts):
        yield children, tokens[children][:, None]


def rejection(*, upside_down=False, update=True, residual=True, fall_back=True):
    """Return the judge of `sequoia` written once more, with one mistake where one is asked for."""

    def judge(families, tokens, draft, target, acceptance):
        if not fall_back:
            draft *= draft > 10 * LAST
        for children, x in by_rank(families, tokens):
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

    return judge


def argmax_accepted(families, tokens, draft, target, acceptance):  # noqa: ARG001
    """Accept a child if the target finds it the likeliest, as at temperature 0."""
    best = target.argmax(1, keepdim=True)
    for children, x in by_rank(families, tokens):
        acceptance[children] = (best[: len(x)] == x).double().squeeze(1)


def target_not_renewed(families, tokens, draft, target, acceptance):  # noqa: ARG001
    """Judge as `target`, but a child that was not accepted may still be the token after it."""
    for children, x in by_rank(families, tokens):
        acceptance[children] = target[: len(x)].gather(1, x).squeeze(1)


def traversal(*, ratio=False, next_law=True):
    """Return the judge of `traversal` with another formula for what is left, or with siblings' laws not renewed."""

    def judge(families, tokens, draft, target, acceptance):
        paths = acceptance[families.parents][:, None]
        for children, x in by_rank(families, tokens):
            p, q, a = target[: len(x)], draft[: len(x)], paths[: len(x)]
            accepted = a * p.gather(1, x) / q.gather(1, x).clamp_min(LEAST)
            acceptance[children] = accepted.clamp(max=1.0).squeeze(1)
            rest = (a * p - q).clamp_min(0.0)
            mass = rest.sum(1, keepdim=True)
            p.copy_(torch.where(mass > 0, rest / mass.clamp_min(LEAST), p))
            a.copy_(mass.clamp(max=1.0) if ratio else mass / (mass + (1 - a)).clamp_min(LEAST))
            if next_law:
                q.scatter_(1, x, 0.0)
                q /= q.sum(1, keepdim=True).clamp_min(LEAST)
        acceptance[families.parents] = paths.squeeze(1)
        acceptance[0] = 1.0

    return judge


SEQUOIA, SPECINFER, TARGET, TRAVERSAL = (RULES[name] for name in ("sequoia", "specinfer", "target", "traversal"))

BROKEN_JUDGES = {
    "sequoia, ratio upside down": replace(SEQUOIA, judge=rejection(upside_down=True)),
    "sequoia, draft law not renewed": replace(SEQUOIA, judge=rejection(update=False)),
    "sequoia, target law not renewed": replace(SEQUOIA, judge=rejection(residual=False)),
    "sequoia, likeliest accepted": replace(SEQUOIA, judge=argmax_accepted),
    "specinfer, draft law renewed": replace(SPECINFER, judge=SEQUOIA.judge),
    "specinfer, likeliest accepted": replace(SPECINFER, judge=argmax_accepted),
    "target, target law not renewed": replace(TARGET, judge=target_not_renewed),
    "target, judged as drawn": replace(TARGET, judge=SEQUOIA.judge),
    "target, likeliest accepted": replace(TARGET, judge=argmax_accepted),
    "traversal, ratio of norms": replace(TRAVERSAL, judge=traversal(ratio=True)),
    "traversal, siblings' law not renewed": replace(TRAVERSAL, judge=traversal(next_law=False)),
    "traversal, selected from the top": replace(TRAVERSAL, selection=TopDown()),
    "traversal, likeliest accepted": replace(TRAVERSAL, judge=argmax_accepted, by_level=False, selection=TopDown()),
}


def likelier_first(orders):
    """Siblings are put in the order of their draft probability after they were drawn."""
    return lambda law, count: [(sorted(drawn, key=lambda x: -law[x]), weight) for drawn, weight in orders(law, count)]


def less_likely_first(orders):
    return lambda law, count: [(sorted(drawn, key=lambda x: law[x]), weight) for drawn, weight in orders(law, count)]


def least_likely_dropped(orders):
    """One child more is drawn, and the least likely is dropped without being tried."""

    def drawn_and_dropped(law, count):
        found = []
        for drawn, weight in orders(law, min(count + 1, len(law))):
            dropped = min(range(len(drawn)), key=lambda i: law[drawn[i]])
            found.append(((*drawn[:dropped], *drawn[dropped + 1 :])[:count], weight))
        return found

    return drawn_and_dropped


BROKEN_ORDERS = {
    f"{rule}, {mistake.__name__.replace('_', ' ')}": (RULES[rule], mistake(ORDERS[rule]))
    for rule in ("sequoia", "specinfer", "traversal")
    for mistake in (likelier_first, less_likely_first, least_likely_dropped)
}


def draw_likelier_first(draw):
    """`likelier_first` as a drawing of the runtime."""

    def drawing(law, wanted, generator=None):
        tokens = draw(law, wanted, generator)
        chance = law[wanted.node, tokens].double()
        return tokens[(2.0 * wanted.node - chance).argsort(stable=True)]

    return drawing


def draw_least_likely_dropped(draw):
    """`least_likely_dropped` as a drawing of the runtime."""

    def drawing(law, wanted, generator=None):
        counts = wanted.node.bincount(minlength=len(law))
        more = places((counts + 1).tolist(), law.device)
        tokens = draw(law, more, generator).split((counts + 1).tolist())
        kept = []
        for row, each in zip(law, tokens, strict=True):
            dropped = int(row[each].argmin())
            kept.append(torch.cat([each[:dropped], each[dropped + 1 :]]))
        return torch.cat(kept)

    return drawing


def draw_likeliest(law, wanted: Places, generator=None):
    return likeliest(law, wanted, generator)


def half_precision_draw(law, wanted, generator=None):
    """Draw with replacement by exponential races whose uniform noise is of float16."""
    keys = [half_precision_keys(law, generator) for _ in range(wanted.most)]
    return torch.stack([each.argmax(1) for each in keys], 1)[wanted.node, wanted.rank]


def half_precision_keys(law, generator):
    speeds = torch.empty(law.shape, dtype=torch.float64)
    half_precision_speeds(speeds, generator)
    return law.double() * speeds


def half_precision_speeds(speeds, generator):
    """Fill what `fill_speeds` fills from uniform noise of float16."""
    uniform = torch.rand(speeds.shape, dtype=torch.float16, generator=generator)
    speeds.copy_(-1 / torch.log1p(-uniform.double()).clamp_max(-LEAST))
