"""Exponential averages of conditional acceptance by depth and rank, and of the times of drafting and verification.

A step visits the nodes of its accepted path.  It tries the children of each visited node in rank order, up to the
accepted one.  Later siblings are not tried, so the counts of a rank do not depend on the tree's width (Kaplan and Meier,
1958).
The conditional acceptance h[d, k] is the share of tried children of rank k at depth d that were accepted.
"""

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from treeopt.adaptation.strategy import Strategy
from treeopt.arrays import Float64
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.accepted_ranks import AcceptedRanks, step_starts
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.trees import TokenTree

HALF_LIFE_STEPS = 512
PROFILE_TRIALS, UNMEASURED_TRIALS = 32.0, 6.0
"""Weight of the profile in the shift, in trials; the second if it was measured with another sampling or draft model."""
CELL_TRIALS = 40.0
"""Weight of the shifted profile at one depth and rank, in trials."""
MAX_Z_SCORE = 4.5
"""Deviation of recent steps from the average, in standard errors, above which most earlier counts are discarded."""
RECENT_HALF_LIFE_STEPS, RETAINED = 64, 0.2
"""Half-life of the recent steps, and the fraction of the earlier counts that is kept."""
MIN_SEQUENCES = 4
"""Sequences that count in any case, because too few are known to call one unusual."""
CORRELATION = 2.0
"""Variance of accepted counts relative to the binomial one, because neighbouring tokens are correlated."""
TIMES_HALF_LIFE_STEPS = 64
TIMES_TOLERANCE = math.log(1.15)
"""Smaller deviations of the log draft-to-target ratio are within the error of a profile."""
WARM_UP_STEPS = 48
"""Steps of a strategy before its times count."""
MAX_RELATIVE_STEP = 4.0
"""Longer steps relative to the prediction were interrupted, and are clipped."""
MAX_STRATEGIES = 16
MIN_P = 1e-4
"""Conditional acceptance is clipped to MIN_P … 1 - MIN_P."""


class Outcomes(NamedTuple):
    """Children that were tried and accepted, by depth and rank: float64 (D, K) each."""

    tried: Float64
    accepted: Float64

    @classmethod
    def none(cls, depths: int, ranks: int) -> "Outcomes":
        return cls(np.zeros((depths, ranks)), np.zeros((depths, ranks)))


class Visits:
    """Counts the outcomes of steps with one tree, at up to D depths and K ranks."""

    def __init__(self, tree: TokenTree, depths: int, ranks: int) -> None:
        self.tree = tree
        self.paths: list[tuple[int, ...]] = []
        """The accepted path of every step since the last `take`."""
        self._shape = depths, ranks
        self._nodes = np.flatnonzero((tree.depth > 0) & (tree.depth <= depths) & (tree.rank < ranks))

    def take(self) -> Outcomes:
        """Return the outcomes of the paths, and remove the paths.

        A child is tried as often as its parent was visited, minus the visits of its earlier siblings.
        """
        tree, nodes, outcomes = self.tree, self._nodes, Outcomes.none(*self._shape)
        visits = np.bincount(list(chain.from_iterable(self.paths)), minlength=tree.nodes)
        self.paths.clear()
        earlier, parents = np.cumsum(visits) - visits, tree.parents[nodes]
        tried = visits[parents] - (earlier[nodes] - earlier[tree.first_child[parents]])  # siblings are neighbours
        cells = tree.depth[nodes] - 1, tree.rank[nodes]
        np.add.at(outcomes.tried, cells, tried)
        np.add.at(outcomes.accepted, cells, visits[nodes])
        return outcomes


class _Counts(NamedTuple):
    """Decaying counts, float64 (D, K) each."""

    tried: Float64
    accepted: Float64
    expected: Float64
    """Accepted children that the profile predicts for the tried ones."""

    def add(self, new: "_Counts", keep: float) -> "_Counts":
        """Return the sum of new counts and the fraction `keep` of these."""
        return _Counts(*(keep * old + added for old, added in zip(self, new, strict=True)))


class AcceptanceAverage:
    """Decaying counts of outcomes, next to what the profile predicts for the same trials."""

    def __init__(self, depths: int, ranks: int) -> None:
        self._shape = depths, ranks
        self._start(PROFILE_TRIALS)

    def _start(self, profile_trials: float) -> None:
        self._profile_trials = profile_trials
        self._counts = self._counts_before = _Counts(*np.zeros((3, *self._shape)))
        """The second without the current sequence."""
        self._sequences = 0
        self._deviates = self._deviated_before = False
        """Whether the current sequence deviates from the average, and whether the previous one did."""
        self._excess = self._variance = 0.0
        """Accepted first children minus those that the average predicts, in recent steps, and their variance."""

    @property
    def outcomes(self) -> Outcomes:
        return Outcomes(self._counts.tried, self._counts.accepted)

    def add(self, new: Outcomes, steps: int, profile: Float64) -> None:
        """Add the outcomes of some steps; `profile` (D, K) is their predicted conditional acceptance."""
        keep, counts = 0.5 ** (steps / HALF_LIFE_STEPS), _Counts(*new, expected=new.tried * profile)
        p = apply_shift(profile, self.shift(profile))
        recent = 0.5 ** (steps / RECENT_HALF_LIFE_STEPS)
        self._excess = recent * self._excess + float((new.accepted - new.tried * p)[:, 0].sum())
        self._variance = recent * self._variance + float((new.tried * p * (1 - p))[:, 0].sum())
        if abs(self._excess) > MAX_Z_SCORE * math.sqrt(CORRELATION * self._variance + 1.0):
            keep *= RETAINED
            self._excess = self._variance = 0.0
            self._deviates = True
        self._counts = self._counts.add(counts, keep)

    def end_sequence(self) -> bool:
        """Drop the counts of a sequence that deviates alone, and return whether it did.

        Single sequences may be unlike all others.  If the next one deviates too, acceptance has changed.
        """
        self._sequences += 1
        alone = self._deviates and not self._deviated_before and self._sequences > MIN_SEQUENCES
        if alone:
            self._counts = self._counts_before
            self._excess = self._variance = 0.0
        self._counts_before = self._counts
        self._deviates, self._deviated_before = False, self._deviates
        return alone

    def forget(self) -> None:
        """Start again, with a profile that was measured with another sampling or draft model."""
        self._start(UNMEASURED_TRIALS)

    def shift(self, profile: Float64) -> Float64:
        """Return (D, K): the shift of the log odds of the profile's conditional acceptance.

        All depths share one shift for the first rank and one for later ranks, because a worse draft is worse at every
        depth; so depths and ranks that the tree does not try are shifted too.  Each depth and rank then adds its own
        outcomes.
        """
        tried, accepted, predicted = self._counts
        expected = np.where(tried > 0, predicted / np.maximum(tried, MIN_P), profile)
        shifts = np.zeros_like(profile)
        for ranks in (slice(0, 1), slice(1, None)):
            if (trials := float(tried[:, ranks].sum())) > 0:
                p = float(predicted[:, ranks].sum()) / trials
                average = (float(accepted[:, ranks].sum()) + self._profile_trials * p) / (trials + self._profile_trials)
                shifts[:, ranks] = log_odds(np.array(average)) - log_odds(np.array(p))
        cells = (accepted + CELL_TRIALS * apply_shift(expected, shifts)) / (tried + CELL_TRIALS)
        return np.asarray(log_odds(cells) - log_odds(expected))

    def describe(self) -> str:
        """Return the measured and the predicted acceptance of first and later children, in words."""
        parts = []
        for name, ranks in (("first", slice(0, 1)), ("later", slice(1, None))):
            trials, measured, predicted = (float(counts[:, ranks].sum()) for counts in self._counts)
            if trials >= 1:
                parts.append(
                    f"{measured / trials:.2f} of {name} children accepted, {predicted / trials:.2f} in the profile"
                )
        return "; ".join(parts) or "no drafts counted yet"


class TimeRatio:
    """Exponential average of measured seconds over predicted seconds."""

    def __init__(self) -> None:
        self._measured = self._predicted = 0.0

    def add(self, measured: float, predicted: float, steps: int) -> None:
        keep = 0.5 ** (steps / TIMES_HALF_LIFE_STEPS)
        self._measured, self._predicted = keep * self._measured + measured, keep * self._predicted + predicted

    @property
    def log(self) -> float:
        """Logarithm of the ratio; 0 if nothing was measured or predicted."""
        return math.log(self._measured / self._predicted) if min(self._measured, self._predicted) > 0 else 0.0


class RelativeTimes:
    """Logarithms of measured over predicted seconds: what all strategies share, and the offset of each one.

    A strategy without an offset takes that of the one whose predicted step takes the most similar time.
    """

    def __init__(self) -> None:
        self.shared = 0.0
        self._offsets: dict[Strategy, tuple[float, float]] = {}
        """(log predicted seconds, offset) of the latest strategies, the last one used last."""

    def add(self, strategy: Strategy, step_s: float, ratio: float) -> None:
        """Add the ratio of a strategy whose step is predicted to take `step_s`.

        What changes while a strategy is used is shared.  Of what has changed since its last use, half is; offsets that
        were measured meanwhile contain it, and become smaller by as much, down to 0.
        """
        used = list(self._offsets)
        offset = self._offsets.pop(strategy, (0.0, 0.0))[1]
        change = ratio - self.shared - offset
        if not used or strategy == used[-1]:
            self.shared += change
        elif strategy not in used:
            offset = change
        else:
            self.shared += change / 2
            offset += change / 2
            for other in used[used.index(strategy) + 1 :]:
                log_s, known = self._offsets[other]
                self._offsets[other] = log_s, known - float(np.clip(change / 2, min(known, 0.0), max(known, 0.0)))
        self._offsets[strategy] = math.log(step_s), offset
        while len(self._offsets) > MAX_STRATEGIES:
            self._offsets.pop(next(iter(self._offsets)))

    def __contains__(self, strategy: Strategy) -> bool:
        return strategy in self._offsets

    def offset(self, strategy: Strategy, step_s: float) -> float:
        if strategy in self._offsets:
            return self._offsets[strategy][1]
        log_s = math.log(step_s)
        return min(self._offsets.values(), key=lambda known: abs(known[0] - log_s), default=(0.0, 0.0))[1]


class StepTimes:
    """Times of drafting and verification, relative to the profile and to the other strategies.

    Only ratios count: if the whole machine slows down, the choice does not change.
    """

    def __init__(self) -> None:
        self._draft, self._target = TimeRatio(), TimeRatio()
        self._strategy: Strategy | None = None
        self._steps = 0
        self._drafts, self._targets = RelativeTimes(), RelativeTimes()
        """Of drafting, relative to the machine, and of verification, whose shared ratio is the machine's."""
        self.drafting = 1.0
        """Draft-to-target time ratio over the profile's in the latest steps that drafted; 1 within the tolerance."""

    def add(self, strategy: Strategy, steps: Sequence[StepSeconds], draft_s: float, target_s: float) -> None:
        """Add steps with one strategy; `draft_s` and `target_s` are the profile's seconds of one step."""
        count = len(steps)
        if strategy != self._strategy:
            self._strategy, self._steps = strategy, 0
            self._draft, self._target = TimeRatio(), TimeRatio()
        draft = sum(min(step.draft, MAX_RELATIVE_STEP * draft_s) for step in steps)
        target = sum(min(step.verify + step.accept, MAX_RELATIVE_STEP * target_s) for step in steps)
        self._draft.add(draft, count * draft_s, count)
        self._target.add(target, count * target_s, count)
        self._steps += count
        if self._steps < WARM_UP_STEPS:
            return
        self._targets.add(strategy, draft_s + target_s, self._target.log)
        if draft_s > 0:
            self._drafts.add(strategy, draft_s + target_s, self._draft.log - self._targets.shared)
            self.drafting = math.exp(_tolerate(self._draft.log - self._target.log))

    def step_s(self, strategy: Strategy, draft_s: float, target_s: float) -> float:
        """Return the seconds of a step relative to the machine, given the profile's seconds of its parts."""
        whole_s = draft_s + target_s
        drafting = self._drafts.shared + self._drafts.offset(strategy, whole_s)
        if strategy not in self._drafts:
            drafting = _tolerate(drafting)
        return draft_s * math.exp(drafting) + target_s * math.exp(self._targets.offset(strategy, whole_s))


def _tolerate(log_ratio: float) -> float:
    """Return a log ratio without what may be the error of a profile."""
    return log_ratio - max(-TIMES_TOLERANCE, min(TIMES_TOLERANCE, log_ratio))


def conditional(rows: Float64) -> Float64:
    """Return the conditional acceptance of rows of an acceptance table, (…, K).

    >>> conditional(np.array([0.5, 0.25, 0.25])).round(4).tolist()
    [0.5, 0.5, 0.9999]
    """
    before = np.cumsum(rows, axis=-1) - rows
    return np.asarray(np.clip(rows / np.maximum(1 - before, MIN_P), MIN_P, 1 - MIN_P))


def joint(h: Float64) -> Float64:
    """Return rows of an acceptance table from conditional acceptance, (…, K).

    >>> joint(np.array([0.5, 0.5, 0.5])).tolist()
    [0.5, 0.25, 0.125]
    """
    rejected = np.cumprod(1 - h, axis=-1)
    return np.asarray(h * np.concatenate([np.ones_like(h[..., :1]), rejected[..., :-1]], axis=-1))


def log_odds(p: Float64) -> Float64:
    p = np.clip(p, MIN_P, 1 - MIN_P)
    return np.asarray(np.log(p / (1 - p)))


def apply_shift(p: Float64, shift: Float64) -> Float64:
    """Return probabilities whose log odds are shifted."""
    return np.asarray(np.clip(1 / (1 + np.exp(-log_odds(p) - shift)), MIN_P, 1 - MIN_P))


def replay_outcomes(ranks: AcceptedRanks, tree: TokenTree, depths: int, branching: int) -> Outcomes:
    """Return the outcomes of steps with a tree along measured sequences, as if every rank had been tried.

    Steps begin where others end, mostly after a rejection, where the draft is worse than at an average position.
    """
    outcomes = Outcomes.none(depths, branching)
    columns = np.arange(branching)
    for accepted, tokens in zip(ranks.ranks, ranks.step_tokens(tree), strict=True):
        starts = step_starts(tokens, tree.max_depth)
        for depth in range(min(tree.max_depth, depths)):
            rank = accepted[starts[tokens[starts] > depth] + depth]
            outcomes.tried[depth] += (columns <= np.where(rank == REJECTED, branching, rank)[:, None]).sum(axis=0)
            outcomes.accepted[depth] += (columns == rank[:, None]).sum(axis=0)
    return outcomes
