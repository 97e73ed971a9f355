"""Where a tree came from, and what was promised of it."""

import sys
from dataclasses import dataclass

from treeopt.arguments import number
from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Provenance(ShortRepr):
    """Where a tree came from and what was promised of it; every field may be absent.

    Raises InvalidValueError when a number is negative or not finite, `threads` is below 1, or `lossy` is False.
    """

    tool: str | None = None
    """Program and version that made the tree."""
    created: str | None = None
    """Date and time, ISO 8601."""
    source: str | None = None
    """What it was made from, such as the profile's path."""
    pair: str | None = None
    """Target and draft model."""
    target: str | None = None
    """What that target was loaded from: a folder as it was given, or a name on the hub; None for the bundled one."""
    draft: str | None = None
    target_digest: str | None = None
    """What the target's files hold; equal models have equal digests wherever they lie."""
    draft_digest: str | None = None
    dtype: str | None = None
    """Number format that both ran in."""
    machine: str | None = None
    """Processor or accelerator of the profile."""
    device: str | None = None
    """`cpu`, `cuda:0`, …"""
    threads: int | None = None
    """CPU threads of the profile."""
    rule: str | None = None
    """Verification rule whose acceptance was used."""
    lossy: bool | None = None
    """True where the text no longer follows the target's distribution under that rule; False is not said."""
    temperature: float | None = None
    """Sampling temperature of that acceptance."""
    tokens_per_step: float | None = None
    """Predicted tokens that a step yields on average."""
    step_s: float | None = None
    """Predicted seconds of a step."""
    speedup: float | None = None
    """Predicted tokens per second over those of plain decoding."""

    def __post_init__(self) -> None:
        if self.lossy is False:
            raise InvalidValueError("lossy: expected True or None. Got False: leave it out.")
        if self.threads is not None and self.threads < 1:
            raise InvalidValueError(f"threads: expected at least 1. Got {self.threads}.")
        for name in ("temperature", "tokens_per_step", "step_s", "speedup"):
            value = getattr(self, name)
            if value is None:
                continue
            if not 0 <= number(name, value) <= sys.float_info.max:
                raise InvalidValueError(f"{name}: expected a finite number of at least 0. Got {value}.")
            object.__setattr__(self, name, float(value))  # 1 and 1.0 are equal, so they have to give equal bytes
