"""Which drafted tokens a step accepts: functions of distributions and randomness, no model in sight."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError
from treeopt.runtime.rules import Rule, rule_named
from treeopt.runtime.rules.sample_children import check_counts, check_finite, places
from treeopt.runtime.rules.selection import Walk
from treeopt.runtime.rules.verifier import DeviceVerifier, HostVerifier
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
        generator: source of fresh noise; the same state draws the same children.

    Returns int64 (sum(counts),): tokens node after node, in the order sampled, which is their rank.
    Raises InvalidValueError for an unknown rule, more children than tokens, or probabilities that are not finite.
    """
    sample = rule_named(rule, lossy=True).draw
    check_counts(draft_probs, counts)
    check_finite("draft_probs", draft_probs[counts > 0])
    if len(counts) == 0 or int(counts.max()) == 0:
        return torch.empty(0, dtype=torch.int64, device=draft_probs.device)
    return sample(draft_probs, places(counts.tolist(), draft_probs.device), generator)


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
        generator: source of fresh noise.
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
    verifier = Verifier(found, tree, target_probs.shape[1], target_probs.device)
    verifier.test(tokens, draft_probs.detach().double(), target_probs.detach().double())
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
    """Verifies drafts of one tree by one rule, in buffers that it keeps.

    On a device all nodes are tested at once, and the host asks it twice a step, not once a node: for the numbers that
    the path follows from, and for the token after it.  On the host the drafts of several texts are tested at once.

    Args:
        rule: the rule.
        tree: the tree of n nodes.
        vocabulary: V.
        device: where the distributions lie.
        on_host: whether they are tested by loops over the host's memory; by default where they lie there.
        texts: most that are tested at once, on a device one; their nodes and rows follow one after the other.
    """

    def __init__(
        self,
        rule: Rule,
        tree: TokenTree,
        vocabulary: int,
        device: torch.device,
        *,
        on_host: bool | None = None,
        texts: int = 1,
    ) -> None:
        self.texts = texts
        self._rule = rule
        self._walk = Walk(tree)
        on_host = device.type == "cpu" if on_host is None else on_host
        self._verifier = (HostVerifier if on_host else DeviceVerifier)(rule, tree, vocabulary, device, texts)
        self._acceptance = torch.ones(texts * tree.nodes, dtype=torch.float64, device=device)
        self._noise = torch.ones(texts, tree.nodes + 1, dtype=torch.float64, device=device)
        self._noise_by_text = self._noise.unbind()
        self._tested = self._acceptance
        self._target = self._verifier.residual

    def test(self, tokens: Tensor, draft_probs: Tensor | None, target_probs: Tensor) -> Tensor:
        """Return float64 (n,): how probable each node is to be accepted when its turn comes.

        Arguments as for `verify`, of as many texts as are tested; `draft_probs` may be None for rules whose drafts are
        not random.
        """
        self._target, count = target_probs, tokens.shape[0]
        self._tested = self._acceptance if count == self._acceptance.shape[0] else self._acceptance[:count]
        self._verifier(tokens, draft_probs, target_probs, self._tested)
        return self._tested

    def verdict(self, generator: torch.Generator | None) -> Verdict:
        """Return the accepted path of what was tested last, and the token after it."""
        return self.verdicts([generator])[0]

    def verdicts(self, generators: Sequence[torch.Generator | None]) -> list[Verdict]:
        """Return the accepted path of each text that was tested last, and the token after it, by the noise of each."""
        for row, generator in zip(self._noise_by_text, generators, strict=False):
            row.uniform_(generator=generator)
        ends = self._verifier.ends(self._target, self._tested, self._noise[: len(generators)])
        return [Verdict(self._walk.path(node), token, finite) for node, token, finite in ends]

    def last_node(self, generator: torch.Generator | None) -> tuple[int, float]:
        """Return the last node of the accepted path of what was tested last, of one text, and a number for `token_after`.

        The target's distributions are not looked at, so that they may be told of the root alone.
        """
        noise = self._noise_by_text[0].uniform_(generator=generator)
        numbers = torch.cat([self._tested, noise]).tolist()  # a device is waited for once
        nodes = len(self._tested)
        return self._rule.selection.last_node(self._walk, numbers[:nodes], numbers[nodes:-1]), numbers[-1]

    def token_after(self, node: int, uniform: float) -> int:
        """Return the token after a path that ends at a node, given a number that is uniform on [0, 1)."""
        return self._verifier.token_after(self._target, node, uniform)

    def distribution_after(self, node: int) -> Tensor:
        """Return float64 (V,), up to a factor: the distribution of the token after a path that ends at a node."""
        row = self._verifier.rows.get(node)
        distribution: Tensor = self._target[node].double() if row is None else self._verifier.residual[row]
        return distribution

    def reach(self) -> Float64:
        """Return float64 (n,): the probability that the path accepted of what was tested last holds each node."""
        return self._rule.selection.reach(self._walk, self._tested.tolist())
