"""What was accepted while decoding: by depth and rank, older steps counting for less.

A step visits the nodes of its accepted path.  Of every visited node the children were tried in the order of their rank,
up to the one that was accepted; those behind it nobody looked at.  So what is counted is how often the child of a rank
was tried and how often it was accepted then, and a tree with few children says of the first ranks what one with many
would have said (Kaplan and Meier, 1958: no outcome is taken for a rejection because it was not looked at).
"""

import math
from itertools import chain
from typing import NamedTuple

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.trees import TokenTree


class Outcomes(NamedTuple):
    """How often the child of every rank was tried and accepted, at every depth, both float64 (D, K)."""

    tried: Float64
    accepted: Float64

    @classmethod
    def none(cls, depths: int, ranks: int) -> "Outcomes":
        """Return those of no step."""
        return cls(np.zeros((depths, ranks)), np.zeros((depths, ranks)))

    def plus(self, other: "Outcomes", share: float = 1.0) -> "Outcomes":
        """Return a share of these and all of the others."""
        return Outcomes(share * self.tried + other.tried, share * self.accepted + other.accepted)


class Visits:
    """How often the steps with one tree came to each of its nodes.

    Args:
        tree: the tree.
        depths: D; what lies deeper is not counted.
        ranks: K; ranks from K on are not counted.
    """

    def __init__(self, tree: TokenTree, depths: int, ranks: int) -> None:
        self.tree = tree
        self.paths: list[tuple[int, ...]] = []
        """Nodes that each step came to; whoever decodes adds them."""
        self._shape = 2, depths, ranks
        counted = (tree.depth > 0) & (tree.depth <= depths) & (tree.rank < ranks)
        cells, nodes, signs = [], [], []
        for node in np.flatnonzero(counted).tolist():
            parent, cell = int(tree.parents[node]), (int(tree.depth[node]) - 1) * ranks + int(tree.rank[node])
            earlier = range(int(tree.first_child[parent]), node)  # siblings stand next to one another
            nodes += [parent, *earlier, node]
            signs += [1.0, *[-1.0] * len(earlier), 1.0]
            cells += [*[cell] * (1 + len(earlier)), depths * ranks + cell]
        self._cells, self._nodes, self._signs = np.array(cells, np.int64), np.array(nodes, np.int64), np.array(signs)

    def take(self) -> Outcomes:
        """Return what was counted, and begin anew.

        A child is tried as often as its parent was visited, less the visits of the siblings before it.
        """
        counts = np.bincount(list(chain.from_iterable(self.paths)), minlength=self.tree.nodes)
        self.paths.clear()
        found = np.bincount(self._cells, self._signs * counts[self._nodes], math.prod(self._shape))
        return Outcomes(*found.reshape(self._shape))


class AgedOutcomes:
    """Outcomes of which a step counts half after so many further steps."""

    def __init__(self, half_life_steps: int, depths: int, ranks: int) -> None:
        self._half_life_steps = half_life_steps
        self.outcomes = Outcomes.none(depths, ranks)

    def add(self, found: Outcomes, steps: int) -> None:
        """Count the outcomes of so many steps."""
        self.outcomes = self.outcomes.plus(found, 0.5 ** (steps / self._half_life_steps))


def told_acceptance(found: Outcomes, expected: Float64) -> str:
    """Return in words what was accepted beside what was expected, of first and of later children."""
    told = []
    for name, ranks in (("first children", slice(0, 1)), ("later children", slice(1, None))):
        tried = found.tried[:, ranks]
        if tried.sum() >= 1:
            share, known = (
                found.accepted[:, ranks].sum() / tried.sum(),
                (tried * expected[:, ranks]).sum() / tried.sum(),
            )
            told.append(f"{share:.2f} of {name} in place of {known:.2f}")
    return ", ".join(told)


def outcomes_along(ranks: AcceptedRanks, tree: TokenTree, depths: int, branching: int) -> Outcomes:
    """Return what steps with a tree would have counted in measured texts, had every rank been tried.

    Steps begin where others end, mostly behind a miss, where the draft is worse than elsewhere: a table over all positions
    promises more than is counted while decoding.
    """
    found = Outcomes.none(depths, branching)
    columns = np.arange(branching)
    tokens, text = np.concatenate(ranks.step_tokens(tree)), np.concatenate(ranks.ranks)
    roots = _roots(tokens.tolist(), [len(each) for each in ranks.ranks], tree.max_depth)
    for depth in range(min(tree.max_depth, depths)):
        rank = text[roots[tokens[roots] > depth] + depth]  # of the children of nodes that steps came to
        tried = np.where(rank == REJECTED, branching, rank)
        found.tried[depth] += (columns <= tried[:, None]).sum(axis=0)
        found.accepted[depth] += (columns == rank[:, None]).sum(axis=0)
    return found


def _roots(tokens: list[int], lengths: list[int], most: int) -> Int64:
    """Return where steps begin in texts that stand one behind the other, one step after the other in each.

    Args:
        tokens: of a step that begins at each position.
        lengths: of the texts.
        most: accepted tokens of the longest step: no step begins where it might not fit.
    """
    found, first = [], 0
    for length in lengths:
        position = first
        first += length
        while position < first - most:
            found.append(position)
            position += tokens[position]
    return np.array(found, np.int64)
