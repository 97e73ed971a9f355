"""What the samples leave open: the predictions of a tree under many plausible tables and curves.

One draw is what the measurements allow to be true.  Acceptance is drawn text by text, so that the error of one depth
goes with that of the next, as it does in measured text; every median time by itself, from the spread of its samples.
The same draws serve every tree, so that trees can be compared within a draw.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.arrays import Float64, Int64
from treeopt.planner.condition import Condition
from treeopt.planner.costs import StepCosts, StepParts, sizes, step_costs
from treeopt.planner.dependence import ChainDependence, Dependence
from treeopt.planner.drafted import Drafted
from treeopt.records.latency import Estimate, Timing
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.proportions import beta_parameters
from treeopt.trees import TokenTree

DRAWS = 1000
SEED = 20240219
NEAR = 0.99
"""Share of the best speed that counts as being as good."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TokenDraws:
    """Draws of an acceptance, and of the tokens that any tree yields: the same under every condition."""

    p: Float64
    """(draws, D, R, B); D is 1 where one row holds for every depth.  Not cut to 0 … 1: cutting would shift the mean."""
    unseen: Float64 | None = None
    """As `p`, without what the texts' deviations tell; None where they tell all that is unknown."""
    dependence: ChainDependence | Dependence | None = None
    """What the table leaves out; with it the texts' errors are those of their replay."""
    text_noise: Float64 | None = None
    """(draws, J): how much of each text's deviation a draw has; None where no texts are known."""
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    """As these draws left it: what is drawn besides goes on from there, and never moves it."""

    def tokens(self, tree: TokenTree) -> Float64:
        """Return (draws,): expected tokens per step, from the target's own token to a whole path.

        They are kept, because conditions have most of their rivals in common.
        """
        if tree not in self._tokens:
            self._tokens[tree] = np.clip(self._drawn(tree), 1.0, 1.0 + tree.max_depth)
        return self._tokens[tree]

    def _drawn(self, tree: TokenTree) -> Float64:
        if self.dependence is not None and self.text_noise is not None and self.dependence.tells(tree):
            relative = self.text_noise @ self.dependence.deviations(tree)
            if self.unseen is not None:
                relative = (
                    relative + _tokens(self._unseen_by_entry, tree) / self.dependence.table.expected_tokens(tree) - 1
                )
            return np.asarray(self.dependence.tokens(tree) * (1 + relative))
        return _tokens(self._by_entry, tree)

    @cached_property
    def _by_entry(self) -> Float64:
        """(D, R, B, draws)."""
        return np.ascontiguousarray(np.moveaxis(self.p, 0, -1))

    @cached_property
    def _unseen_by_entry(self) -> Float64:
        """(D, R, B, draws)."""
        assert self.unseen is not None  # asked for where it is
        return np.ascontiguousarray(np.moveaxis(self.unseen, 0, -1))

    @cached_property
    def _tokens(self) -> dict[TokenTree, Float64]:
        return {}


def _tokens(p_by_entry: Float64, tree: TokenTree) -> Float64:
    """Return (draws,): expected tokens per step under drawn tables, (D, R, B, draws)."""
    depths, ranks, branching, draws = p_by_entry.shape
    reach = np.ones((tree.nodes, draws))
    for depth, level in enumerate(tree.levels[1:], start=1):
        parents, rank = tree.parents[level], tree.rank[level]
        accepted = p_by_entry[min(depth, depths) - 1][
            np.minimum(tree.rank[parents], ranks - 1), np.minimum(rank, branching - 1)
        ]
        reach[level] = reach[parents] * np.where(rank[:, None] < branching, accepted, 0.0)
    return np.asarray(reach.sum(axis=0))


@dataclass(frozen=True, eq=False)
class MixedDraws:
    """Draws of what lies between measured context lengths: those of its neighbours, each draw mixed by itself.

    The texts' noise is the same at every length, as a text that the draft follows well at one it follows well at another.
    """

    parts: "tuple[tuple[float, TokenDraws | MixedDraws], ...]"

    @property
    def generator(self) -> np.random.Generator:
        """As for one of them."""
        return self.parts[0][1].generator

    def tokens(self, tree: TokenTree) -> Float64:
        """Return (draws,): expected tokens per step."""
        return np.asarray(sum(share * part.tokens(tree) for share, part in self.parts))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Draws:
    """Draws of an acceptance and of a condition's curves."""

    acceptance: TokenDraws | MixedDraws
    costs: StepCosts

    def tokens(self, tree: TokenTree) -> Float64:
        """Return (draws,): expected tokens per step."""
        return self.acceptance.tokens(tree)

    def step_s(self, tree: TokenTree) -> Float64:
        """Return (draws,): seconds of a step."""
        return self.costs.tree_s(tree)

    def speedup(self, tree: TokenTree) -> Float64:
        """Return (draws,): tokens per second over those of plain decoding."""
        return self.costs.speedup(self.tokens(tree)[:, None], self.step_s(tree)[:, None])[:, 0]


def near_best(chosen: Float64, fastest: Float64) -> float:
    """Return the share of draws in which the chosen speed is nearly that of the fastest; both (draws,)."""
    return float((chosen >= NEAR * fastest).mean())


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Confidence(ShortRepr):
    """How sure the choice of a tree is."""

    probability: float
    """That its speed is at least 99 % of the best rival's."""
    weakest: str
    """What is least known in this comparison: `acceptance`, `verify`, `draft` or `overhead`."""
    without_weakest: float
    """The probability, were that known exactly."""


def draw_tokens(acceptance: MeasuredAcceptance, dependence: ChainDependence | Dependence | None = None) -> TokenDraws:
    """Return the draws of one acceptance, the same at every call."""
    generator = np.random.default_rng(SEED)
    noise = None if acceptance.texts is None else draw_text_noise(len(acceptance.texts.reached), generator)
    p, unseen = draw_acceptance(acceptance, generator, noise)
    return TokenDraws(p=p, unseen=unseen, dependence=dependence, text_noise=noise, generator=generator)


def condition_draws(
    acceptance: TokenDraws | MixedDraws,
    condition: Condition,
    *,
    rule: str,
    max_nodes: int = 0,
    drafted: Drafted | None = None,
) -> Draws:
    """Return the draws of an acceptance with those of one condition, the same at every call; see `step_costs`."""
    generator = deepcopy(acceptance.generator)
    if drafted is not None:
        reading = partial(draw_medians, generator=generator)
        costs = drafted.costs(condition, reading=reading, weights=same_texts(generator))
        return Draws(acceptance=acceptance, costs=costs)
    costs = step_costs(
        condition,
        rule=rule,
        max_nodes=max_nodes,
        reading=lambda timings: draw_medians(timings, generator),
    )
    return Draws(acceptance=acceptance, costs=costs)


def confidence(draws: Draws, known: Float64, costs: StepCosts, trees: Sequence[TokenTree]) -> Confidence:
    """Return how often the first of some trees is as good as the best of them, and what would make that surer.

    Args:
        draws: the draws.
        known: (trees,), the tokens per step of each as estimated.
        costs: the curves as estimated.
        trees: the chosen one and its rivals.
    """
    probability, without = known_exactly(draws, known, costs, trees)
    weakest = max(without, key=lambda source: without[source])
    return Confidence(probability=probability, weakest=weakest, without_weakest=without[weakest])


def known_exactly(
    draws: Draws, known: Float64, costs: StepCosts, trees: Sequence[TokenTree]
) -> tuple[float, dict[str, float]]:
    """Return how often the first of some trees is nearly the best, and how often it were if one part was known exactly.

    Arguments are those of `confidence`; the parts are `acceptance`, `verify`, `draft` and `overhead`.
    """
    tokens = np.stack([draws.tokens(tree) for tree in trees], axis=-1)
    nodes, widths = sizes(trees)
    drawn, plain_s = draws.costs.parts(nodes, widths), draws.costs.plain_s
    without = {"acceptance": _near_best(known, drawn, plain_s)}
    for source, mixed in _each_known(draws.costs, costs).items():
        without[source] = _near_best(tokens, mixed.parts(nodes, widths), mixed.plain_s)
    return _near_best(tokens, drawn, plain_s), without


def _each_known(drawn: StepCosts, estimated: StepCosts) -> dict[str, StepCosts]:
    """Return drawn curves of which the passes of one kind, or the overhead, are as estimated.

    What a step's overhead grows by with levels and nodes is part of both curves, but not of their passes.
    """
    verify, draft = drawn.verify, drawn.draft
    return {
        "verify": replace(drawn, verify=replace(estimated.verify, more_s=verify.more_s)),
        "draft": replace(drawn, draft=replace(estimated.draft, more_s=draft.more_s)),
        "overhead": replace(
            estimated,
            verify=replace(verify, more_s=estimated.verify.more_s),
            draft=replace(draft, more_s=estimated.draft.more_s),
        ),
    }


def estimate(value: float, draws: Float64) -> Estimate:
    """Return a number with the interval that holds 95 % of its draws, and the number itself."""
    return estimates(np.array([value]), draws[:, None])[0]


def estimates(values: Float64, draws: Float64) -> list[Estimate]:
    """Return an estimate of each number, (numbers,), from its column of the draws, (draws, numbers)."""
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    ends = zip(values.tolist(), np.minimum(values, low).tolist(), np.maximum(values, high).tolist(), strict=True)
    return [Estimate(*each) for each in ends]


def draw_text_noise(texts: int, generator: np.random.Generator) -> Float64:
    """Return (draws, texts): normal noise, how much of each text's deviation a draw has.

    Sums over few texts vary more than their own spread tells; the draws are widened as Student's t distribution is.
    """
    noise = generator.standard_normal((DRAWS, texts))
    wider = np.sqrt((texts - 1) / generator.chisquare(texts - 1, DRAWS))
    return np.asarray(noise * wider[:, None])


def draw_acceptance(
    acceptance: MeasuredAcceptance, generator: np.random.Generator, text_noise: Float64 | None
) -> tuple[Float64, Float64 | None]:
    """Return (draws, D, R, B), each draw the table and a random sum of the texts' deviations from it.

    Texts that agree deviate less than independent positions would: what is missing to their error is drawn from the Beta
    distribution of the latter, and returned by itself too; None where nothing is missing.
    Without texts every entry varies by itself, by its standard error; without errors not at all.
    """
    table, p = acceptance.table, _rows(acceptance)
    if acceptance.texts is not None and text_noise is not None:
        deviations, least = acceptance.texts.deviations(), acceptance.texts.least_error().reshape(p.shape)
        moved = np.tensordot(text_noise, deviations, axes=1).reshape(DRAWS, *p.shape)
        missing = np.sqrt(np.maximum(0.0, 1 - (deviations**2).sum(axis=0).reshape(p.shape) / least**2))
        if not missing.any():
            return np.asarray(p + moved), None
        unseen = p + missing * (_draw_beta(p, least, missing > 0, generator) - p)
        return np.asarray(unseen + moved), np.asarray(unseen)
    if table.standard_error is None:
        return np.broadcast_to(p, (DRAWS, *p.shape)), None
    error = table.standard_error.reshape(p.shape)
    return _draw_beta(p, error, error > 0, generator), None


def _draw_beta(
    p: Float64, error: Float64, wanted: np.ndarray[Any, np.dtype[np.bool_]], generator: np.random.Generator
) -> Float64:
    """Return (draws, *p.shape): the wanted entries drawn from their Beta distributions, the others as they are."""
    drawn = np.broadcast_to(p, (DRAWS, *p.shape)).copy()
    own = generator.spawn(1)[0]  # so that what is drawn after these does not depend on them
    drawn[:, wanted] = own.beta(
        *beta_parameters(p[wanted], error[wanted], p.shape[-1]), size=(DRAWS, int(wanted.sum()))
    )
    return drawn


def draw_medians(timings: tuple[Timing, ...], generator: np.random.Generator) -> Float64:
    """Return (draws, len(timings)): what each median may be, normal with its bootstrap error.

    The variance of the median over all resamples is known in closed form (Maritz and Jarrett, 1978): the i-th of m
    ordered samples is the median of a resample with the probability that a Beta((m + 1) / 2, (m + 1) / 2) variable
    lies between (i - 1) / m and i / m.  Resamples vary less than samples, by the factor (m - 1) / m.
    """
    noise = generator.standard_normal((DRAWS, len(timings)))
    median, error, least = _spread(timings)
    return np.asarray(np.maximum(median + error * noise, least))


def draw_ratios(above: Int64, below: Int64) -> Float64:
    """Return (draws,): a ratio of sums over texts, (J,) each, drawn anew with replacement: one text is alike in itself."""
    weights = text_weights(len(above), np.random.default_rng(SEED))
    return np.asarray((weights @ above) / (weights @ below))


def text_weights(texts: int, generator: np.random.Generator) -> Int64:
    """Return (draws, texts): how often each text counts when so many are drawn anew with replacement."""
    return np.asarray(generator.multinomial(texts, np.full(texts, 1 / texts), DRAWS))


def same_texts(generator: np.random.Generator) -> Callable[[int], Int64]:
    """Return what returns `text_weights` by the number of texts, the same again: texts of several contexts are one another's."""
    return cache(partial(text_weights, generator=generator))


@lru_cache(maxsize=1024)
def _spread(timings: tuple[Timing, ...]) -> tuple[Float64, Float64, Float64]:
    """Return medians, their errors and the least samples; kept, because many conditions have them in common."""
    return (
        np.array([timing.median_s for timing in timings]),
        np.array([_bootstrap_error(np.sort(timing.samples_s)) for timing in timings]),
        np.array([timing.samples_s.min() for timing in timings]),
    )


def _bootstrap_error(ordered: Float64) -> float:
    weight = _median_weights(len(ordered))
    mean = weight @ ordered
    samples = len(ordered)
    return float(np.sqrt(weight @ (ordered - mean) ** 2 * samples / max(1, samples - 1)))


@cache
def _median_weights(count: int) -> Float64:
    """Return (count,): the probability that each of so many ordered samples is the median of a resample."""
    from scipy.special import betainc

    half = (count + 1) / 2
    return np.asarray(np.diff(betainc(half, half, np.arange(count + 1) / count)))


def _rows(acceptance: MeasuredAcceptance) -> Float64:
    """Return the table as (D, R, B)."""
    table = acceptance.table
    return table.rows(table.max_depth or 1)


def _near_best(tokens: Float64, parts: StepParts, plain_s: Float64) -> float:
    """Return the share of draws in which the first tree's speed is nearly the best; tokens (draws or 1, trees)."""
    speedups = tokens * (plain_s / parts.step_s)
    return near_best(speedups[:, 0], speedups.max(axis=1))
