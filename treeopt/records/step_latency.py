"""The parts of a step, timed at one context length and batch size."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.serialization import in_file, rounded
from treeopt.records.latency import LatencyTable, Timing, read_difference, read_samples
from treeopt.tabular import Row, Tabular
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import TREE

SAMPLING_NAMES = {True: "sampled", False: "greedy"}
"""Values of the file's `timed`, by the record's `sampled`."""
LATENCY_PARTS = ("verify", "draft", "overhead")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Imported(ShortRepr):
    """A part of a profile that was imported from another program's file."""

    what: str
    """`verify`, `draft`, `overhead` or `acceptance`."""
    source: str
    """File and format, such as `costs.json (SGLang cost table)`."""


def _read_overhead(fields: Fields, name: str) -> Timing:
    """Read a mapping with a difference of times, which may be negative."""
    mapping = fields.mapping(name)
    overhead = read_difference(mapping, name)
    mapping.end()
    return overhead


def _read_seconds(fields: Fields, name: str) -> Timing:
    return fields.build(name, Timing, read_samples(fields, name))


def _serialize_samples(timing: Timing) -> list[Any]:
    return rounded(timing.samples_s)


def _round_share(share: float) -> float:
    return float(f"{share:.6g}")


def _read_sampled(fields: Fields, name: str) -> bool:
    timed = fields.text(name)
    if timed not in SAMPLING_NAMES.values():
        raise fields.error(name, f"expected {' or '.join(SAMPLING_NAMES.values())}. Got {timed!r:.60}.")
    return timed == SAMPLING_NAMES[True]


OVERHEAD = in_file(read=_read_overhead)
HOST = in_file("host_s", read=_read_seconds, write=_serialize_samples)
SAMPLED = in_file("timed", read=_read_sampled, write=SAMPLING_NAMES.__getitem__)
"""The file forms of overheads, of host seconds, and of whether the timed steps sampled."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RuleOverhead(ShortRepr):
    """The overhead of steps under one rule."""

    rule: str
    overhead: Timing = field(metadata=in_file(inline=True, read=read_difference))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TimedTree(ShortRepr):
    """Step times with one tree."""

    tree: TokenTree = field(metadata=TREE)
    steps: Timing = field(metadata=in_file(inline=True))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RuleSteps(ShortRepr):
    """Step times under one rule with several trees."""

    rule: str
    trees: tuple[TimedTree, ...]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Interference(ShortRepr):
    """Interference of other programs with the timings at one operating point.

    Raises InvalidValueError for shares outside 0 to 1, and for a share of processors without affected calls.
    """

    calls: float = field(metadata=in_file(write=_round_share, most=1.0))
    """Share of the timed calls that competed with other programs for processors."""
    samples: float = field(metadata=in_file(write=_round_share, most=1.0))
    """Share of the profile's samples from such calls; 0 if all were left out."""
    processors: float | None = field(default=None, metadata=in_file(write=_round_share, most=1.0))
    """Mean share of processors that other programs used during such calls; None without such calls."""

    def __post_init__(self) -> None:
        for name in ("calls", "samples", "processors"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise InvalidValueError(f"{name}: expected a share from 0 to 1. Got {share:g}.")
        if (self.processors is None) != (self.calls == 0) or (self.samples > 0 and self.calls == 0):
            raise InvalidValueError("processors, samples: expected where calls are disturbed, and only there.")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class StepLatency(ShortRepr, Tabular):
    """The timed parts of a step at one context length and batch size.

    Raises InvalidValueError for duplicate rules or imports, and for a limit within the timed range.
    """

    _shown: ClassVar[tuple[str, ...]] = ("context_tokens", "batch_size", "sampled", "verify", "draft")
    context_tokens: int = field(metadata=in_file(least=0))
    """Cached tokens during timing."""
    batch_size: int
    verify: LatencyTable
    """Target pass by number of verified nodes, until the host has the result."""
    draft: LatencyTable | None = None
    """Drafting one level by number of parent nodes, or, if `per_block`, all levels by their number; None without a draft
    model."""
    per_block: bool = field(default=False, metadata=in_file(optional=True))
    """Whether one pass drafts all levels, as with Medusa heads and block drafters."""
    overhead: Timing | None = field(default=None, metadata=OVERHEAD)
    """Step time other than passes: the draft model's pass over accepted tokens, and host overhead."""
    rule_overheads: tuple[RuleOverhead, ...] = ()
    """By rule, if measured separately."""
    host: Timing | None = field(default=None, metadata=HOST)
    """Host overhead after the target's pass: acceptance, compaction of both caches, bookkeeping."""
    sampled: bool | None = field(default=None, metadata=SAMPLED)
    """Whether the timed steps sampled above temperature 0 or decoded greedily; None if unknown."""
    steps: tuple[RuleSteps, ...] = ()
    """The step times that the overheads were computed from, by rule."""
    limit_tokens: int | None = field(default=None, metadata=in_file(least=2))
    """The smallest verification pass that ran out of memory; None if none did."""
    interference: Interference | None = None
    """None if it was not monitored."""
    imported: tuple[Imported, ...] = ()
    """Imported parts among `verify`, `draft` and `overhead`."""

    def __post_init__(self) -> None:
        check_imported(self.imported, LATENCY_PARTS)
        if (self.draft is None) != (self.overhead is None):
            raise InvalidValueError("overhead: expected with draft, and only there.", field="overhead")
        if self.draft is None and (self.rule_overheads or self.steps or self.host or self.per_block):
            raise InvalidValueError(
                "rule_overheads, host_s, steps, per_block: expected with draft, and only there.", field="draft"
            )
        if self.limit_tokens is not None and self.limit_tokens <= self.verify.max_tokens:
            raise InvalidValueError(
                f"limit_tokens: expected more than {self.verify.max_tokens}, timed. Got {self.limit_tokens}.",
                field="limit_tokens",
            )
        if (rule := find_duplicate(item.rule for item in self.rule_overheads)) is not None:
            raise InvalidValueError(
                f"rule_overheads: expected each rule once. Got {rule!r:.60} twice.", field="rule_overheads"
            )

    def overhead_of(self, rule: str) -> Timing | None:
        """Return the rule's overhead, by default `overhead`."""
        return next((item.overhead for item in self.rule_overheads if item.rule == rule), self.overhead)

    def steps_of(self, rule: str) -> tuple[TimedTree, ...]:
        """Return the step times under a rule, by default those of the first rule."""
        trees = {item.rule: item.trees for item in self.steps}
        return trees.get(rule, next(iter(trees.values()), ()))

    def to_records(self) -> list[Row]:
        """Return one row per measured time of verification, drafting and overhead."""
        point = {"context_tokens": self.context_tokens, "batch_size": self.batch_size, "sampled": self.sampled}
        overheads: list[tuple[str | None, Timing]] = [(item.rule, item.overhead) for item in self.rule_overheads]
        if not overheads and self.overhead is not None:
            overheads = [(None, self.overhead)]
        return [
            *({**point, "part": "verify", "rule": None, **row} for row in self.verify.to_records()),
            *(
                {**point, "part": "draft", "rule": None, **row}
                for row in (self.draft.to_records() if self.draft else ())
            ),
            *({**point, "part": "overhead", "rule": rule, "tokens": None, **timing.row} for rule, timing in overheads),
        ]


def check_conditions(latencies: Sequence[StepLatency]) -> None:
    """Raise InvalidValueError for two latencies of the same context length, batch size and sampling."""
    duplicate = find_duplicate((item.context_tokens, item.batch_size, item.sampled) for item in latencies)
    if duplicate is not None:
        context_tokens, batch_size, sampled = duplicate
        mode = "" if sampled is None else f", {SAMPLING_NAMES[sampled]}"
        raise InvalidValueError(
            f"expected each condition once. Got {context_tokens} tokens x {batch_size}{mode} twice: remove one.",
            field="latency",
        )


def find_duplicate(keys: Iterable[Key]) -> Key | None:
    """Return the first key that appears twice, or None."""
    seen: set[Key] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


def check_imported(imported: Sequence[Imported], parts: Sequence[str]) -> None:
    """Raise InvalidValueError for a part that is not in `parts`, or is listed twice."""
    names = [item.what for item in imported]
    for name in names:
        if name not in parts or names.count(name) > 1:
            raise InvalidValueError(
                f"imported: expected {', '.join(parts)}, each at most once. Got {name!r:.60}.", field="imported"
            )
