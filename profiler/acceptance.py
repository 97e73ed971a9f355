"""Counting acceptance per depth and rank on text that the target itself generates.

At every position of a text the draft's children are drawn, `branching` of them, the rule is asked how likely it is to
accept each, and the text goes on with what the rule then samples.  Because the rule is lossless the text follows the
target's law, and because it is the rule's own outcome it is known at every position whether a step that started
earlier would have come this far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from treeopt.acceptance import AcceptanceTable
from treeopt.errors import TreeoptError
from treeopt.runtime import Transformer, probabilities
from treeopt.runtime.cache import KVCache
from treeopt.runtime.sampling import draw, likeliest
from treeopt.runtime.verification import acceptance_probabilities, sample_after

FloatArray = npt.NDArray[np.float64]

LEAST_COUNT = 20.0
"""Depths that fewer positions reached are left out of the table."""


@dataclass(frozen=True, slots=True)
class TextCounts:
    """Sums over one text: how often each depth was reached, and how much of that each rank accepted."""

    reached: FloatArray
    """float64 (D,)."""
    accepted: FloatArray
    """float64 (D, B)."""

    @classmethod
    def from_numbers(cls, numbers: FloatArray, depth: int) -> "TextCounts":
        """Return the sums that `numbers` gave as one row."""
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
        temperature: float,
        top_p: float,
        branching: int,
        depth: int,
        seed: int = 0,
    ) -> None:
        self._models = (target, draft)
        self._caches: tuple[KVCache, ...] = ()
        self._rule = rule
        self._temperature = temperature
        self._top_p = top_p
        self._counts = torch.tensor([branching], device=target.device)
        self._depth = depth
        self._generator = torch.Generator(target.device).manual_seed(seed)

    @torch.inference_mode()
    def count(self, prompt: Sequence[int], positions: int) -> TextCounts:
        """Generate `positions` tokens after a prompt and count their acceptance."""
        self._caches = tuple(model.new_cache(len(prompt) + positions) for model in self._models)
        for model, cache in zip(self._models, self._caches, strict=True):
            model.prefill(torch.tensor(prompt[:-1], device=model.device), cache)
        token = prompt[-1]
        rows, hits = [], []
        for _ in range(positions):
            expected, hit, token = self._position(token)
            rows.append(expected)
            hits.append(hit)
            if token in self._models[0].config.end_tokens:
                break
        return conditional_counts(np.array(rows), np.array(hits), self._depth)

    def _position(self, token: int) -> tuple[FloatArray, bool, int]:
        """Return the expected acceptance (B,) of the children after a token, whether one is accepted, and the next."""
        target_logits, draft_logits = (
            self._feed(model, cache, token) for model, cache in zip(self._models, self._caches, strict=True)
        )
        branching = int(self._counts)
        if self._temperature == 0:
            wanted = int(target_logits.argmax())
            expected = (likeliest(draft_logits, self._counts, branching) == wanted).double().cpu().numpy()
            return expected, bool(expected.any()), wanted
        law = probabilities(target_logits, self._temperature, self._top_p)[0]
        draft_law = probabilities(draft_logits, self._temperature)
        children = draw(self._rule, draft_law, self._counts, self._generator).tolist()
        expected = acceptance_probabilities(self._rule, children, draft_law[0], law).cpu().numpy()
        accepted, following = sample_after(self._rule, children, draft_law[0], law, self._generator)
        return expected, accepted is not None, following

    def _feed(self, model: Transformer, cache: KVCache, token: int) -> torch.Tensor:
        position = torch.tensor([cache.length], device=model.device)
        logits = model.forward(torch.tensor([token], device=model.device), position, cache, None)
        cache.length += 1
        return logits


def conditional_counts(expected: FloatArray, hit: npt.NDArray[np.bool_], depth: int) -> TextCounts:
    """Return the sums per depth, every position taken as a root once.

    Position s + d - 1 counts for depth d of root s when positions s … s + d - 2 all accepted a child.

    Args:
        expected: float64 (positions, B), acceptance of each rank.
        hit: bool (positions,), whether any child was accepted.
        depth: D.
    """
    reached, accepted = np.zeros(depth), np.zeros((depth, expected.shape[1]))
    reach = np.ones(len(expected))  # reach[s]: root s came as far as depth d - 1
    for d in range(min(depth, len(expected))):
        at = expected[d:]
        reached[d] = reach.sum()
        accepted[d] = reach @ at
        reach = reach[:-1] * hit[d : d + len(reach) - 1]
    return TextCounts(reached, accepted)


def acceptance_table(texts: Sequence[TextCounts]) -> AcceptanceTable:
    """Return the table of all texts together, with standard errors from the spread between texts.

    A row is a ratio of sums over texts, so its error is that of a ratio estimator with texts as clusters
    (Cochran, 1977, section 6.3): neighbouring positions of one text are not independent.
    Raises TreeoptError when too little text was measured.
    """
    reached = np.array([text.reached for text in texts])
    accepted = np.array([text.accepted for text in texts])
    depths = int(np.cumprod(reached.sum(axis=0) >= LEAST_COUNT).sum())
    if depths == 0 or len(texts) < 2:
        raise TreeoptError("acceptance: expected two texts or more with 20 positions in all. Measure more.")
    reached, accepted = reached[:, :depths], accepted[:, :depths]
    total = reached.sum(axis=0)
    p = accepted.sum(axis=0) / total[:, None]
    residual = accepted - p * reached[:, :, None]
    clusters = len(texts)
    error = np.sqrt((residual**2).sum(axis=0) * clusters / (clusters - 1)) / total[:, None]
    return AcceptanceTable(np.minimum(p, 1.0), counts=total, standard_error=error)
