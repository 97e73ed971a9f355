"""Testing a whole tree by a rule: how probable each node is to be accepted when its turn comes."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int64
from treeopt.runtime.models.finite import all_finite
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.sample_children import LAST
from treeopt.runtime.rules.selection import Walk
from treeopt.trees import TokenTree


class End(NamedTuple):
    """Where an accepted path ends."""

    node: int
    """Its last."""
    token: int
    """The one sampled after it."""
    finite: bool
    """Whether the target's distributions that these hang on are finite."""


class DeviceVerifier:
    """Tests with tensors, all sibling groups of a group at once; the host asks for numbers once a path, and for a token."""

    def __init__(self, rule: Rule, tree: TokenTree, vocabulary: int, device: torch.device, texts: int = 1) -> None:
        assert texts == 1  # several are tested in turn
        self._rule = rule
        self._walk = Walk(tree)
        self._groups = rule.groups(tree, device)
        parents: list[int] = [parent for group in self._groups for parent in group.parents.tolist()]
        self.rows = {parent: row for row, parent in enumerate(parents)}
        """Of each node with children, its row in `residual`."""
        self._nodes = torch.tensor(parents, dtype=torch.int64, device=device)
        self._draft, self.residual = torch.empty(2, len(parents), vocabulary, dtype=torch.float64, device=device)
        """`residual`, float64 (m, V): up to a factor, the distribution of the token after a path that ends at each parent."""

    def __call__(self, tokens: Tensor, draft: Tensor | None, target: Tensor, acceptance: Tensor) -> None:
        """Write acceptance, float64 (n,), which is 1 at the root; distributions are float (n, V)."""
        acceptance.fill_(1.0)
        _load(self.residual, target[self._nodes])
        if draft is not None:
            _load(self._draft, draft[self._nodes], least=LAST)
        row = 0
        for group in self._groups:
            rows = slice(row, row + len(group.parents))
            self._rule.accept_test(group, tokens, self._draft[rows], self.residual[rows], acceptance)
            row = rows.stop

    def ends(self, target: Tensor, acceptance: Tensor, noise: Tensor) -> list[End]:
        """Return where the path of what was tested last ends, of each text.

        Args:
            target: float (n, V), see above.
            acceptance: float64 (n,), as it was written.
            noise: float64 (texts, n + 1), uniform on [0, 1): a number per node, and one for the token after the path.
        """
        # the target's first entry after a node is finite where all of them are
        numbers = torch.cat([acceptance, noise[0], target[:, 0].double()]).tolist()  # a device is waited for once
        nodes = len(acceptance)
        accepted, uniform, entries = numbers[:nodes], numbers[nodes : 2 * nodes + 1], numbers[2 * nodes + 1 :]
        node = self._rule.selection.last_node(self._walk, accepted, uniform)
        finite = all_finite(entries if self._rule.by_level else [entries[each] for each in self._walk.path(node)])
        return [End(node, self.token_after(target, node, uniform[-1]), finite)]

    def token_after(self, target: Tensor, node: int, share: float) -> int:
        """Return the token after a path that ends at a node, by a number that is uniform on [0, 1)."""
        row, whole = self.rows.get(node), target[node].double()
        token = self.quantile(whole if row is None else self.residual[row], share)
        if token == len(whole):
            # nothing is left: draft and target are alike, and rounding rejected all the same
            token = min(self.quantile(whole, share), len(whole) - 1)
        return token

    @staticmethod
    def quantile(distribution: Tensor, share: float) -> int:
        """Return the first token up to which more than a share of float64 (V,) lies; see `on_host.quantile`."""
        cumulative = distribution.cumsum(0)
        whole = cumulative[-1]
        last = torch.where(whole > 0, (cumulative < whole).sum(), len(cumulative))
        return int(torch.minimum((cumulative <= share * whole).sum(), last))


class HostVerifier:
    """Tests with loops over the host's memory, which costs less there; otherwise like `DeviceVerifier`.

    Args:
        rule: the rule.
        tree: the tree.
        vocabulary: V.
        device: the host.
        texts: most that are tested at once, each with a tree of its own; their rows follow one after the other.
    """

    def __init__(self, rule: Rule, tree: TokenTree, vocabulary: int, device: torch.device, texts: int = 1) -> None:
        from treeopt.runtime.rules.ends_on_host import tokens_after  # numba is slow to import

        self._test, self._select, self._tokens_after = rule.on_host, rule.last_nodes_on_host, tokens_after
        self._by_level = rule.by_level
        self._tree_nodes, self._vocabulary = tree.nodes, vocabulary
        internal = np.flatnonzero(tree.child_counts)
        of_a_text = np.stack([internal, tree.first_child[internal], tree.child_counts[internal]], axis=1)
        firsts = tree.nodes * np.arange(texts)
        self._nodes = (of_a_text + np.multiply.outer(firsts, [1, 1, 0])[:, None]).reshape(-1, 3)
        self._per_text = len(internal)
        self.rows = {int(node): row for row, node in enumerate(internal)}
        columns = [tree.parents, tree.first_child, tree.child_counts, Walk(tree).leaves_first, tree.depth]
        rows = [self.rows.get(node, -1) for node in range(tree.nodes)]
        self._walk = np.array([*columns, rows], np.int64).T.copy()
        self.residual = torch.empty(len(self._nodes), vocabulary, dtype=torch.float64, device=device)
        self._residual = self.residual.numpy()
        self._residual_by_text = self._residual.reshape(texts, self._per_text, vocabulary)
        self._ends = np.empty((texts, 3), np.int64)
        self._compile()

    def _compile(self) -> None:
        """Test nothing, so that the loops are compiled now and not within the first step."""
        nothing, numbers = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
        target = torch.empty(0, self.residual.shape[1])
        self(nothing, None, target, numbers)
        self.ends(target, numbers, torch.empty(0, self._tree_nodes + 1, dtype=torch.float64))

    def __call__(self, tokens: Tensor, draft: Tensor | None, target: Tensor, acceptance: Tensor) -> None:
        """See `DeviceVerifier`; rows may be those of fewer texts."""
        p = target.contiguous().numpy()
        q = p if draft is None else draft.contiguous().numpy()
        found = acceptance.numpy()
        found[:] = 1.0
        if self._per_text:
            nodes = self._nodes[: self._per_text * (len(found) // self._tree_nodes)]
            self._test(nodes, tokens.numpy(), q, p, self._residual, found)
            found[:: self._tree_nodes] = 1.0  # by rounding only is it anything else: the empty path is always accepted

    def ends(self, target: Tensor, acceptance: Tensor, noise: Tensor) -> list[End]:
        """See `DeviceVerifier`; of as many texts as there are rows of noise."""
        shape, uniform = (noise.shape[0], self._tree_nodes), noise.numpy()
        ends: Int64 = self._ends[: noise.shape[0]]
        self._select(self._walk, acceptance.numpy().reshape(shape), uniform, ends)
        probs = target.contiguous().numpy().reshape(*shape, self._vocabulary)
        self._tokens_after(self._walk, probs, self._residual_by_text, uniform, self._by_level, ends)
        return [End(node, token, finite == 1) for node, token, finite in ends.tolist()]

    def token_after(self, target: Tensor, node: int, share: float) -> int:
        from treeopt.runtime.rules.ends_on_host import token_after

        row, whole = self.rows.get(node), target[node].double().numpy()
        return token_after(whole, whole if row is None else self._residual[row], share)

    @staticmethod
    def quantile(distribution: Tensor, share: float) -> int:
        from treeopt.runtime.rules.on_host import quantile

        return quantile(distribution.numpy(), share)


def _load(buffer: Tensor, distributions: Tensor, *, least: float = 0.0) -> None:
    """Copy distributions, adding `least` to each entry, and normalise them."""
    buffer.copy_(distributions)
    buffer += least
    buffer /= buffer.sum(1, keepdim=True)
