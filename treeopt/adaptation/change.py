"""A change of what is drafted, and why: a line of JSON each."""

from dataclasses import dataclass

from treeopt.adaptation.ways import Way, described


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of what drafts."""

    step: int
    """Steps that were decoded before it."""
    why: str
    """What was counted that the plan did not have."""
    before: Way
    after: Way
    gain: float
    """By which share tokens per second are predicted to be more."""
    noise: float
    """Standard error of the logarithm of 1 + gain."""
    tokens_per_step: float
    """Predicted of what it was changed to."""
    step_s: float
    """Likewise."""
    switch_s: float
    """What the change took."""

    def to_json(self) -> dict[str, object]:
        """Return it as a line of an adaptation log holds it."""
        return {
            "step": self.step,
            "why": self.why,
            "from": described(self.before),
            "to": described(self.after),
            "predicted_gain": round(self.gain, 4),
            "noise": round(self.noise, 4),
            "predicted_tokens_per_step": round(self.tokens_per_step, 3),
            "predicted_step_s": round(self.step_s, 6),
            "switch_s": round(self.switch_s, 6),
        }
