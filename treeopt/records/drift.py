"""What became of streams of texts that change: tokens and seconds, text by text, of several ways of decoding."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedText:
    """One text of a stream, decoded in one way."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStream:
    """All texts of a stream, decoded in one way."""

    texts: tuple[TimedText, ...]

    def tokens_per_s(self, first: int = 0) -> float:
        """Return the speed over the texts from one number on."""
        return sum(each.tokens for each in self.texts[first:]) / sum(each.seconds for each in self.texts[first:])


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeChange:
    """A change of tree that re-calibration made."""

    text: int
    """Number of the text in which it was made."""
    why: str
    before: str
    after: str
    """Both trees in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftStream:
    """One stream, decoded side by side with plans that stay, that are re-calibrated, that learn, and the best there is."""

    name: str
    what: str
    """What changes, in words."""
    drift_text: int
    """Number of the first text behind the change; 0 where nothing changes."""
    fixed: TimedStream
    """The plan made before."""
    adapted: TimedStream
    """The same plan, re-calibrated."""
    best: TimedStream
    """The plan made before, and behind the change the one that is made from what is measured then."""
    learning: TimedStream | None = None
    """Re-calibrated, with a draft that learns."""
    learning_missing: str | None = None
    """Why there is none of that."""
    planned: str
    """The plan made before, in words."""
    planned_behind: str
    """The plan made behind the change."""
    changes: tuple[TreeChange, ...]
    identical: bool | None
    """Whether all ways decoded the same texts, to rounding; None above temperature 0."""

    @property
    def gain(self) -> float:
        """By which share the best plan is faster behind the change than the plan made before."""
        return self.best.tokens_per_s(self.drift_text) / self.fixed.tokens_per_s(self.drift_text) - 1

    @property
    def adapted_gain(self) -> float:
        """By which share the re-calibrated plan is, the time to notice and its own cost included."""
        return self.adapted.tokens_per_s(self.drift_text) / self.fixed.tokens_per_s(self.drift_text) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftStreams:
    """All streams of one bench."""

    streams: tuple[DriftStream, ...]
