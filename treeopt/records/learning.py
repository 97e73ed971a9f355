"""What a draft that learns while it drafts has learnt, and what that took."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningStats:
    """Counts and times of one learner."""

    updates: int
    """Of the draft's weights."""
    dropped: int
    """Updates whose gradient was not finite."""
    left_out: int
    """Updates that would have taken more than their share of the time."""
    learning_s: float
    decoding_s: float
    """Since the first step, learning included."""

    @property
    def share(self) -> float:
        """Learning's part of the time, from 0 to 1; 0 before the first step."""
        return self.learning_s / self.decoding_s if self.decoding_s > 0 else 0.0

    def __str__(self) -> str:
        """Return them in one line.

        >>> print(LearningStats(updates=12, dropped=1, left_out=0, learning_s=0.6, decoding_s=10.0))
        learning: 6 % of the time, 12 updates, 1 dropped
        """
        more = [f"{count} {name}" for count, name in ((self.dropped, "dropped"), (self.left_out, "left out")) if count]
        updates = f"{self.updates} update{'' if self.updates == 1 else 's'}"
        return ", ".join([f"learning: {100 * self.share:.0f} % of the time", updates, *more])
