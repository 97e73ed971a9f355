"""The profile: what was measured on one machine for one pair of models; docs/profile-file.md specifies its file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from treeopt.acceptance import SUMS_ROUNDING, AcceptanceTable, TextSums
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.latency import LatencyTable, Timing
from treeopt.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the times were measured on."""

    device: str
    """`cpu`, `cuda:0`, …"""
    processor: str
    """Model name of the processor or accelerator."""
    threads: int
    """Threads that torch used."""
    system: str
    """Operating system and its release."""
    python: str
    torch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The models that were measured."""

    target: str
    """Name or folder of the target model."""
    draft: str
    """Name or folder of the draft model."""
    dtype: str
    """Number format that both ran in, such as `float32`."""
    vocabulary: int
    """Tokens in the shared vocabulary."""
    target_parameters: int
    draft_parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOverhead:
    """The overhead of steps under one rule, where several were measured."""

    rule: str
    overhead: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLatency:
    """What a step is made of, at one context length and batch size.

    Raises InvalidValueError when a rule's overhead is given twice.
    """

    context_tokens: int
    """Tokens in the cache while the times were taken."""
    batch_size: int
    verify: LatencyTable
    """Target pass against the nodes verified, until the answer is known to the host."""
    draft: LatencyTable
    """Drafting one level against the internal nodes fed, their children drawn."""
    overhead: Timing
    """The rest of a whole step: choosing, compacting both caches, bookkeeping."""
    rule_overheads: tuple[RuleOverhead, ...] = ()
    """That of single rules, where it was measured rule by rule."""

    def __post_init__(self) -> None:
        rules = [each.rule for each in self.rule_overheads]
        if twice := [rule for rule in rules if rules.count(rule) > 1]:
            raise InvalidValueError(f"rule_overheads: expected each rule once. Got {twice[0]!r:.60} twice.")

    def overhead_of(self, rule: str) -> Timing:
        """Return the overhead of steps under a rule: its own where that was measured, or else `overhead`."""
        return next((each.overhead for each in self.rule_overheads if each.rule == rule), self.overhead)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAcceptance:
    """The acceptance of one verification rule at one temperature.

    Raises InvalidValueError when the sums over texts are not those of the table.
    """

    rule: str
    temperature: float
    top_p: float
    prompts: int
    """Prompts whose continuations were measured."""
    positions: int
    """Generated positions that were measured."""
    table: AcceptanceTable
    texts: TextSums | None = None
    """What the table was made of, text by text; None where only the table is known."""
    top_k: int = 0
    """Tokens of the target's law that sampling kept; 0 is all."""
    draft_sampling: Sampling | None = None
    """The law that children were drawn from; None is the target's temperature and all tokens."""

    def __post_init__(self) -> None:
        if self.texts is None:
            return
        p = self.texts.p
        if p.shape != self.table.p.shape:
            raise InvalidValueError(f"texts: expected sums for p in shape {self.table.p.shape}. Got {p.shape}.")
        if np.abs(p - self.table.p).max() > SUMS_ROUNDING:
            where = tuple(np.argwhere(np.abs(p - self.table.p) > SUMS_ROUNDING)[0].tolist())
            raise InvalidValueError(
                f"texts: expected accepted / reached, over all texts, to be p{list(where)} = {self.table.p[where]:.6g}. "
                f"Got {p[where]:.6g}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything measured, with its conditions; a profile never holds a number that was not measured.

    Raises InvalidValueError when there is no latency or no acceptance.
    """

    created: str
    """Date and time, ISO 8601."""
    tool: str
    """Program and version that measured."""
    machine: Machine
    pair: Pair
    latencies: tuple[StepLatency, ...]
    acceptances: tuple[MeasuredAcceptance, ...]

    def __post_init__(self) -> None:
        if not self.latencies or not self.acceptances:
            raise InvalidValueError("profile: expected at least one latency and one acceptance.")

    @classmethod
    def load(cls, path: Path | str) -> "Profile":
        """Read a profile file.

        Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read.
        """
        from treeopt import profile_file

        return profile_file.load(path)

    def save(self, path: Path | str) -> None:
        """Write the profile file whole or not at all; '-' is standard output."""
        from treeopt import profile_file

        profile_file.save(self, path)

    def latency(self, *, context_tokens: int | None = None, batch_size: int = 1) -> StepLatency:
        """Return the latency of one condition; without a context length, that of the first measured.

        Raises InfeasibleError naming the conditions that were measured.
        """
        for latency in self.latencies:
            if latency.batch_size == batch_size and context_tokens in (None, latency.context_tokens):
                return latency
        known = ", ".join(f"{item.context_tokens} tokens x {item.batch_size}" for item in self.latencies)
        raise InfeasibleError(
            f"context {context_tokens} tokens x batch {batch_size} was not measured. Measured: {known}."
        )

    def acceptance(self, *, rule: str | None = None, temperature: float | None = None) -> MeasuredAcceptance:
        """Return the acceptance of one rule and temperature; without them, the first measured.

        Raises InfeasibleError naming the conditions that were measured.
        """
        if matching := self.acceptances_of(rule=rule, temperature=temperature):
            return matching[0]
        known = ", ".join(f"{item.rule} at {item.temperature:g}" for item in self.acceptances)
        raise InfeasibleError(f"rule {rule} at temperature {temperature} was not measured. Measured: {known}.")

    def acceptances_of(self, *, rule: str | None, temperature: float | None) -> tuple[MeasuredAcceptance, ...]:
        """Return all acceptances of a rule and a temperature; None stands for any."""
        return tuple(
            acceptance
            for acceptance in self.acceptances
            if rule in (None, acceptance.rule) and temperature in (None, acceptance.temperature)
        )
