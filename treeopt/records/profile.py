"""The profile: what was measured on one machine for one pair of models; docs/profile-file.md specifies its file."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.fields import Fields, check_format
from treeopt.files.record_form import in_file, read_record, written_record
from treeopt.files.whole_files import read_text, write_text
from treeopt.records.acceptance import SUMS_ROUNDING, AcceptanceTable, TextSums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.engine import ChainCounts, ChainLatency, EngineRun, check_lengths
from treeopt.records.machine import Machine, Pair
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import (
    LATENCY_PARTS,
    Disturbance,
    Imported,
    RuleOverhead,
    RuleSteps,
    StepLatency,
    TimedTree,
    check_conditions,
    check_imported,
    check_limit,
    first_repeated,
)

__all__ = [
    "ACCEPTANCE",
    "IMPORTED",
    "INCLUDED",
    "LATENCY_PARTS",
    "UNKNOWN",
    "Disturbance",
    "Imported",
    "Machine",
    "MeasuredAcceptance",
    "Pair",
    "Profile",
    "RuleOverhead",
    "RuleSteps",
    "StepLatency",
    "TimedTree",
    "all_imported",
    "check_conditions",
    "check_imported",
    "check_limit",
    "check_rules",
    "origins",
    "origins_text",
]

FORMAT = "treeopt-profile"
VERSION = 2
"""Profiles of engines have it; others are written as version 1, which older programs read."""
MAX_BYTES = 32_000_000
ACCEPTANCE = "acceptance"
IMPORTED, UNKNOWN = "imported", "unknown"
"""Stand for the device, and for texts, of a profile that another program measured and that does not say them."""
INCLUDED = "included in the verify times"
"""Source of an overhead of 0: whoever measured the verify times took whole steps."""
_IN_WORDS = {"verify": "verify times", "draft": "draft times", "overhead": "overhead", ACCEPTANCE: "acceptance"}


def _accepted_ranks(fields: Fields, name: str) -> AcceptedRanks:
    return fields.build(name, AcceptedRanks, fields.integer_rows(name))


def _ranks(accepted_ranks: AcceptedRanks) -> list[list[int]]:
    return [ranks.tolist() for ranks in accepted_ranks.ranks]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredAcceptance(ShortRepr):
    """The acceptance of one verification rule at one temperature.

    Raises InvalidValueError when the sums over texts are not those of the table, or the import is told twice.
    """

    rule: str
    temperature: float
    top_p: float = field(metadata=in_file(most=1.0))
    top_k: int = field(default=0, metadata=in_file(least=0, optional=True))
    """Tokens of the target's distribution that sampling kept; 0 is all."""
    draft_sampling: Sampling | None = None
    """The distribution that children were sampled from; None is the target's temperature and all tokens."""
    prompts: int | None
    """Prompts whose continuations were measured; None where an imported table does not say."""
    positions: int | None
    """Generated positions that were measured; None likewise."""
    table: AcceptanceTable = field(metadata=in_file(inline=True))
    texts: TextSums | None = None
    """What the table was made of, text by text; None where only the table is known."""
    accepted_ranks: AcceptedRanks | None = field(
        default=None, metadata=in_file(name="outcomes", read=_accepted_ranks, write=_ranks)
    )
    """Of every position, text by text; for `traversal` those that its table was built on."""
    imported: tuple[Imported, ...] = ()
    """Where `acceptance` was read from, if it was measured elsewhere."""
    chains: tuple[ChainCounts, ...] = ()
    """What an engine's steps came to by draft length, where whole steps were counted; texts as in `texts`."""

    @property
    def sampling(self) -> Sampling:
        """How the target's tokens were sampled."""
        return Sampling(self.temperature, self.top_p, self.top_k)

    def __post_init__(self) -> None:
        check_imported(self.imported, (ACCEPTANCE,))
        check_lengths(self.chains)
        texts = 0 if self.texts is None else len(self.texts.reached)
        if self.accepted_ranks is not None and len(self.accepted_ranks.ranks) != texts:
            raise InvalidValueError(
                f"outcomes: expected those of {texts} texts, as many as `texts` has. Got {len(self.accepted_ranks.ranks)}.",
                field="texts",
            )
        if self.texts is None:
            return
        p = self.texts.p
        if p.shape != self.table.p.shape:
            raise InvalidValueError(
                f"texts: expected sums for p in shape {self.table.p.shape}. Got {p.shape}.", field="texts"
            )
        if np.abs(p - self.table.p).max() > SUMS_ROUNDING:
            where = tuple(np.argwhere(np.abs(p - self.table.p) > SUMS_ROUNDING)[0].tolist())
            raise InvalidValueError(
                f"texts: expected accepted / reached, over all texts, to be p{list(where)} = {self.table.p[where]:.6g}. "
                f"Got {p[where]:.6g}.",
                field="texts",
            )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Profile(ShortRepr):
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
    acceptances: tuple[MeasuredAcceptance, ...] = field(metadata=in_file("acceptance"))

    def __post_init__(self) -> None:
        if not self.acceptances or bool(self.latencies) == bool(self.chain_latencies):
            raise InvalidValueError("profile: expected at least one latency and one acceptance.")
        if (self.engine is None) != (not self.chain_latencies):
            raise InvalidValueError("engine: expected with chain_latency, and only there.", field="engine")
        check_conditions(self.step_latencies)
        check_rules(self.acceptances)

    @classmethod
    def load(cls, path: Path | str) -> "Profile":
        """Read a profile file.

        Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read.
        """
        from treeopt.files.yaml_file import parse_yaml  # here, because yaml is slow to import

        fields = Fields(path, parse_yaml(path, read_text(path, limit_bytes=MAX_BYTES), kind="a profile"))
        version = check_format(fields, FORMAT, VERSION)
        if version == 1 and "engine" in fields:
            raise fields.error("engine", "expected in version 2 and later. Got version 1: probe again.")
        if version == 1:
            fields.require("latency")
        return read_record(fields, cls)

    def save(self, path: Path | str) -> None:
        """Write the profile file whole or not at all; '-' is standard output."""
        from treeopt.files.yaml_file import yaml_text

        version = 1 if self.engine is None else VERSION
        write_text(path, yaml_text({"format": FORMAT, "version": version, **written_record(self)}))

    @property
    def step_latencies(self) -> tuple[StepLatency, ...]:
        """Seconds of steps under each condition, of an engine as whole steps."""
        return self.latencies or tuple(each.whole_steps for each in self.chain_latencies)

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

    def acceptance(self, *, rule: str | None = None, temperature: float | None = None) -> MeasuredAcceptance:
        """Return the acceptance of one rule and temperature; without them, the first measured.

        Raises InfeasibleError naming the conditions that were measured.
        """
        if matching := self.acceptances_of(rule=rule, temperature=temperature):
            return matching[0]
        known = ", ".join(f"{item.rule} at {item.temperature:g}" for item in self.acceptances)
        asked = [*([] if rule is None else [f"rule {rule}"])]
        asked += [] if temperature is None else [f"temperature {temperature:g}"]
        raise InfeasibleError(f"{' at '.join(asked)} was not measured. Measured: {known}.")

    def acceptances_of(self, *, rule: str | None, temperature: float | None) -> tuple[MeasuredAcceptance, ...]:
        """Return all acceptances of a rule and a temperature; None stands for any."""
        return tuple(
            acceptance
            for acceptance in self.acceptances
            if rule in (None, acceptance.rule) and temperature in (None, acceptance.temperature)
        )


def check_rules(acceptances: Sequence[MeasuredAcceptance]) -> None:
    """Raise InvalidValueError for a rule that was measured twice with one way of sampling, of whatever one source."""
    twice = first_repeated(
        (each.rule, each.temperature, each.top_p, each.top_k, each.draft_sampling, each.imported)
        for each in acceptances
    )
    if twice is not None:
        raise InvalidValueError(
            f"expected each rule and sampling once. Got {twice[0]!r:.60} at temperature {twice[1]:g} twice: remove one.",
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
