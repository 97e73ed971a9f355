"""The profile: what was measured on one machine for one pair of models; docs/reference/profile-file.md specifies its file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.fields import Fields, check_format
from treeopt.files.record_form import in_file, read_record, written_record
from treeopt.files.whole_files import read_text, write_text
from treeopt.records.engine import ChainLatency, EngineRun
from treeopt.records.latency import PrefillLatency
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance, nothing_drafted
from treeopt.records.measured_drafter import MeasuredDrafter, check_drafters
from treeopt.records.operating_point import OperatingPoint, operating_point
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.records.step_latency import (
    LATENCY_PARTS,
    Imported,
    StepLatency,
    check_conditions,
    first_repeated,
)
from treeopt.tabular import Row, Tabular

FORMAT = "treeopt-profile"
VERSION = 1
MAX_BYTES = 32_000_000
IMPORTED, UNKNOWN = "imported", "unknown"
"""Stand for the device, and for texts, of a profile that another program measured and that does not say them."""
INCLUDED = "included in the verify times"
"""Source of an overhead of 0: whoever measured the verify times took whole steps."""
_IN_WORDS = {"verify": "verify times", "draft": "draft times", "overhead": "overhead", ACCEPTANCE: "acceptance"}


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Profile(ShortRepr, Tabular):
    """Everything measured, with its conditions; a profile never holds a number that nobody measured.

    Raises InvalidValueError when there is no latency or no acceptance, or two are of the same conditions.
    """

    _shown: ClassVar[tuple[str, ...]] = (
        "pair.target",
        "pair.draft",
        "pair.dtype",
        "machine.processor",
        "machine.threads",
        "latencies",
        "acceptances",
    )
    created: str
    """Date and time, ISO 8601."""
    tool: str
    """Program and version that measured."""
    machine: Machine
    pair: Pair
    engine: EngineRun | None = None
    """The engine that was measured; None for treeopt's own decoder."""
    latencies: tuple[StepLatency, ...] = field(default=(), metadata=in_file("latency"))
    """Seconds of passes and steps under each condition; none of an engine, whose passes nobody sees."""
    chain_latencies: tuple[ChainLatency, ...] = field(default=(), metadata=in_file("chain_latency"))
    """Seconds of an engine's whole steps under each condition."""
    prefill: PrefillLatency | None = None
    """Seconds of reading prompts; None where nobody timed them, and of an engine, whose chains have their own."""
    acceptances: tuple[MeasuredAcceptance, ...] = field(default=(), metadata=in_file("acceptance"))
    """Of the draft model; none without one."""
    drafters: tuple[MeasuredDrafter, ...] = ()
    """Other drafters than the draft model, whose times and acceptance the profile itself contains."""

    def __post_init__(self) -> None:
        if bool(self.latencies) == bool(self.chain_latencies):
            raise InvalidValueError("profile: expected at least one latency.", field="latency")
        drafting = [bool(self.acceptances), *(each.draft is not None for each in self.step_latencies)]
        if self.engine is None:
            drafting.append(self.pair.draft is not None)
        if any(drafting) != all(drafting):
            raise InvalidValueError(
                "expected a draft model in pair, its times in every latency and its acceptance, or none of them.",
                field="acceptance",
            )
        if (self.engine is None) != (not self.chain_latencies):
            raise InvalidValueError("engine: expected with chain_latency, and only there.", field="engine")
        if self.prefill is not None and self.chain_latencies:
            raise InvalidValueError("prefill: expected beside latency. Got an engine's.", field="prefill")
        if self.drafters and self.chain_latencies:
            raise InvalidValueError("drafters: expected beside latency. Got an engine's.", field="drafters")
        if self.engine is not None and self.by_context:
            raise InvalidValueError("expected no context_tokens of an engine's: leave it out.", field="acceptance")
        if self.prefill is not None and (self.prefill.draft is not None) != self.has_draft_model:
            raise InvalidValueError("prefill: expected times of the draft model where there is one.", field="prefill")
        if len({each.per_block for each in self.step_latencies}) > 1:
            raise InvalidValueError("per_block: expected the same under every condition.", field="latency")
        check_drafters(self.drafters)
        check_conditions(self.step_latencies)
        check_rules(self.acceptances)

    @classmethod
    def load(cls, path: Path | str) -> "Profile":
        """Read a profile file.

        Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read.
        """
        from treeopt.files.yaml_file import parse_yaml  # here, because yaml is slow to import

        fields = Fields(path, parse_yaml(path, read_text(path, limit_bytes=MAX_BYTES), kind="a profile"))
        check_format(fields, FORMAT, VERSION)
        if "chain_latency" not in fields:
            fields.require("latency")
        return read_record(fields, cls)

    def save(self, path: Path | str) -> None:
        """Write the profile file whole or not at all; '-' is standard output."""
        from treeopt.files.yaml_file import yaml_text

        write_text(path, yaml_text({"format": FORMAT, "version": VERSION, **written_record(self)}))

    def to_records(self) -> list[Row]:
        """Return a row for every measured time under every condition; `tokens` of an engine's steps are its draft tokens.

        `acceptances` have tables of their own, and so have `latencies`.
        """
        return [row for each in self.latencies or self.chain_latencies for row in each.to_records()]

    def _shown_rows(self) -> list[Row]:
        """Return the rows of passes of 1, 2, 4, 8, … tokens, and of what has no tokens."""
        return [row for row in self.to_records() if self.chain_latencies or (row["tokens"] or 1).bit_count() == 1]

    @property
    def has_draft_model(self) -> bool:
        """Whether a draft model was measured; without one, other drafters are planned with, and plain decoding."""
        return bool(self.acceptances)

    def _of_draft_model(self, temperature: float | None) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptances of the draft model; without one, those of plain decoding, as other drafters were sampled."""
        if self.acceptances:
            return self.acceptances
        trees = [item.sampling for each in self.drafters for item in each.trees]
        decodes = [item.sampling for each in self.drafters for item in each.decodes]
        samplings = [*trees, *decodes] or [GREEDY if temperature is None else Sampling(temperature)]
        return tuple(map(nothing_drafted, dict.fromkeys(samplings)))

    @property
    def step_latencies(self) -> tuple[StepLatency, ...]:
        """Seconds of steps under each condition, of an engine as whole steps."""
        if self.engine is None or self.engine.name != IMPORTED:
            return self.latencies or tuple(each.whole_steps for each in self.chain_latencies)
        imported = tuple(Imported(what=part, source="a sweep of whole steps") for part in LATENCY_PARTS)
        return tuple(replace(each.whole_steps, imported=imported) for each in self.chain_latencies)

    def latency(self, *, context_tokens: int | None = None, batch_size: int = 1) -> StepLatency:
        """Return the latency of one condition; without a context length, that of the first measured.

        Raises InfeasibleError naming the conditions that were measured.
        """
        for latency in self.step_latencies:
            if latency.batch_size == batch_size and context_tokens in (None, latency.context_tokens):
                return latency
        known = ", ".join(f"{item.context_tokens} tokens x {item.batch_size}" for item in self.step_latencies)
        context = "" if context_tokens is None else f"context {context_tokens} tokens x "
        raise InfeasibleError(f"{context}batch {batch_size} was not measured. Measured: {known}.")

    def latencies_at(self, temperature: float) -> tuple[StepLatency, ...]:
        """Return the latencies whose steps were timed decoding greedily or sampling, as a temperature needs it.

        Those that do not say serve either; where none was timed that way, all are returned.
        """
        fitting = tuple(each for each in self.step_latencies if each.sampled in (None, temperature > 0))
        return fitting or self.step_latencies

    def at(
        self,
        context_tokens: int | None = None,
        batch_size: int | None = None,
        sampling: Sampling = GREEDY,
        *,
        extrapolate: bool = False,
    ) -> OperatingPoint:
        """Return the operating point at a context length and batch size, by default the first one measured.

        Between measured conditions every time is interpolated linearly; outside them only with `extrapolate`, along the
        line through the nearest two, or as at the nearest if there is one.

        Args:
            context_tokens: tokens in the cache.
            batch_size: sequences verified together.
            sampling: how the target's tokens are sampled; greedy and sampled steps may have been timed apart.
            extrapolate: continue beyond what was measured.

        Raises InvalidValueError for a context below 0 or a batch below 1, InfeasibleError naming what was measured.
        """
        latencies = self.latencies_at(sampling.temperature)
        return operating_point(latencies, sampling, context_tokens, batch_size, extrapolate=extrapolate)

    def acceptance(self, *, rule: str | None = None, temperature: float | None = None) -> MeasuredAcceptance:
        """Return the acceptance of one rule and temperature; without them, the first measured.

        Raises InfeasibleError naming the conditions that were measured.
        """
        if matching := self.acceptances_of(rule=rule, temperature=temperature):
            return matching[0]
        known = ", ".join(f"{item.rule} at {item.temperature:g}" for item in self._of_draft_model(temperature))
        asked = [*([] if rule is None else [f"rule {rule}"])]
        asked += [] if temperature is None else [f"temperature {temperature:g}"]
        raise InfeasibleError(f"{' at '.join(asked)} was not measured. Measured: {known}.")

    @property
    def by_context(self) -> bool:
        """Whether it is said of an acceptance at which context length it was measured."""
        return any(each.context_tokens is not None for each in self.acceptances)

    def at_contexts(self, acceptance: MeasuredAcceptance) -> tuple[MeasuredAcceptance, ...]:
        """Return what was measured like an acceptance at every context length, by rising length; else that alone."""
        alike = [each for each in self.acceptances if each.condition == acceptance.condition]
        if acceptance.context_tokens is None:
            return (acceptance,)
        return tuple(sorted(alike, key=lambda each: each.context_tokens or 0))

    def acceptances_of(self, *, rule: str | None, temperature: float | None) -> tuple[MeasuredAcceptance, ...]:
        """Return all acceptances of a rule and a temperature; None stands for any."""
        return tuple(
            acceptance
            for acceptance in self._of_draft_model(temperature)
            if rule in (None, acceptance.rule) and temperature in (None, acceptance.temperature)
        )


def check_draft_model(profile: Profile, purpose: str) -> None:
    """Raise InfeasibleError, naming what needs it, where a profile has no draft model."""
    if not profile.has_draft_model:
        raise InfeasibleError(
            f"{purpose}: expected a profile of a draft model, whose trees are compared. Got one of {profile.pair.target} "
            "alone: profile with --draft MODEL, or go on with treeopt solve, run and bench of a tree file."
        )


def check_rules(acceptances: Sequence[MeasuredAcceptance]) -> None:
    """Raise InvalidValueError for a rule that was measured twice with one way of sampling and at one context length.

    What comes of another source is another one.
    """
    twice = first_repeated((*each.condition, each.context_tokens) for each in acceptances)
    if twice is not None:
        at = "" if twice[-1] is None else f" and {twice[-1]} tokens of context"
        raise InvalidValueError(
            f"expected each rule and sampling once. Got {twice[0]!r:.60} at temperature {twice[1]:g}{at} twice: remove one.",
            field="acceptance",
        )
    somewhere = {each.condition for each in acceptances if each.context_tokens is not None}
    for each in acceptances:
        if each.context_tokens is None and each.condition in somewhere:
            raise InvalidValueError(
                f"expected context_tokens in all of {each.rule!r:.60} at temperature {each.temperature:g}, or in none: "
                "remove those that have none.",
                field="acceptance",
            )


def all_imported(latencies: Iterable[StepLatency], acceptance: MeasuredAcceptance | None) -> tuple[Imported, ...]:
    """Return what of some latencies and an acceptance was measured elsewhere, each part and source once."""
    found = [each for latency in latencies for each in latency.imported]
    return tuple(dict.fromkeys([*found, *(() if acceptance is None else acceptance.imported)]))


def origins(latencies: Sequence[StepLatency], acceptance: MeasuredAcceptance) -> dict[str, str]:
    """Return for each part where it comes from: `measured`, or what it was imported from."""
    imported = all_imported(latencies, acceptance)
    found = {}
    for part in (*LATENCY_PARTS, ACCEPTANCE):
        sources = [each.source for each in imported if each.what == part]
        mixed = part != ACCEPTANCE and any(part not in [each.what for each in item.imported] for item in latencies)
        found[part] = ", ".join([*sources, *(["measured"] if mixed or not sources else [])])
    return found


def origins_text(latencies: Sequence[StepLatency], acceptance: MeasuredAcceptance) -> str:
    """Return the origins in one line, empty where all was measured here.

    `verify times: imported from costs.json (SGLang cost table); draft times: measured; acceptance: measured`
    """
    found = origins(latencies, acceptance)
    if set(found.values()) == {"measured"}:
        return ""
    shown = {part: origin for part, origin in found.items() if origin != INCLUDED}
    return "; ".join(
        f"{_IN_WORDS[part]}: {origin if origin == 'measured' else f'imported from {origin}'}"
        for part, origin in shown.items()
    )
