"""Under which condition times are taken."""

from dataclasses import dataclass

from treeopt.records.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCondition:
    """Behind what, for how many texts, and for which sampling times are taken."""

    context_tokens: int
    batch_size: int
    sampling: Sampling

    def kind(self, what: str) -> str:
        """Return the name that samples of `verify`, `draft` or `step` have in the journal."""
        way = "greedy" if self.sampling.greedy else "sampled"
        return f"{what} {self.context_tokens}x{self.batch_size} {way}"
