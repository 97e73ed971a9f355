"""The profile: what was measured on one machine for one pair of models; docs/profile-file.md specifies its file."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.records.acceptance import SUMS_ROUNDING, AcceptanceTable, TextSums
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.outcomes import Outcomes
from treeopt.records.sampling import Sampling
from treeopt.trees import TokenTree

LATENCY_PARTS = ("verify", "draft", "overhead")
ACCEPTANCE = "acceptance"
IMPORTED, UNKNOWN = "imported", "unknown"
"""Stand for the device, and for texts, of a profile that another program measured and that does not say them."""
Key = TypeVar("Key", bound=Hashable)
INCLUDED = "included in the verify times"
"""Source of an overhead of 0: whoever measured the verify times took whole steps."""
_IN_WORDS = {"verify": "verify times", "draft": "draft times", "overhead": "overhead", ACCEPTANCE: "acceptance"}


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Machine(ShortRepr):
    """What the times were measured on."""

    device: str
    """`cpu`, `cuda:0`, …"""
    processor: str
    """Model name of the processor or accelerator."""
    threads: int | None
    """Threads that torch used; None where nothing was timed here."""
    system: str
    """Operating system and its release."""
    python: str
    torch: str


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Pair(ShortRepr):
    """The models that were measured."""

    target: str
    """Name or folder of the target model."""
    draft: str
    """Name or folder of the draft model."""
    dtype: str
    """Number format that both ran in, such as `float32`."""
    vocabulary: int | None = None
    """Tokens in the shared vocabulary; this and the next two are None where no model was looked at."""
    target_parameters: int | None = None
    draft_parameters: int | None = None
    target_source: str | None = None
    """What the target was loaded from: a folder as it was given, or a name on the hub; None for the bundled one."""
    draft_source: str | None = None
    target_digest: str | None = None
    """What its files hold, see `treeopt.runtime.digest`; equal models have equal digests wherever they lie."""
    draft_digest: str | None = None

    @property
    def label(self) -> str:
        """Target and draft model in words."""
        return f"{self.target} + {self.draft}"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Imported(ShortRepr):
    """One part of a profile that was measured elsewhere and read from a file."""

    what: str
    """`verify`, `draft`, `overhead` or `acceptance`."""
    source: str
    """The file and what it is, such as `costs.json (SGLang cost table)`."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RuleOverhead(ShortRepr):
    """The overhead of steps under one rule, where several were measured."""

    rule: str
    overhead: Timing


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TimedTree(ShortRepr):
    """Whole steps with one tree."""

    tree: TokenTree
    steps: Timing


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RuleSteps(ShortRepr):
    """Whole steps under one rule, with several trees."""

    rule: str
    trees: tuple[TimedTree, ...]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Disturbance(ShortRepr):
    """What other programs did to the times of one condition.

    Raises InvalidValueError for shares that are none, or one of the processors without a disturbed call.
    """

    calls: float
    """Share of the timed calls that were made while other programs kept this one from the processors."""
    samples: float
    """Share of the samples kept here that are of such calls: 0 where all of those were left out."""
    processors: float | None = None
    """Share of the processors that the others used during those calls, on average; None where there are none."""

    def __post_init__(self) -> None:
        for name in ("calls", "samples", "processors"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise InvalidValueError(f"{name}: expected a share from 0 to 1. Got {share:g}.")
        if (self.processors is None) != (self.calls == 0) or (self.samples > 0 and self.calls == 0):
            raise InvalidValueError("processors, samples: expected where calls are disturbed, and only there.")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class StepLatency(ShortRepr):
    """What a step is made of, at one context length and batch size.

    Raises InvalidValueError when a rule's overhead is given twice, a part is said to be imported twice, or a limit
    lies within what was timed.
    """

    _shown: ClassVar[tuple[str, ...]] = ("context_tokens", "batch_size", "sampled", "verify", "draft")
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
    sampled: bool | None = None
    """Whether the timed steps sampled above temperature 0 (True) or decoded greedily (False); None is not said."""
    imported: tuple[Imported, ...] = ()
    """Which of `verify`, `draft` and `overhead` were measured elsewhere; all others were measured here."""
    limit_tokens: int | None = None
    """The smallest verification pass that memory did not suffice for; None where it sufficed for all."""
    steps: tuple[RuleSteps, ...] = ()
    """The whole steps that the overheads were taken from, rule by rule, where they are known."""
    disturbance: Disturbance | None = None
    """What other programs did to the times; None where nobody looked."""

    def __post_init__(self) -> None:
        check_imported(self.imported, LATENCY_PARTS)
        check_limit(self.limit_tokens, self.verify)
        rules = [each.rule for each in self.rule_overheads]
        if twice := [rule for rule in rules if rules.count(rule) > 1]:
            raise InvalidValueError(f"rule_overheads: expected each rule once. Got {twice[0]!r:.60} twice.")

    def overhead_of(self, rule: str) -> Timing:
        """Return the overhead of steps under a rule: its own where that was measured, or else `overhead`."""
        return next((each.overhead for each in self.rule_overheads if each.rule == rule), self.overhead)

    def steps_of(self, rule: str) -> tuple[TimedTree, ...]:
        """Return the whole steps timed under a rule, those of the first where it has none, or none at all."""
        known = {each.rule: each.trees for each in self.steps}
        return known.get(rule, next(iter(known.values()), ()))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredAcceptance(ShortRepr):
    """The acceptance of one verification rule at one temperature.

    Raises InvalidValueError when the sums over texts are not those of the table, or the import is told twice.
    """

    rule: str
    temperature: float
    top_p: float
    prompts: int | None
    """Prompts whose continuations were measured; None where an imported table does not say."""
    positions: int | None
    """Generated positions that were measured; None likewise."""
    table: AcceptanceTable
    texts: TextSums | None = None
    """What the table was made of, text by text; None where only the table is known."""
    top_k: int = 0
    """Tokens of the target's law that sampling kept; 0 is all."""
    draft_sampling: Sampling | None = None
    """The law that children were drawn from; None is the target's temperature and all tokens."""
    imported: tuple[Imported, ...] = ()
    """Where `acceptance` was read from, if it was measured elsewhere."""
    outcomes: Outcomes | None = None
    """What came of every position, text by text; for `traversal` of the counts that its table was built on."""

    @property
    def sampling(self) -> Sampling:
        """How the target's tokens were sampled."""
        return Sampling(self.temperature, self.top_p, self.top_k)

    def __post_init__(self) -> None:
        check_imported(self.imported, (ACCEPTANCE,))
        texts = 0 if self.texts is None else len(self.texts.reached)
        if self.outcomes is not None and len(self.outcomes.ranks) != texts:
            raise InvalidValueError(
                f"outcomes: expected those of {texts} texts, as many as `texts` has. Got {len(self.outcomes.ranks)}."
            )
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
    latencies: tuple[StepLatency, ...]
    acceptances: tuple[MeasuredAcceptance, ...]

    def __post_init__(self) -> None:
        if not self.latencies or not self.acceptances:
            raise InvalidValueError("profile: expected at least one latency and one acceptance.")
        check_conditions(self.latencies)
        check_rules(self.acceptances)

    @classmethod
    def load(cls, path: Path | str) -> "Profile":
        """Read a profile file.

        Raises FormatError naming the file, the field and the reason, TreeoptError when it cannot be read.
        """
        from treeopt.records import profile_file

        return profile_file.load(path)

    def save(self, path: Path | str) -> None:
        """Write the profile file whole or not at all; '-' is standard output."""
        from treeopt.records import profile_file

        profile_file.save(self, path)

    def latency(self, *, context_tokens: int | None = None, batch_size: int = 1) -> StepLatency:
        """Return the latency of one condition; without a context length, that of the first measured.

        Raises InfeasibleError naming the conditions that were measured.
        """
        for latency in self.latencies:
            if latency.batch_size == batch_size and context_tokens in (None, latency.context_tokens):
                return latency
        known = ", ".join(f"{item.context_tokens} tokens x {item.batch_size}" for item in self.latencies)
        context = "" if context_tokens is None else f"context {context_tokens} tokens x "
        raise InfeasibleError(f"{context}batch {batch_size} was not measured. Measured: {known}.")

    def latencies_at(self, temperature: float) -> tuple[StepLatency, ...]:
        """Return the latencies whose steps were timed decoding greedily or sampling, as a temperature needs it.

        Those that do not say serve either; where none was timed that way, all are returned.
        """
        fitting = tuple(each for each in self.latencies if each.sampled in (None, temperature > 0))
        return fitting or self.latencies

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


def check_conditions(latencies: Sequence[StepLatency]) -> None:
    """Raise InvalidValueError for a condition that was measured twice, of which only one would be looked at."""
    twice = _repeated((each.context_tokens, each.batch_size, each.sampled) for each in latencies)
    if twice is not None:
        context_tokens, batch_size, sampled = twice
        way = {None: "", True: ", sampled", False: ", greedy"}[sampled]
        raise InvalidValueError(
            f"expected each condition once. Got {context_tokens} tokens x {batch_size}{way} twice: remove one."
        )


def check_rules(acceptances: Sequence[MeasuredAcceptance]) -> None:
    """Raise InvalidValueError for a rule that was measured twice with one way of sampling, of whatever one source."""
    twice = _repeated(
        (each.rule, each.temperature, each.top_p, each.top_k, each.draft_sampling, each.imported)
        for each in acceptances
    )
    if twice is not None:
        raise InvalidValueError(
            f"expected each rule and sampling once. Got {twice[0]!r:.60} at temperature {twice[1]:g} twice: remove one."
        )


def _repeated(keys: Iterable[Key]) -> Key | None:
    """Return the first key that appears again, None where each appears once."""
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


def check_limit(limit_tokens: int | None, verify: LatencyTable) -> None:
    """Raise InvalidValueError for a limit that lies within what was timed."""
    if limit_tokens is not None and limit_tokens <= verify.max_tokens:
        raise InvalidValueError(f"limit_tokens: expected more than {verify.max_tokens}, timed. Got {limit_tokens}.")


def check_imported(imported: Sequence[Imported], parts: Sequence[str]) -> None:
    """Raise InvalidValueError for a part that cannot be imported there, or is named twice."""
    names = [each.what for each in imported]
    for name in names:
        if name not in parts or names.count(name) > 1:
            raise InvalidValueError(f"imported: expected {', '.join(parts)}, each at most once. Got {name!r:.60}.")


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
