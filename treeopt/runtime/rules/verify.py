"""Verification: the drafted tokens that a step accepts, as functions of distributions and random numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from treeopt.arguments import check_instance
from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError
from treeopt.runtime.models.finite import all_finite
from treeopt.runtime.models.model import concatenate
from treeopt.runtime.rules import Rule, get_rule
from treeopt.runtime.rules.distributions import EPSILON, inverse_cdf, uniform
from treeopt.runtime.rules.layout import HostTree, batch_layout
from treeopt.runtime.rules.sample_children import check_counts, check_finite, index_children, to_tensor
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """The accepted path of a draft and its bonus token."""

    nodes: tuple[int, ...]
    """Accepted nodes from the root down; the first is 0, the root."""
    bonus: int
    """The token after the last accepted node."""
    finite: bool = True
    """Whether the target's distributions that decided it are finite; otherwise path and bonus token are meaningless."""

    @property
    def path(self) -> Tensor:
        """int64 (m,): the accepted nodes."""
        return torch.tensor(self.nodes)


def draw(rule: str, draft_probs: Tensor, counts: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Sample the children of m nodes as a verification rule requires.

    Args:
        rule: `sequoia` and `traversal` sample without replacement; children beyond the tokens of the distribution are
            sampled uniformly from untried tokens (Chen et al., 2024, Algorithm 2).  `specinfer` samples with
            replacement.  `target` and `typical` take the most likely tokens.
        draft_probs: float (m, V), the draft's distribution after each node.
        counts: int64 (m,), number of children of each node.
        generator: of the random numbers; the same state gives the same children.

    Returns int64 (sum(counts),): tokens node after node, in the order sampled, which is their rank.
    Raises InvalidValueError for an unknown rule, more children than tokens or fewer than none, or probabilities that are not
    finite.
    """
    sample = get_rule(rule, lossy=True).draw
    draft_probs, counts = to_tensor("draft_probs", draft_probs), to_tensor("counts", counts, whole=True)
    check_counts(draft_probs, counts)
    check_finite("draft_probs", draft_probs[counts > 0])
    if len(counts) == 0 or int(counts.max()) == 0:
        return torch.empty(0, dtype=torch.int64, device=draft_probs.device)
    return sample(draft_probs.detach()[None], index_children(counts.tolist(), draft_probs.device), [generator])[0]


def verify(
    rule: str,
    tree: TokenTree,
    tokens: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    generator: torch.Generator | None = None,
    *,
    lossy: bool = False,
) -> Verdict:
    """Accept a path of a drafted tree; unless the rule is lossy, the tokens follow the target's distribution exactly.

    Args:
        rule: the rule whose `treeopt.runtime.draw` sampled the tokens.
        tree: the tree of n nodes.
        tokens: int64 (n,), the root's token and the drafted ones.
        draft_probs: float (n, V), the draft's distribution after each node; rows of leaves are not read.
        target_probs: float (n, V), the target's distribution after each node.
        generator: of the random numbers.
        lossy: allow rules that change the output's distribution.

    Raises InvalidValueError for an unknown rule, a lossy one unless allowed, shapes that do not fit the tree, drafted
    tokens outside the vocabulary, probabilities that are not finite, or rows of the target that are no distribution.
    """
    verification_rule = get_rule(rule, lossy=lossy)
    check_instance("tree", tree, TokenTree, "make one with treeopt.TokenTree(parents)")
    draft_probs, target_probs = to_tensor("draft_probs", draft_probs), to_tensor("target_probs", target_probs)
    tokens = to_tensor("tokens", tokens, whole=True)
    for name, probs in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        if probs.ndim != 2 or len(probs) != tree.nodes or probs.shape != target_probs.shape:
            raise InvalidValueError(f"{name}: expected ({tree.nodes}, V), a row per node. Got {tuple(probs.shape)}.")
    if tokens.shape != (tree.nodes,):
        raise InvalidValueError(f"tokens: expected ({tree.nodes},), one per node. Got {tuple(tokens.shape)}.")
    drafted, last = tokens[1:], target_probs.shape[1] - 1
    if bool(((drafted < 0) | (drafted > last)).any()):  # numba would read other memory
        raise InvalidValueError(f"tokens: expected drafted tokens from 0 to {last}. Got {drafted.tolist()!s:.60}.")
    check_finite("target_probs", target_probs)
    if not bool((target_probs >= 0).all() & (target_probs.sum(1) > 0).all()):
        raise InvalidValueError(
            "target_probs: expected probabilities of at least 0, with one above 0 in every row. Got others."
        )
    check_finite("draft_probs", draft_probs[torch.from_numpy(tree.child_counts > 0).to(draft_probs.device)])
    verifier = Verifier(verification_rule, target_probs.shape[1], target_probs.device)
    verifier.test([tree], tokens, draft_probs.detach().double(), target_probs.detach().double())
    return verifier.verdict(generator)


def verify_greedy(children: Sequence[range], tokens: Sequence[int], target_tokens: Sequence[int]) -> Verdict:
    """Accept the path along the target's most likely tokens; at temperature 0 all rules agree on it.

    Args:
        children: node indices of each node's children.
        tokens: the root's token and the drafted ones.
        target_tokens: the target's most likely token after each node.
    """
    return follow_tokens(children, tokens, target_tokens.__getitem__)


def follow_tokens(children: Sequence[range], tokens: Sequence[int], token_after: Callable[[int], int]) -> Verdict:
    """Accept the path along the target's tokens; arguments as for `verify_greedy`.

    `token_after` returns the target's token after a node, and is called for the nodes of the path only.
    """
    path = [0]
    while True:
        target_token = token_after(path[-1])
        for child in children[path[-1]]:
            if tokens[child] == target_token:
                path.append(child)
                break
        else:
            return Verdict(tuple(path), target_token)


class Verifier:
    """Verifies batches of trees by one rule; its buffers grow to the largest batch.

    On a device a step takes two host syncs, whatever the batch: for the acceptance probabilities, and for the bonus
    tokens.

    Args:
        rule: verification rule.
        vocabulary: V.
        device: of the distributions.
        on_host: use numba kernels instead of tensor operations; by default on a CPU.
    """

    def __init__(self, rule: Rule, vocabulary: int, device: torch.device, *, on_host: bool | None = None) -> None:
        self._rule, self._device = rule, device
        self._on_host = device.type == "cpu" if on_host is None else on_host
        self._residual, self._draft = torch.empty(2, 0, vocabulary, dtype=torch.float64, device=device)

    def prepare(self, trees: Sequence[TokenTree]) -> None:
        """Compute the layout of a batch and compile the kernels before its first step."""
        layout = batch_layout(tuple(trees), self._rule.by_level, self._device)
        self._grow(len(layout.internal))
        if self._on_host:
            from treeopt.runtime.rules import kernels  # numba is slow to import, and greedy decoding needs none

            probs, tokens = np.empty((0, self._residual.shape[1]), np.float32), np.empty(0, np.int64)
            self._rule.kernel(layout.internal[:0], tokens, probs, probs, self._residual.numpy(), np.empty(0))
            for dtype in (np.float32, np.float64):
                kernels.inverse_cdf(np.ones(1, dtype), 0.0)

    def test(
        self, trees: Sequence[TokenTree], tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor
    ) -> Tensor:
        """Return float64 (n,): the probability that each node is accepted when it is tested.

        Arguments as for `verify`, the rows of all trees concatenated; `draft_probs` may be None for rules whose drafts
        are not random.
        """
        layout = batch_layout(tuple(trees), self._rule.by_level, self._device)
        rows = len(layout.internal)
        self._grow(rows)
        self._layout, self._target = layout, target_probs
        self._acceptance = torch.ones(len(tokens), dtype=torch.float64, device=self._device)
        if rows and self._on_host:
            target = target_probs.contiguous().numpy()
            draft = target if draft_probs is None else draft_probs.contiguous().numpy()
            residual, acceptance = self._residual.numpy(), self._acceptance.numpy()
            self._rule.kernel(layout.internal, tokens.numpy(), draft, target, residual, acceptance)
            acceptance[layout.starts[:-1]] = 1.0  # 1 but for rounding: the empty path is always accepted
        elif rows:
            self._test_with_tensors(tokens, draft_probs)
            self._acceptance[layout.roots] = 1.0
        return self._acceptance

    def verdict(self, generator: torch.Generator | None) -> Verdict:
        """Return the verdict on the only sequence of the last test."""
        return self.verdicts([generator])[0]

    def verdicts(self, generators: Sequence[torch.Generator | None]) -> list[Verdict]:
        """Return the verdict on each sequence of the last test."""
        starts, trees = self._layout.starts, self._layout.host_trees
        numbers = concatenate(
            [self._uniform(tree, generator) for tree, generator in zip(trees, generators, strict=True)]
        )
        # the target's first entry after a node is finite if and only if all are
        acceptance, entries, u = self._to_lists(self._acceptance, self._target[:, 0], numbers)
        paths, finite = [], []
        for sequence, (tree, start) in enumerate(zip(trees, starts, strict=False)):
            stop = starts[sequence + 1]
            last = self._rule.selection.last_node(tree, acceptance[start:stop], u[start + sequence : stop + sequence])
            paths.append(tree.path(last))
            tested = range(start, stop) if self._rule.by_level else [start + node for node in paths[-1]]
            finite.append(all_finite([entries[node] for node in tested]))
        ends = [start + path[-1] for start, path in zip(starts, paths, strict=False)]
        bonus = self._sample_bonus(ends, [u[stop + sequence] for sequence, stop in enumerate(starts[1:])])
        return [Verdict(*fields) for fields in zip(paths, bonus, finite, strict=True)]

    def last_node(self, generator: torch.Generator | None) -> tuple[int, float]:
        """Return the last node of the accepted path of the only sequence, and a number for `token_after`.

        Only the root's target distribution is needed for this.
        """
        (tree,) = self._layout.host_trees
        acceptance, u = self._to_lists(self._acceptance, self._uniform(tree, generator))
        return self._rule.selection.last_node(tree, acceptance, u), u[-1]

    def token_after(self, node: int, u: float) -> int:
        """Return the bonus token after a path that ends at `node`; u is uniform on [0, 1)."""
        return self._sample_bonus([node], [u])[0]

    def reach(self) -> Float64:
        """Return float64 (n,): the probability that the accepted path of the only sequence contains each node."""
        (tree,) = self._layout.host_trees
        return self._rule.selection.reach(tree, self._acceptance.tolist())

    def _test_with_tensors(self, tokens: Tensor, draft_probs: Tensor | None) -> None:
        layout = self._layout
        rows = len(layout.internal)
        residual, draft = self._residual[:rows], self._draft[:rows]
        _load(residual, self._target[layout.parents])
        if draft_probs is not None:
            _load(draft, draft_probs[layout.parents], offset=EPSILON)
        row = 0
        for group in layout.groups:
            stop = row + len(group.parents)
            self._rule.accept_test(group, tokens, draft[row:stop], residual[row:stop], self._acceptance)
            row = stop

    def _sample_bonus(self, nodes: Sequence[int], u: Sequence[float]) -> list[int]:
        """Sample a token from the residual of each node, or from the target's distribution if the residual is empty.

        It is empty if draft and target are equal, and rounding rejected all children.
        """
        rows = [self._layout.rows.get(node) for node in nodes]
        if self._on_host:
            return self._sample_bonus_on_host(nodes, rows, u)
        target = self._target[list(nodes)].double()
        residual = target.clone()
        tested = [index for index, row in enumerate(rows) if row is not None]
        residual[tested] = self._residual[[row for row in rows if row is not None]]
        weights = torch.where(residual.sum(-1, keepdim=True) > 0, residual, target)
        tokens: list[int] = inverse_cdf(weights, torch.tensor(u, device=self._device, dtype=torch.float64)[:, None])[
            :, 0
        ].tolist()
        return tokens

    def _sample_bonus_on_host(self, nodes: Sequence[int], rows: Sequence[int | None], u: Sequence[float]) -> list[int]:
        from treeopt.runtime.rules import kernels

        residual, target, tokens = self._residual.numpy(), self._target.numpy(), []
        for node, row, number in zip(nodes, rows, u, strict=True):
            token = -1 if row is None else kernels.inverse_cdf(residual[row], number)
            tokens.append(kernels.inverse_cdf(target[node], number) if token < 0 else token)
        return tokens

    def _uniform(self, tree: HostTree, generator: torch.Generator | None) -> Tensor:
        """Return a number for each node, and one for the bonus token."""
        return uniform(generator, len(tree.parents) + 1, self._device)

    def _to_lists(self, *tensors: Tensor) -> list[list[float]]:
        """Return tensors of numbers as lists, in one host sync."""
        if self._on_host:
            return [tensor.tolist() for tensor in tensors]
        numbers = iter(torch.cat([tensor.double() for tensor in tensors]).tolist())
        return [list(islice(numbers, len(tensor))) for tensor in tensors]

    def _grow(self, rows: int) -> None:
        if rows > len(self._residual):
            self._residual = self._residual.new_empty(rows, self._residual.shape[1])
            if not self._on_host:
                self._draft = torch.empty_like(self._residual)


def _load(buffer: Tensor, distributions: Tensor, *, offset: float = 0.0) -> None:
    """Copy distributions, adding `offset` to each entry, and normalise them."""
    buffer.copy_(distributions)
    buffer += offset
    buffer /= buffer.sum(1, keepdim=True)
