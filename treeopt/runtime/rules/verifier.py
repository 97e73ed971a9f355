"""Testing a whole tree by a rule: how probable each node is to be accepted when its turn comes."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.sample_children import LAST
from treeopt.trees import TokenTree


class DeviceVerifier:
    """Tests with tensors, all sibling groups of a group at once; the host is not asked for a number."""

    def __init__(self, rule: Rule, tree: TokenTree, vocabulary: int, device: torch.device, texts: int = 1) -> None:
        assert texts == 1  # several are tested in turn
        self._rule = rule
        self._groups = rule.groups(tree, device)
        self.parents: list[int] = [parent for group in self._groups for parent in group.parents.tolist()]
        """The nodes with children, in the order of the rows of `residual`."""
        self._nodes = torch.tensor(self.parents, dtype=torch.int64, device=device)
        self._draft, self.residual = torch.empty(2, len(self.parents), vocabulary, dtype=torch.float64, device=device)
        """`residual`, float64 (m, V): up to a factor, the distribution of the token after a path that ends at each parent."""

    def __call__(
        self, tokens: Tensor, draft: Tensor | None, target: Tensor, acceptance: Tensor, entries: Tensor
    ) -> None:
        """Write acceptance, float64 (n,), which is 1 at the root; distributions are float (n, V).

        The target's first entry after each node goes to `entries`, float64 (n,): it is finite where all of them are.
        """
        entries.copy_(target[:, 0])
        _load(self.residual, target[self._nodes])
        if draft is not None:
            _load(self._draft, draft[self._nodes], least=LAST)
        row = 0
        for group in self._groups:
            rows = slice(row, row + len(group.parents))
            self._rule.accept_test(group, tokens, self._draft[rows], self.residual[rows], acceptance)
            row = rows.stop

    @staticmethod
    def quantile(distribution: Tensor, share: float) -> int:
        """Return the first token up to which more than a share of float64 (V,) lies; V if there is none."""
        cumulative = distribution.cumsum(0)
        return int((cumulative <= share * cumulative[-1]).sum())

    def quantiles(
        self, target: Tensor, nodes: Sequence[int], rows: Sequence[int], shares: Sequence[float]
    ) -> list[int]:
        """Return the token after each of some paths, V where nothing is left.

        Args:
            target: float (n, V), the target's distributions.
            nodes: the last node of each path.
            rows: its row in `residual`; -1 for a leaf, after which the target's distribution stands.
            shares: see `quantile`.
        """
        places = zip(nodes, rows, shares, strict=True)
        return [
            self.quantile(target[node].double() if row < 0 else self.residual[row], share)
            for node, row, share in places
        ]


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
        self._loop = rule.on_host
        self._tree_nodes = tree.nodes
        internal = np.flatnonzero(tree.child_counts)
        of_a_text = np.stack([internal, tree.first_child[internal], tree.child_counts[internal]], axis=1)
        firsts = tree.nodes * np.arange(texts)
        self._nodes = (of_a_text + np.multiply.outer(firsts, [1, 1, 0])[:, None]).reshape(-1, 3)
        self._per_text = len(internal)
        self.parents: list[int] = self._nodes[:, 0].tolist()
        self.residual = torch.empty(len(self.parents), vocabulary, dtype=torch.float64, device=device)
        self._residual = self.residual.numpy()
        self._compile()

    def _compile(self) -> None:
        """Test nothing, so that the loops are compiled now and not within the first step."""
        nothing, numbers = torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.float64)
        target = torch.empty(0, self.residual.shape[1])
        self(nothing, None, target, numbers, numbers)
        self.quantiles(target, [], [], [])
        for distribution in (numbers, target.flatten()):
            self.quantile(distribution, 0.0)

    def __call__(
        self, tokens: Tensor, draft: Tensor | None, target: Tensor, acceptance: Tensor, entries: Tensor
    ) -> None:
        """See `DeviceVerifier`; rows may be those of fewer texts."""
        p = target.contiguous().numpy()
        q = p if draft is None else draft.contiguous().numpy()
        entries.numpy()[:] = p[:, 0]
        found = acceptance.numpy()
        if self._per_text:
            nodes = self._nodes[: self._per_text * (len(found) // self._tree_nodes)]
            self._loop(nodes, tokens.numpy(), q, p, self._residual, found)
            found[:: self._tree_nodes] = 1.0  # by rounding only is it anything else: the empty path is always accepted

    @staticmethod
    def quantile(distribution: Tensor, share: float) -> int:
        """See `DeviceVerifier`."""
        from treeopt.runtime.rules.on_host import quantile

        return quantile(distribution.numpy(), share)

    def quantiles(
        self, target: Tensor, nodes: Sequence[int], rows: Sequence[int], shares: Sequence[float]
    ) -> list[int]:
        """See `DeviceVerifier`."""
        from treeopt.runtime.rules.on_host import quantiles

        if len(nodes) == 1:  # and then arrays cost more than they spare
            (node,), (row,), (share,) = nodes, rows, shares
            return [self.quantile(target[node] if row < 0 else self.residual[row], share)]
        places = np.array([rows, nodes, nodes], np.int64)  # the last is written over
        quantiles(self._residual, places[0], target.contiguous().numpy(), places[1], np.array(shares), places[2])
        found: list[int] = places[2].tolist()
        return found


def _load(buffer: Tensor, distributions: Tensor, *, least: float = 0.0) -> None:
    """Copy distributions, adding `least` to each entry, and normalise them."""
    buffer.copy_(distributions)
    buffer += least
    buffer /= buffer.sum(1, keepdim=True)
