"""Counting acceptance per depth and rank on text that the target itself generates.

At every position of a text the draft's children are drawn, `branching` of them, the rule is asked how likely it is to
accept each, and the text goes on with what the rule then samples.  Because the rule is lossless the text follows the
target's law, and because it is the rule's own outcome it is known at every position whether a step that started
earlier would have come this far, and through which ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from treeopt.acceptance import AcceptanceTable, TextSums
from treeopt.errors import TreeoptError
from treeopt.runtime import Transformer
from treeopt.runtime.cache import KVCache
from treeopt.runtime.drawing import likeliest, places
from treeopt.runtime.rules import rule_named
from treeopt.runtime.sampling import law
from treeopt.runtime.verification import Verifier
from treeopt.sampling import Sampling, draft_law
from treeopt.trees import level_widths

FloatArray = npt.NDArray[np.float64]

IntArray = npt.NDArray[np.int64]

LEAST_COUNT = 20.0
"""Depths that fewer positions reached are left out of the table."""
REJECTED = -1
"""Stands for the accepted rank where every child was rejected."""


@dataclass(frozen=True, slots=True, eq=False)
class TextPositions:
    """What happened at every position of one text."""

    expected: FloatArray
    """float64 (positions, B): the probability that the rule accepts the child of each rank, given the children."""
    accepted_rank: IntArray
    """int64 (positions,): the rank that it accepted, `REJECTED` for none."""


@dataclass(frozen=True, slots=True, eq=False)
class TextCounts:
    """Sums over one text: how often each depth was reached, and how much of that each rank accepted."""

    reached: FloatArray
    """float64 (D,), or (D, R) where every rank of the parent has sums of its own."""
    accepted: FloatArray
    """float64 (D, B) or (D, R, B)."""

    @classmethod
    def from_numbers(cls, numbers: FloatArray, depth: int) -> "TextCounts":
        """Return the sums that `numbers` gave as one row, in shapes (D,) and (D, B)."""
        return cls(numbers[:depth], numbers[depth:].reshape(depth, -1))

    @property
    def numbers(self) -> tuple[float, ...]:
        """All sums in one row, as a journal keeps them."""
        return (*self.reached.tolist(), *self.accepted.ravel().tolist())


class AcceptanceText:
    """Generates one text after another, with the acceptance of every position.

    Args:
        branching: children drawn per position, B.
        depth: depths counted, D.
    """

    def __init__(
        self,
        target: Transformer,
        draft: Transformer,
        *,
        rule: str,
        sampling: Sampling,
        draft_sampling: Sampling | None = None,
        branching: int,
        depth: int,
        seed: int = 0,
    ) -> None:
        self._models = (target, draft)
        self._caches: tuple[KVCache, ...] = ()
        self._rule = rule_named(rule, lossy=True)
        self._sampling = sampling
        self._draft_sampling = draft_law(sampling, draft_sampling)
        self._children = places([branching], target.device)
        self._verifier = Verifier(self._rule, level_widths([branching]), target.config.vocabulary, target.device)
        self._depth = depth
        self._generator = torch.Generator(target.device).manual_seed(seed)

    def count(self, prompt: Sequence[int], positions: int) -> TextCounts:
        """Generate `positions` tokens after a prompt and count their acceptance."""
        text = self.positions(prompt, positions)
        return conditional_counts(text.expected, text.accepted_rank, self._depth)

    @torch.inference_mode()
    def positions(self, prompt: Sequence[int], positions: int) -> TextPositions:
        """Generate `positions` tokens after a prompt, fewer if the text ends, and tell what happened at each."""
        self._caches = tuple(model.new_cache(len(prompt) + positions) for model in self._models)
        for model, cache in zip(self._models, self._caches, strict=True):
            model.prefill(torch.tensor(prompt[:-1], device=model.device), cache)
        token = prompt[-1]
        rows, ranks = [], []
        for _ in range(positions):
            expected, rank, token = self._position(token)
            rows.append(expected)
            ranks.append(rank)
            if token in self._models[0].config.end_tokens:
                break
        return TextPositions(np.array(rows), np.array(ranks))

    def _position(self, token: int) -> tuple[FloatArray, int, int]:
        """Return the expected acceptance (B,) of the children after a token, the accepted rank, and the next token."""
        target_logits, draft_logits = (
            self._feed(model, cache, token) for model, cache in zip(self._models, self._caches, strict=True)
        )
        if self._sampling.greedy:
            wanted = int(target_logits.argmax())
            expected = (likeliest(draft_logits, self._children) == wanted).double().cpu().numpy()
            return expected, int(expected.argmax()) if expected.any() else REJECTED, wanted
        draft_probs = law(draft_logits, self._draft_sampling)
        children = self._rule.draw(draft_probs, self._children, self._generator)
        tokens = torch.cat([children.new_tensor([token]), children])
        self._verifier.judge(tokens, draft_probs, law(target_logits, self._sampling))
        node, uniform = self._verifier.last_node(self._generator)
        following = int(tokens[node]) if node else self._verifier.token_after(0, uniform)
        return self._verifier.reach()[1:], node - 1 if node else REJECTED, following

    def _feed(self, model: Transformer, cache: KVCache, token: int) -> torch.Tensor:
        position = torch.tensor([cache.length], device=model.device)
        logits = model.forward(torch.tensor([token], device=model.device), position, cache, None)
        cache.length += 1
        return logits


def conditional_counts(expected: FloatArray, accepted_rank: IntArray, depth: int) -> TextCounts:
    """Return the sums per depth, every position taken as a root once.

    Position s + d - 1 counts for depth d of root s when positions s … s + d - 2 all accepted a child.

    Args:
        expected: float64 (positions, B), acceptance of each rank.
        accepted_rank: int64 (positions,), the rank accepted, `REJECTED` for none.
        depth: D.
    """
    counts = rank_conditioned_counts(expected, accepted_rank, depth, 1)
    return TextCounts(counts.reached[:, 0], counts.accepted[:, 0])


def rank_conditioned_counts(expected: FloatArray, accepted_rank: IntArray, depth: int, parent_ranks: int) -> TextCounts:
    """Return the sums per depth and rank of the parent, every position taken as a root once.

    Position s + d - 1 counts for depth d of root s when positions s … s + d - 2 all accepted a child, and there for
    the rank that position s + d - 2 accepted, the rank of its parent.  Parents of rank R - 1 and beyond count together;
    the root has rank 0.  Summed over the parent's rank these are the sums of `conditional_counts`.

    Args:
        expected: float64 (positions, B), acceptance of each rank.
        accepted_rank: int64 (positions,), the rank accepted, `REJECTED` for none.
        depth: D.
        parent_ranks: R.

    Returns sums of shapes (D, R) and (D, R, B).
    """
    reached, accepted = np.zeros((depth, parent_ranks)), np.zeros((depth, parent_ranks, expected.shape[1]))
    ranks = np.arange(parent_ranks)
    parent_rank = np.zeros(len(expected), np.int64)  # of the node that root s came to at depth d
    reach = np.ones(len(expected))  # 1 where root s came as far as depth d
    for d in range(min(depth, len(expected))):
        by_rank = reach[:, None] * (np.minimum(parent_rank, parent_ranks - 1)[:, None] == ranks)
        reached[d] = by_rank.sum(axis=0)
        accepted[d] = by_rank.T @ expected[d:]
        parent_rank = accepted_rank[d:-1]
        reach = reach[:-1] * (parent_rank != REJECTED)
    return TextCounts(reached, accepted)


def text_sums(texts: Sequence[TextCounts]) -> TextSums:
    """Return the sums of all texts, without the depths that hardly any position reached.

    Args:
        texts: counts of shapes (D,) and (D, B).

    Raises TreeoptError when too little text was measured.
    """
    reached = np.array([text.reached for text in texts])
    accepted = np.array([text.accepted for text in texts])
    depths = int(np.cumprod(reached.sum(axis=0) >= LEAST_COUNT).sum())
    if depths == 0 or len(texts) < 2:
        raise TreeoptError("acceptance: expected two texts or more with 20 positions in all. Measure more.")
    return TextSums(reached[:, :depths], accepted[:, :depths])


def rank_conditioned_table(texts: Sequence[TextCounts]) -> AcceptanceTable:
    """Return the table in which acceptance also depends on the parent's rank, with standard errors over texts.

    A rank of the parent that fewer than `LEAST_COUNT` positions reached at a depth takes the plain row of that depth,
    which holds for parents of any rank; `counts` still says how few there were.

    Args:
        texts: counts of shapes (D, R) and (D, R, B).

    Raises TreeoptError when too little text was measured.
    """
    plain = text_sums([TextCounts(text.reached.sum(axis=1), text.accepted.sum(axis=1)) for text in texts]).table()
    reached = np.array([text.reached[: len(plain.p)] for text in texts])
    accepted = np.array([text.accepted[: len(plain.p)] for text in texts])
    total = reached.sum(axis=0)
    enough = total >= LEAST_COUNT
    measured = TextSums(reached[:, enough], accepted[:, enough]).table()  # one row per pair of depth and rank
    assert plain.standard_error is not None
    assert measured.standard_error is not None
    p, error = (np.repeat(array[:, None], total.shape[1], axis=1) for array in (plain.p, plain.standard_error))
    p[enough], error[enough] = measured.p, measured.standard_error
    return AcceptanceTable(p, counts=total, standard_error=error)
