"""Testing a whole tree by a rule: how probable each node is to be accepted when its turn comes."""

import numpy as np
import torch
from torch import Tensor

from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.sample_children import LAST
from treeopt.trees import TokenTree


class DeviceVerifier:
    """Tests with tensors, all sibling groups of a group at once; the host is not asked for a number."""

    def __init__(self, rule: Rule, tree: TokenTree, vocabulary: int, device: torch.device) -> None:
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


class HostVerifier:
    """Tests with loops over the host's memory, which costs less there; otherwise like `DeviceVerifier`."""

    def __init__(self, rule: Rule, tree: TokenTree, vocabulary: int, device: torch.device) -> None:
        self._loop = rule.on_host
        self.parents: list[int] = np.flatnonzero(tree.child_counts).tolist()
        shape = (self.parents, tree.first_child[self.parents], tree.child_counts[self.parents])
        self._nodes = np.stack([np.asarray(each, np.int64) for each in shape], axis=1)
        self.residual = torch.empty(len(self.parents), vocabulary, dtype=torch.float64, device=device)
        self._residual = self.residual.numpy()
        self._compile()

    def _compile(self) -> None:
        """Test nothing, so that the loops are compiled now and not within the first step."""
        nothing = torch.empty(0, dtype=torch.int64)
        parents, self._nodes = self._nodes, self._nodes[:0]
        numbers = torch.ones(1, dtype=torch.float64)
        self(nothing, None, torch.empty(0, self.residual.shape[1]), numbers, numbers[:0])
        self.quantile(torch.ones(1, dtype=torch.float64), 0.0)
        self._nodes = parents

    def __call__(
        self, tokens: Tensor, draft: Tensor | None, target: Tensor, acceptance: Tensor, entries: Tensor
    ) -> None:
        """See `DeviceVerifier`."""
        p = target.contiguous().numpy()
        q = p if draft is None else draft.contiguous().numpy()
        entries.numpy()[:] = p[:, 0]
        self._loop(self._nodes, tokens.numpy(), q, p, self._residual, acceptance.numpy())

    @staticmethod
    def quantile(distribution: Tensor, share: float) -> int:
        """See `DeviceVerifier`."""
        from treeopt.runtime.rules.on_host import quantile

        return quantile(distribution.numpy(), share)


def _load(buffer: Tensor, distributions: Tensor, *, least: float = 0.0) -> None:
    """Copy distributions, adding `least` to each entry, and normalise them."""
    buffer.copy_(distributions)
    buffer += least
    buffer /= buffer.sum(1, keepdim=True)
