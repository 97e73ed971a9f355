"""Counts of decoding some texts in one way, to which any profile's times can be put."""

from dataclasses import dataclass

import numpy as np

from treeopt.array_record import ArrayRecord, freeze
from treeopt.arrays import Int64
from treeopt.errors import InvalidValueError
from treeopt.records.latency import Timing


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class DecodeStats(ArrayRecord):
    """Texts decoded in one way.

    Raises InvalidValueError where a text has no step, or passes and steps do not add up.
    """

    tokens: Int64
    """int64 (J,): tokens committed in each text."""
    steps: Int64
    """int64 (J,): steps that each took."""
    pass_tokens: Int64
    """int64 (M,): sizes of the target's passes, rising."""
    passes: Int64
    """int64 (M,): how many passes had each size, over all texts."""
    draft: Timing
    """Seconds that drafting took in each step; 0 where the clock saw none pass."""

    def __post_init__(self) -> None:
        freeze(self)
        if not len(self.tokens) == len(self.steps) > 0 or np.any(self.steps < 1) or np.any(self.tokens < self.steps):
            raise InvalidValueError("tokens, steps: expected at least one step of every text, and a token a step.")
        if len(self.pass_tokens) != len(self.passes) or self.passes.sum() != self.steps.sum():
            raise InvalidValueError("passes: expected as many as there were steps.")

    @property
    def tokens_per_step(self) -> float:
        """Over all texts together."""
        return float(self.tokens.sum() / self.steps.sum())

    @property
    def nodes(self) -> float:
        """Tokens of a pass on average."""
        return float((self.pass_tokens * self.passes).sum() / self.passes.sum())
