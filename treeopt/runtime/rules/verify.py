"""Which drafted tokens a step accepts: functions of distributions and randomness, no model in sight."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError
from treeopt.runtime.models.finite import all_finite
from treeopt.runtime.models.model import joined
from treeopt.runtime.rules import Rule, rule_named
from treeopt.runtime.rules.distributions import EPSILON
from treeopt.runtime.rules.inverse_cdf import inverse_cdf, uniform
from treeopt.runtime.rules.layout import batch_layout
from treeopt.runtime.rules.sample_children import check_counts, check_finite, places
from treeopt.runtime.rules.selection import Walk
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a step accepts."""

    nodes: tuple[int, ...]
    """Accepted nodes from the root down; the first is 0, the root."""
    bonus: int
    """The token sampled after the last of them."""
    finite: bool = True
    """Whether the target's distributions that it hangs on are finite; where they are not, nothing above holds."""

    @property
    def path(self) -> Tensor:
        """int64 (m,): the accepted nodes."""
        return torch.tensor(self.nodes)


class TokensByNode(Protocol):
    """A token of every node, such as a list."""

    def __getitem__(self, node: int, /) -> int:
        """Return the token of a node."""


def draw(rule: str, draft_probs: Tensor, counts: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw the children of m nodes, in the way that belongs to a verification rule.

    Args:
        rule: `sequoia` and `traversal` draw without replacement; where a distribution has fewer tokens left than
            children are wanted, the rest is sampled uniformly from the tokens not yet sampled (Chen et al., 2024,
            Algorithm 2). `specinfer` draws with replacement.  `target` and `typical` take the likeliest.
        draft_probs: float (m, V), the draft's distribution after each node.
        counts: int64 (m,), children wanted of each node.
        generator: source of the random numbers; the same state draws the same children.

    Returns int64 (sum(counts),): tokens node after node, in the order sampled, which is their rank.
    Raises InvalidValueError for an unknown rule, more children than tokens, or probabilities that are not finite.
    """
    sample = rule_named(rule, lossy=True).draw
    check_counts(draft_probs, counts)
    check_finite("draft_probs", draft_probs[counts > 0])
    if len(counts) == 0 or int(counts.max()) == 0:
        return torch.empty(0, dtype=torch.int64, device=draft_probs.device)
    return sample(draft_probs.detach()[None], places(counts.tolist(), draft_probs.device), [generator])[0]


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
    """Accept a path of a drafted tree: but for lossy rules the step's tokens follow the target's distribution exactly.

    Args:
        rule: see `treeopt.runtime.draw`, which must have sampled the tokens.
        tree: the tree of n nodes.
        tokens: int64 (n,), the root's token and the drafted ones.
        draft_probs: float (n, V), the draft's distribution after each node; rows of leaves are not read.
        target_probs: float (n, V), the target's distribution after each node.
        generator: source of the random numbers.
        lossy: allow rules that change the text's distribution.

    Raises InvalidValueError for an unknown rule, a lossy one unless allowed, shapes that do not fit the tree, or
    probabilities that are not finite.
    """
    found = rule_named(rule, lossy=lossy)
    for name, probs in (("draft_probs", draft_probs), ("target_probs", target_probs)):
        if probs.ndim != 2 or len(probs) != tree.nodes or probs.shape != target_probs.shape:
            raise InvalidValueError(f"{name}: expected ({tree.nodes}, V), a row per node. Got {tuple(probs.shape)}.")
    if tokens.shape != (tree.nodes,):
        raise InvalidValueError(f"tokens: expected ({tree.nodes},), one per node. Got {tuple(tokens.shape)}.")
    check_finite("target_probs", target_probs)
    check_finite("draft_probs", draft_probs[torch.from_numpy(tree.child_counts > 0).to(draft_probs.device)])
    verifier = Verifier(found, target_probs.shape[1], target_probs.device)
    verifier.test([tree], tokens, draft_probs.detach().double(), target_probs.detach().double())
    return verifier.verdict(generator)


def verify_greedy(children: Sequence[range], tokens: Sequence[int], target_tokens: TokensByNode) -> Verdict:
    """Accept the path along which every drafted token is the target's likeliest, the limit of all rules at temperature 0.

    Args:
        children: node indices of each node's children.
        tokens: the root's token and the drafted ones.
        target_tokens: the target's likeliest token after each node.
    """
    path = [0]
    while True:
        wanted = target_tokens[path[-1]]
        for child in children[path[-1]]:
            if tokens[child] == wanted:
                path.append(child)
                break
        else:
            return Verdict(tuple(path), wanted)


class Verifier:
    """Verifies drafts of any trees by one rule; its buffers grow to the largest batch.

    On a device a step takes two host syncs, whatever the batch: one for the acceptance probabilities, one for the final
    tokens.

    Args:
        rule: the rule.
        vocabulary: V.
        device: of the distributions.
        on_host: whether the numba kernels test, instead of tensor operations; by default on a CPU.
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
            from treeopt.runtime.rules import kernels  # numba is slow to import, and greedy decoding does without

            probs, none = np.empty((0, self._residual.shape[1]), np.float32), np.empty(0, np.int64)
            self._rule.kernel(layout.internal[:0], none, probs, probs, self._residual.numpy(), np.empty(0))
            for dtype in (np.float32, np.float64):
                kernels.inverse_cdf(np.ones(1, dtype), 0.0)

    def test(
        self, trees: Sequence[TokenTree], tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor
    ) -> Tensor:
        """Return float64 (n,): how probable each node is to be accepted when its turn comes.

        Arguments as for `verify`, the nodes and rows of one tree after those of another; `draft_probs` may be None for
        rules whose drafts are not random.
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
            acceptance[layout.starts[:-1]] = 1.0  # but for rounding it is 1: the empty path is always accepted
        elif rows:
            self._test_with_tensors(tokens, draft_probs)
            self._acceptance[layout.roots] = 1.0
        return self._acceptance

    def verdict(self, generator: torch.Generator | None) -> Verdict:
        """Return the accepted path of the only sequence that was tested last, and the token after it."""
        return self.verdicts([generator])[0]

    def verdicts(self, generators: Sequence[torch.Generator | None]) -> list[Verdict]:
        """Return the accepted path of each sequence that was tested last, and the token after it."""
        starts, walks = self._layout.starts, self._layout.walks
        noise = [self._uniform(walk, generator) for walk, generator in zip(walks, generators, strict=True)]
        # the target's first entry after a node is finite where all of them are
        if self._on_host:
            acceptance, u = self._acceptance.tolist(), joined(noise).tolist()
            entries = self._target.numpy()[:, 0].tolist()
        else:
            acceptance, entries, u = self._lists(self._acceptance, self._target[:, 0].double(), joined(noise))
        paths, finite = [], []
        for sequence, (walk, start) in enumerate(zip(walks, starts, strict=False)):
            stop = starts[sequence + 1]
            last = self._rule.selection.last_node(walk, acceptance[start:stop], u[start + sequence : stop + sequence])
            paths.append(walk.path(last))
            needed = range(start, stop) if self._rule.by_level else [start + node for node in paths[-1]]
            finite.append(all_finite([entries[node] for node in needed]))
        ends = [start + path[-1] for start, path in zip(starts, paths, strict=False)]
        bonus = self._tokens_after(ends, [u[stop + sequence] for sequence, stop in enumerate(starts[1:])])
        return [Verdict(*each) for each in zip(paths, bonus, finite, strict=True)]

    def last_node(self, generator: torch.Generator | None) -> tuple[int, float]:
        """Return the last node of the accepted path of the only sequence, and a number for `token_after`.

        The target's distributions are not read, so that the root's may be the only one.
        """
        (walk,) = self._layout.walks
        acceptance, u = self._lists(self._acceptance, self._uniform(walk, generator))
        return self._rule.selection.last_node(walk, acceptance, u), u[-1]

    def token_after(self, node: int, u: float) -> int:
        """Return the token after a path that ends at a node, given a number that is uniform on [0, 1)."""
        return self._tokens_after([node], [u])[0]

    def distribution_after(self, node: int) -> Tensor:
        """Return float64 (V,), up to a factor: the distribution of the token after a path that ends at a node."""
        row = self._layout.rows.get(node)
        return self._target[node].double() if row is None else self._residual[row]

    def reach(self) -> Float64:
        """Return float64 (n,): the probability that the accepted path of the only sequence holds each node."""
        (walk,) = self._layout.walks
        return self._rule.selection.reach(walk, self._acceptance.tolist())

    def _test_with_tensors(self, tokens: Tensor, draft_probs: Tensor | None) -> None:
        layout = self._layout
        rows = len(layout.internal)
        residual, draft = self._residual[:rows], self._draft[:rows]
        _load(residual, self._target[layout.parents])
        if draft_probs is not None:
            _load(draft, draft_probs[layout.parents], least=EPSILON)
        row = 0
        for group in layout.groups:
            stop = row + len(group.parents)
            self._rule.accept_test(group, tokens, draft[row:stop], residual[row:stop], self._acceptance)
            row = stop

    def _tokens_after(self, nodes: Sequence[int], u: Sequence[float]) -> list[int]:
        """Return a token from the residual of each node, or from the target's distribution where the residual is empty.

        It is empty where draft and target are equal, and rounding rejected all children.
        """
        rows = [self._layout.rows.get(node) for node in nodes]
        if self._on_host:
            return self._tokens_on_host(nodes, rows, u)
        target = self._target[list(nodes)].double()
        residual = target.clone()
        tested = [place for place, row in enumerate(rows) if row is not None]
        residual[tested] = self._residual[[row for row in rows if row is not None]]
        weights = torch.where(residual.sum(-1, keepdim=True) > 0, residual, target)
        tokens: list[int] = inverse_cdf(weights, torch.tensor(u, device=self._device, dtype=torch.float64)[:, None])[
            :, 0
        ].tolist()
        return tokens

    def _tokens_on_host(self, nodes: Sequence[int], rows: Sequence[int | None], u: Sequence[float]) -> list[int]:
        from treeopt.runtime.rules import kernels

        residual, target, tokens = self._residual.numpy(), self._target.numpy(), []
        for node, row, value in zip(nodes, rows, u, strict=True):
            token = -1 if row is None else kernels.inverse_cdf(residual[row], value)
            tokens.append(kernels.inverse_cdf(target[node], value) if token < 0 else token)
        return tokens

    def _uniform(self, walk: Walk, generator: torch.Generator | None) -> Tensor:
        """Return a number per node, and one for the token after the path."""
        return uniform(generator, len(walk.parents) + 1, self._device)

    def _lists(self, *tensors: Tensor) -> list[list[float]]:
        """Return float64 tensors as lists; a device is waited for once."""
        if self._on_host:
            return [tensor.tolist() for tensor in tensors]
        numbers = iter(torch.cat(tensors).tolist())
        return [list(islice(numbers, len(tensor))) for tensor in tensors]

    def _grow(self, rows: int) -> None:
        """Make room for the residuals of as many parents."""
        if rows > len(self._residual):
            self._residual = self._residual.new_empty(rows, self._residual.shape[1])
            if not self._on_host:
                self._draft = torch.empty_like(self._residual)


def _load(buffer: Tensor, distributions: Tensor, *, least: float = 0.0) -> None:
    """Copy distributions, adding `least` to each entry, and normalise them."""
    buffer.copy_(distributions)
    buffer += least
    buffer /= buffer.sum(1, keepdim=True)
