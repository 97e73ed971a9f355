"""Trees grown best first: in every step the most probable paths under the draft, up to a budget."""

from dataclasses import dataclass
from math import inf

from treeopt.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecExecSetting:
    """How SpecExec's trees grow (Svirschevski et al., 2024, section 4).

    A step verifies the root and the `budget` - 1 paths below it that are the most probable under the draft.  They are
    found in passes of the draft model: the first feeds the root, every other the `batch` best nodes that were not fed
    and could still bring a better path.

    Raises InvalidValueError for a value out of range.

    >>> SpecExecSetting(budget=64, branching=8, batch=16, max_passes=5).max_fed
    65
    """

    budget: int
    """Most tokens that the target verifies in one pass, root included."""
    branching: int
    """Most children of a node, the likeliest."""
    batch: int
    """Most nodes that a draft pass feeds."""
    max_passes: int
    """Most draft passes, the root's included; none finds a better path beyond `budget` - 1 of them."""
    least_log_prob: float = -inf
    """Log-probability of a path, by the draft, below which it is neither followed nor verified."""

    def __post_init__(self) -> None:
        for name, least in {"budget": 2, "branching": 1, "batch": 1, "max_passes": 1}.items():
            if getattr(self, name) < least:
                raise InvalidValueError(f"{name}: expected at least {least}. Got {getattr(self, name)}.")
        if not self.least_log_prob <= 0:
            raise InvalidValueError(f"least_log_prob: expected a number of at most 0. Got {self.least_log_prob}.")

    @property
    def max_depth(self) -> int:
        """Most levels below the root, and most draft passes: each pass adds at most one level."""
        return min(self.max_passes, self.budget - 1)

    @property
    def max_fed(self) -> int:
        """Most nodes that a step feeds to the draft model, root included."""
        return 1 + (self.max_depth - 1) * min(self.batch, self.budget - 1)
