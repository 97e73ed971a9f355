"""The profile: all measurements of one pair of models on one machine. docs/reference/profile-file.md specifies the file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.atomic_files import read_text, write_text
from treeopt.files.fields import Fields, check_format
from treeopt.files.serialization import in_file, read_record, serialize_record
from treeopt.records.engine import ChainLatency, EngineRun
from treeopt.records.latency import PrefillLatency
from treeopt.records.machine import Machine, Pair
from treeopt.records.measured_acceptance import ACCEPTANCE, MeasuredAcceptance, plain_acceptance
from treeopt.records.measured_drafter import MeasuredDrafter, check_drafters
from treeopt.records.operating_point import OperatingPoint, find_operating_point
from treeopt.records.rules import LOSSY_RULES
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.records.step_latency import (
    LATENCY_PARTS,
    Imported,
    StepLatency,
    check_conditions,
    find_duplicate,
)
from treeopt.tabular import Row, Tabular

FORMAT = "treeopt-profile"
VERSION = 1
MAX_BYTES = 32_000_000
IMPORTED, UNKNOWN = "imported", "unknown"
"""Device, and other names, of an imported profile."""
INCLUDED = "included in the verify times"
"""Source of an overhead of 0 where the verify times are whole steps."""
_PART_NAMES = {"verify": "verify times", "draft": "draft times", "overhead": "overhead", ACCEPTANCE: "acceptance"}


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Profile(ShortRepr, Tabular):
    """All measurements and their conditions.

    Raises InvalidValueError without a latency or an acceptance, and for duplicates and inconsistent parts.
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
    """Program and version."""
    machine: Machine
    pair: Pair
    engine: EngineRun | None = None
    """None for treeopt's own decoder."""
    latencies: tuple[StepLatency, ...] = field(default=(), metadata=in_file("latency"))
    """Times of passes and steps; empty for an engine."""
    chain_latencies: tuple[ChainLatency, ...] = field(default=(), metadata=in_file("chain_latency"))
    """Step times of an engine."""
    prefill: PrefillLatency | None = None
    """None if not timed, and for an engine, whose `chain_latencies` contain prefill."""
    acceptances: tuple[MeasuredAcceptance, ...] = field(default=(), metadata=in_file("acceptance"))
    """Of the draft model; empty without one."""
    drafters: tuple[MeasuredDrafter, ...] = ()
    """Drafters other than the draft model."""

    def __post_init__(self) -> None:
        if bool(self.latencies) == bool(self.chain_latencies):
            raise InvalidValueError(
                "profile: expected at least one latency or chain_latency, and not both.", field="latency"
            )
        drafting = [bool(self.acceptances), *(latency.draft is not None for latency in self.step_latencies)]
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
            raise InvalidValueError(
                "prefill: expected with latency. Got it with chain_latency: remove it.", field="prefill"
            )
        if self.drafters and self.chain_latencies:
            raise InvalidValueError(
                "drafters: expected with latency. Got them with chain_latency: remove them.", field="drafters"
            )
        if self.engine is not None and self.by_context:
            raise InvalidValueError("expected no context_tokens with chain_latency: remove them.", field="acceptance")
        if self.prefill is not None and (self.prefill.draft is not None) != self.has_draft_model:
            raise InvalidValueError("prefill: expected times of the draft model where there is one.", field="prefill")
        if len({latency.per_block for latency in self.step_latencies}) > 1:
            raise InvalidValueError("per_block: expected the same under every condition.", field="latency")
        check_drafters(self.drafters)
        check_conditions(self.step_latencies)
        _check_acceptances(self.acceptances)

    @classmethod
    def load(cls, path: Path | str) -> "Profile":
        """Read a profile file.

        Raises FormatError for invalid content, TreeoptError if the file cannot be read.
        """
        from treeopt.files.yaml_file import parse_yaml  # here, because yaml is slow to import

        fields = Fields(path, parse_yaml(path, read_text(path, limit_bytes=MAX_BYTES), kind="a profile"))
        check_format(fields, FORMAT, VERSION)
        if "chain_latency" not in fields:
            fields.require("latency")
        return read_record(fields, cls)

    def save(self, path: Path | str) -> None:
        """Write the profile file atomically; '-' is standard output."""
        from treeopt.files.yaml_file import yaml_text

        write_text(path, yaml_text({"format": FORMAT, "version": VERSION, **serialize_record(self)}))

    def to_records(self) -> list[Row]:
        """Return one row per measured time; for an engine's steps, `tokens` is the number of draft tokens."""
        return [row for latency in self.latencies or self.chain_latencies for row in latency.to_records()]

    def _shown_rows(self) -> list[Row]:
        # passes of 1, 2, 4, 8, … tokens, and rows without tokens
        return [row for row in self.to_records() if self.chain_latencies or (row["tokens"] or 1).bit_count() == 1]

    @property
    def has_draft_model(self) -> bool:
        """Whether a draft model was measured."""
        return bool(self.acceptances)

    def _draft_acceptances(self, temperature: float | None) -> tuple[MeasuredAcceptance, ...]:
        """Return the draft model's acceptances; without one, those of plain decoding at the samplings of other drafters."""
        if self.acceptances:
            return self.acceptances
        trees = [item.sampling for drafter in self.drafters for item in drafter.trees]
        decodes = [item.sampling for drafter in self.drafters for item in drafter.decodes]
        samplings = [*trees, *decodes] or [GREEDY if temperature is None else Sampling(temperature)]
        return tuple(map(plain_acceptance, dict.fromkeys(samplings)))

    @property
    def step_latencies(self) -> tuple[StepLatency, ...]:
        """The latencies; for an engine, its whole steps."""
        if self.engine is None or self.engine.name != IMPORTED:
            return self.latencies or tuple(latency.whole_steps for latency in self.chain_latencies)
        imported = tuple(Imported(what=part, source="a sweep of whole steps") for part in LATENCY_PARTS)
        return tuple(replace(latency.whole_steps, imported=imported) for latency in self.chain_latencies)

    def latencies_at(self, temperature: float) -> tuple[StepLatency, ...]:
        """Return the latencies timed with greedy decoding at temperature 0, with sampling above; all if there are none."""
        matching = tuple(item for item in self.step_latencies if item.sampled in (None, temperature > 0))
        return matching or self.step_latencies

    def at(
        self,
        context_tokens: int | None = None,
        batch_size: int | None = None,
        sampling: Sampling = GREEDY,
        *,
        extrapolate: bool = False,
    ) -> OperatingPoint:
        """Return the operating point at a context length and batch size, by default the first one measured.

        Times are interpolated linearly between measured points. With `extrapolate`, they are also extrapolated, from the
        nearest two points, or constantly from a single one.

        Args:
            context_tokens: tokens in the cache.
            batch_size: sequences verified together.
            sampling: of the target; greedy and sampled steps may have separate times.
            extrapolate: allow points outside the measured range.

        Raises InvalidValueError for a context below 0 or a batch below 1, InfeasibleError outside the measured range.
        """
        latencies = self.latencies_at(sampling.temperature)
        return find_operating_point(latencies, sampling, context_tokens, batch_size, extrapolate=extrapolate)

    def acceptance(self, *, rule: str | None = None, temperature: float | None = None) -> MeasuredAcceptance:
        """Return the first acceptance of a rule and a temperature, of a lossless rule if one was measured.

        Raises InfeasibleError if there is none.
        """
        if matching := self.acceptances_of(rule=rule, temperature=temperature):
            return next((item for item in matching if item.rule not in LOSSY_RULES), matching[0])
        conditions = [f"{item.rule} at {item.temperature:g}" for item in self._draft_acceptances(temperature)]
        measured = ", ".join(dict.fromkeys(conditions))
        requested = [] if rule is None else [f"rule {rule}"]
        if temperature is not None:
            requested.append(f"temperature {temperature:g}")
        raise InfeasibleError(f"{' at '.join(requested)} was not measured. Measured: {measured}.")

    @property
    def by_context(self) -> bool:
        """Whether acceptance was measured at context lengths."""
        return any(item.context_tokens is not None for item in self.acceptances)

    def acceptances_by_context(self, acceptance: MeasuredAcceptance) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptances of the same condition at all context lengths, in increasing order."""
        if acceptance.context_tokens is None:
            return (acceptance,)
        matching = [item for item in self.acceptances if item.condition == acceptance.condition]
        return tuple(sorted(matching, key=lambda item: item.context_tokens or 0))

    def acceptances_of(self, *, rule: str | None, temperature: float | None) -> tuple[MeasuredAcceptance, ...]:
        """Return all acceptances of a rule and a temperature; None matches any."""
        return tuple(
            acceptance
            for acceptance in self._draft_acceptances(temperature)
            if rule in (None, acceptance.rule) and temperature in (None, acceptance.temperature)
        )


def require_draft_model(profile: Profile, purpose: str) -> None:
    """Raise InfeasibleError for a profile without a draft model; `purpose` begins the message."""
    if not profile.has_draft_model:
        raise InfeasibleError(
            f"{purpose}: expected a profile of a draft model, whose trees are compared. Got one of {profile.pair.target} "
            "alone: profile with --draft MODEL, or go on with treeopt solve, run and bench of a tree file."
        )


def _check_acceptances(acceptances: Sequence[MeasuredAcceptance]) -> None:
    """Raise InvalidValueError for duplicates, and for a condition with and without context lengths."""
    duplicate = find_duplicate((*item.condition, item.context_tokens) for item in acceptances)
    if duplicate is not None:
        rule, sampling, *_, context_tokens = duplicate
        context = "" if context_tokens is None else f" and {context_tokens} tokens of context"
        raise InvalidValueError(
            f"expected each rule and sampling once. Got {rule!r:.60} at temperature {sampling.temperature:g}{context} twice: "
            "remove one.",
            field="acceptance",
        )
    by_context = {item.condition for item in acceptances if item.context_tokens is not None}
    for item in acceptances:
        if item.context_tokens is None and item.condition in by_context:
            raise InvalidValueError(
                f"expected context_tokens in all of {item.rule!r:.60} at temperature {item.temperature:g}, or in none: "
                "remove those that have none.",
                field="acceptance",
            )


def collect_imported(latencies: Iterable[StepLatency], acceptance: MeasuredAcceptance | None) -> tuple[Imported, ...]:
    """Return the distinct imports of the latencies and the acceptance."""
    imported = [item for latency in latencies for item in latency.imported]
    return tuple(dict.fromkeys([*imported, *(() if acceptance is None else acceptance.imported)]))


def trace_origins(latencies: Sequence[StepLatency], acceptance: MeasuredAcceptance) -> dict[str, str]:
    """Return the origin of each part: `measured`, or the imported source."""
    imported = collect_imported(latencies, acceptance)
    origins = {}
    for part in (*LATENCY_PARTS, ACCEPTANCE):
        sources = [item.source for item in imported if item.what == part]
        mixed = part != ACCEPTANCE and any(
            part not in [item.what for item in latency.imported] for latency in latencies
        )
        origins[part] = ", ".join([*sources, *(["measured"] if mixed or not sources else [])])
    return origins


def describe_origins(latencies: Sequence[StepLatency], acceptance: MeasuredAcceptance) -> str:
    """Return the origins in one line, parts of the same origin together; empty if all were measured here.

    `verify times: imported from costs.json (SGLang cost table); draft times, overhead, acceptance: measured`
    """
    parts_by_origin: dict[str, list[str]] = {}
    for part, origin in trace_origins(latencies, acceptance).items():
        if origin != INCLUDED:
            parts_by_origin.setdefault(origin, []).append(_PART_NAMES[part])
    if set(parts_by_origin) == {"measured"}:
        return ""
    return "; ".join(
        f"{', '.join(parts)}: {origin if origin == 'measured' else f'imported from {origin}'}"
        for origin, parts in parts_by_origin.items()
    )
