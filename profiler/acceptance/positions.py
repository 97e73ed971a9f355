"""Counting acceptance per depth and rank on text that the target itself generates.

At every position of a text the draft's children are sampled, `branching` of them, the rule is asked how likely it is to
accept each, and the text goes on with what the rule then samples.  Because the rule is lossless the text follows the
target's distribution, and because it is the rule's own outcome it is known at every position whether a step that
started earlier would have come this far, and through which ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Float64, Int64
from treeopt.profiler.decoding import Decoding
from treeopt.records.acceptance_counts import REJECTED, AcceptanceCounts, conditional_counts
from treeopt.records.sampling import draft_sampling_of
from treeopt.runtime.models.finite import check_logits
from treeopt.runtime.models.model import LanguageModel, SequenceCache, feed_text
from treeopt.runtime.rules import rule_named
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.sample_children import likeliest, places
from treeopt.runtime.rules.verify import Verifier
from treeopt.trees import level_widths


@dataclass(frozen=True, slots=True, eq=False)
class TextPositions:
    """What happened at every position of one text."""

    expected: Float64
    """float64 (positions, B): the probability that the rule accepts the child of each rank, given the children."""
    accepted_rank: Int64
    """int64 (positions,): the rank that it accepted, `REJECTED` for none."""

    @classmethod
    def none(cls, branching: int) -> "TextPositions":
        """Return what happened along a text that ended before."""
        return cls(np.zeros((0, branching)), np.zeros(0, np.int64))


class AcceptanceText:
    """One text after another under one rule and sampling, with the acceptance of every position.

    Args:
        decoding: the rule, lossy ones included, and how target and draft sample.
        branching: children sampled per position, B.
        depth: depths counted, D.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        decoding: Decoding,
        *,
        branching: int,
        depth: int,
        seed: int = 0,
    ) -> None:
        self._target, self._draft = target, draft
        self._rule = rule_named(decoding.rule, lossy=True)
        self._sampling = decoding.sampling
        self._draft_sampling = draft_sampling_of(decoding.sampling, decoding.draft_sampling)
        self._children = places([branching], target.device)
        self._tree = level_widths([branching])
        self._verifier = Verifier(self._rule, target.config.vocabulary, target.device)
        self._depth = depth
        self._generator = torch.Generator(target.device).manual_seed(seed)

    def count(self, prompt: Sequence[int], positions: int) -> AcceptanceCounts:
        """Generate `positions` tokens after a prompt and count their acceptance."""
        return self.counts(self.positions(prompt, positions))

    def counts(self, text: TextPositions) -> AcceptanceCounts:
        """Return the sums over the positions of a text."""
        return conditional_counts(text.expected, text.accepted_rank, self._depth)

    def positions(self, prompt: Sequence[int], positions: int) -> TextPositions:
        """Generate `positions` tokens after a prompt, fewer if the text ends, and tell what happened at each."""
        return texts_together(self._target, self._draft, [self], prompt, positions)[0]

    def position(self, token: int, target_logits: Tensor, draft_logits: Tensor) -> tuple[Float64, int, int]:
        """Return the expected acceptance (B,) of the children after a token, the accepted rank, and the next token.

        Logits are (1, V) of either model, after the token.
        """
        if self._sampling.greedy:
            wanted = int(target_logits.argmax())
            expected = (likeliest(draft_logits, self._children) == wanted).double().cpu().numpy()
            return expected, int(expected.argmax()) if expected.any() else REJECTED, wanted
        draft_probs = distribution(draft_logits, self._draft_sampling)
        (children,) = self._rule.draw(draft_probs[None], self._children, [self._generator])
        tokens = torch.cat([children.new_tensor([token]), children])
        self._verifier.test([self._tree], tokens, draft_probs, distribution(target_logits, self._sampling))
        node, u = self._verifier.last_node(self._generator)
        following = int(tokens[node]) if node else self._verifier.token_after(0, u)
        return self._verifier.reach()[1:], node - 1 if node else REJECTED, following


@torch.inference_mode()
def texts_together(
    target: LanguageModel,
    draft: LanguageModel,
    texts: Sequence[AcceptanceText],
    prompt: Sequence[int],
    positions: int,
) -> list[TextPositions]:
    """Continue one prompt under several rules and samplings at once, one pass of each model for all, token by token.

    Returns the positions of each text: `positions` of them, fewer where it ends.
    Raises TreeoptError naming a model whose logits are not finite.
    """
    models, end_tokens = (target, draft), set(target.config.end_tokens)
    rows = len(texts)
    caches = [model.new_caches(len(prompt) + positions, rows) for model in models]
    for model, of_model in zip(models, caches, strict=True):
        for cache in of_model:
            model.prefill(torch.tensor(prompt[:-1], dtype=torch.int64, device=model.device), cache)
    last = [prompt[-1]] * rows
    found: list[list[tuple[Float64, int]]] = [[] for _ in texts]
    ended = [False] * rows
    for _ in range(positions):
        logits = [_feed(model, cache, last) for model, cache in zip(models, caches, strict=True)]
        check_logits(target, "target", logits[0])
        check_logits(draft, "draft model", logits[1])
        for row, text in enumerate(texts):
            if not ended[row]:
                expected, rank, last[row] = text.position(last[row], *(each[row] for each in logits))
                found[row].append((expected, rank))
                ended[row] = last[row] in end_tokens
        if all(ended):
            break
    return [
        TextPositions(np.array([expected for expected, _ in each]), np.array([rank for _, rank in each]))
        for each in found
    ]


def _feed(model: LanguageModel, caches: Sequence[SequenceCache], tokens: Sequence[int]) -> Tensor:
    """Commit a token to each text and return the logits (texts, 1, V) after it."""
    fed = torch.tensor(tokens, dtype=torch.int64, device=model.device).split(1)
    logits = model.forward([feed_text(cache, token) for cache, token in zip(caches, fed, strict=True)]).logits
    for cache in caches:
        cache.length += 1
    return logits[:, None]
