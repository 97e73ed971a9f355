"""What a draft's probabilities are worth, and where expanding a tree best first should end.

A draft that gives a path the probability q is not accepted along it with probability q.  How often it is can be read off
recorded texts: the share of paths of about this probability that the text went along, made monotone.  From it follows
the log-probability below which one more node costs more than it brings.

A step with n nodes yields F tokens in T seconds; over many steps, sum F / sum T is to be as large as it can be.  With
s = sum T / sum F, the seconds per token, of the best way to choose nodes, that same way makes s F - T largest in every
step by itself (Dinkelbach, 1967).  A node that is accepted with probability p adds p to F, and d seconds to T, so

    it pays where   p s > d,    d = (verify_s[budget] - verify_s[1]) / (budget - 1) + draft_s[batch] / batch

The first term is what a node costs the target, the slope of the secant over the sizes that a step may choose from.  The
second is its share of a full draft pass, because a node that is kept is also fed.  Since p rises with q, this is a
threshold for q, above which every node stands with all its ancestors; and since F and T are linear in the nodes taken,
s is the least T / F of all thresholds.
"""

from dataclasses import dataclass

import numpy as np

from treeopt.arrays import Bool, Float64, Int64
from treeopt.planner.costs import StepCosts
from treeopt.planner.model import StepModel
from treeopt.records.draft_record import DraftRecord
from treeopt.trees.own_trees import SpecExecSetting

BIN = 0.1
"""Width of a bin of log-probability."""
FLAT = 1.5
"""A pass is flat up to the last size whose double costs at most so many times as much."""
PASSES = (4, 8, 16)
"""Most draft passes of the settings that are proposed."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """How often texts go along a path, by its probability under the draft; one entry per bin, rising.

    A record holds only some of the unlikely paths, so that `nodes` is too small far down.
    """

    log_probs: Float64
    """float64 (m,): mean log-probability, by the draft, of the bin's paths."""
    probabilities: Float64
    """float64 (m,): share that the text went along, made monotone."""
    nodes: Float64
    """float64 (m,): the bin's paths per root."""

    def probability(self, log_prob: Float64 | float) -> Float64:
        """Return the probability that a text goes along paths of these log-probabilities, in the shape given.

        Straight between the bins' means, and beyond the outermost as at them.
        """
        return np.asarray(np.interp(log_prob, self.log_probs, self.probabilities))

    def log_prob_above(self, probability: float) -> float:
        """Return the log-probability from which on texts go along paths with more than this probability.

        It is 0 where no path is that sure, and the lowest recorded where all are: of less nothing is known.
        """
        above = self.probabilities > probability
        if not above.any():
            return 0.0
        first = int(above.argmax())
        if first == 0:
            return float(self.log_probs[0])
        between = slice(first - 1, first + 1)
        return float(np.interp(probability, self.probabilities[between], self.log_probs[between]))


def calibration(record: DraftRecord) -> Calibration:
    """Return the calibration of a record's draft at the temperature of its texts.

    Every scored path below every root counts once; shares are made monotone by isotonic regression with the paths'
    number as weight (Barlow et al., 1972).
    """
    from scipy.optimize import isotonic_regression

    scores, taken = _paths(record)
    _, place, count = np.unique(np.ceil(scores / BIN), return_inverse=True, return_counts=True)
    share = np.bincount(place, weights=taken) / count
    return Calibration(
        log_probs=np.bincount(place, weights=scores) / count,
        probabilities=isotonic_regression(share, weights=count.astype(np.float64)).x,
        nodes=count / record.roots,
    )


def least_log_prob(calibrated: Calibration, costs: StepCosts, *, budget: int, batch: int) -> float:
    """Return the log-probability of a path below which a further node no longer pays; the module says why.

    Args:
        calibrated: of the draft, on texts at the temperature in question.
        costs: seconds of passes.
        budget: most nodes of a step, root included.
        batch: nodes of a full draft pass.
    """
    node_s = (costs.verify_s[budget] - costs.verify_s[1]) / (budget - 1) + costs.draft_s[batch] / batch
    root_s = costs.verify_s[1] + costs.draft_s[1] + costs.overhead_s
    nodes = np.cumsum(np.append(0.0, calibrated.nodes[::-1]))
    tokens = 1 + np.cumsum(np.append(0.0, (calibrated.nodes * calibrated.probabilities)[::-1]))
    within = nodes <= budget - 1
    token_s = ((root_s + node_s * nodes) / tokens)[within].min()
    return calibrated.log_prob_above(float(node_s / token_s))


def specexec_settings(model: StepModel, calibrated: Calibration) -> tuple[SpecExecSetting, ...]:
    """Return settings worth trying on a machine: its flat budgets, with the threshold that pays at each.

    Budgets double from 2 to where verification bends, a draft pass is as wide as is flat, and every budget stands with
    few and with many passes.  Which is fastest, decoding with each tells: how deep trees grow depends on the text.

    Args:
        model: the condition whose curves count.
        calibrated: of the draft, on texts at the condition's temperature.
    """
    costs, children = model.costs, model.acceptance.table.branching
    widest = int(_flat(costs.draft_s)[-1])
    settings = []
    for budget in _flat(costs.verify_s)[1:].tolist():
        batch = min(widest, budget - 1)
        least = least_log_prob(calibrated, costs, budget=budget, batch=batch)
        settings += [
            SpecExecSetting(
                budget=budget,
                branching=min(children, budget - 1),
                batch=batch,
                max_passes=min(passes, budget - 1),
                least_log_prob=least,
            )
            for passes in PASSES
        ]
    return tuple(dict.fromkeys(settings))


def _flat(seconds: Float64) -> Int64:
    """Return the doublings 1, 2, 4, … up to the last whose pass is flat, two of them at least where two were measured.

    Args:
        seconds: (N + 1,) of passes over 0 … N tokens.
    """
    counts = 2 ** np.arange(int(np.log2(len(seconds) - 1)) + 1)
    flat = np.flatnonzero(seconds[counts[1:]] <= FLAT * seconds[counts[:-1]])
    return counts[: 2 + int(flat[-1] if len(flat) else 0)]


def _paths(record: DraftRecord) -> tuple[Float64, Bool]:
    """Return (paths,): log-probability of every path that was scored, and whether the text went along it."""
    roots = np.repeat(np.arange(record.roots), np.diff(record.node_starts))
    above = record.node_starts[roots] + record.parent
    depth = np.where(record.parent < 0, 0, -1)
    scores = np.zeros(len(depth))
    along = depth == 0
    for level in range(1, record.depth):
        nodes = np.flatnonzero((depth < 0) & (depth[above] == level - 1))
        parent, rank = above[nodes], record.rank[nodes]
        depth[nodes] = level
        scores[nodes] = scores[parent] + record.log_probs[parent, rank]
        along[nodes] = along[parent] & (rank == record.outcome[roots[nodes], level - 1])
    reached = depth >= 0
    followed = record.outcome[roots[reached], depth[reached]]
    taken = along[reached, None] & (followed[:, None] == np.arange(record.top_k))
    paths = scores[reached, None] + record.log_probs[reached]
    possible = np.isfinite(paths)
    return paths[possible], taken[possible]
