"""What a step is made of, measured at one context length and batch size, and the whole steps that say so."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.record_form import in_file, rounded
from treeopt.records.latency import LatencyTable, Timing
from treeopt.tabular import Row, Tabular
from treeopt.trees.token_tree import TokenTree

TIMED = {True: "sampled", False: "greedy"}
"""How the timed steps chose tokens, by the record's `sampled`."""
LATENCY_PARTS = ("verify", "draft", "overhead")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Imported(ShortRepr):
    """One part of a profile that was measured elsewhere and read from a file."""

    what: str
    """`verify`, `draft`, `overhead` or `acceptance`."""
    source: str
    """The file and what it is, such as `costs.json (SGLang cost table)`."""


def _overhead(fields: Fields, name: str) -> Timing:
    """Return a difference of times, which may be negative, out of the fields beside it."""
    del name
    return Timing.from_fields(fields, allow_negative=True)


def read_overhead(fields: Fields, name: str) -> Timing:
    """Return a difference of times, which may be negative, out of a mapping."""
    mapping = fields.mapping(name)
    overhead = _overhead(mapping, name)
    mapping.end()
    return overhead


def read_samples(fields: Fields, name: str) -> Timing:
    """Return the times that `samples_s` holds."""
    del name
    return Timing.from_fields(fields)


def read_seconds(fields: Fields, name: str) -> Timing:
    """Return the times that a list holds."""
    return fields.build(name, Timing, fields.numbers(name))


def samples(timing: Timing) -> list[Any]:
    """Return the seconds of each sample, as files hold them."""
    return rounded(timing.samples_s)


def read_tree(fields: Fields, name: str) -> TokenTree:
    """Return the tree that a list of parents says."""
    return fields.build(name, TokenTree, fields.integers(name))


def parents(tree: TokenTree) -> list[int]:
    """Return each node's parent, as files hold them."""
    numbers: list[int] = tree.parents.tolist()
    return numbers


def _few_digits(share: float) -> float:
    return float(f"{share:.6g}")


def read_timed(fields: Fields, name: str) -> bool:
    """Return whether timed steps sampled."""
    timed = fields.text(name)
    if timed not in TIMED.values():
        raise fields.error(name, f"expected {' or '.join(TIMED.values())}. Got {timed!r:.60}.")
    return timed == TIMED[True]


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RuleOverhead(ShortRepr):
    """The overhead of steps under one rule, where several were measured."""

    rule: str
    overhead: Timing = field(metadata=in_file("samples_s", read=_overhead, write=samples))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TimedTree(ShortRepr):
    """Whole steps with one tree."""

    tree: TokenTree = field(metadata=in_file("parents", read=read_tree, write=parents))
    steps: Timing = field(metadata=in_file("samples_s", read=read_samples, write=samples))


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

    calls: float = field(metadata=in_file(write=_few_digits, most=1.0))
    """Share of the timed calls that were made while other programs kept this one from the processors."""
    samples: float = field(metadata=in_file(write=_few_digits, most=1.0))
    """Share of the samples kept here that are of such calls: 0 where all of those were left out."""
    processors: float | None = field(default=None, metadata=in_file(write=_few_digits, most=1.0))
    """Share of the processors that the others used during those calls, on average; None where there are none."""

    def __post_init__(self) -> None:
        for name in ("calls", "samples", "processors"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise InvalidValueError(f"{name}: expected a share from 0 to 1. Got {share:g}.")
        if (self.processors is None) != (self.calls == 0) or (self.samples > 0 and self.calls == 0):
            raise InvalidValueError("processors, samples: expected where calls are disturbed, and only there.")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class StepLatency(ShortRepr, Tabular):
    """What a step is made of, at one context length and batch size.

    Raises InvalidValueError when a rule's overhead is given twice, a part is said to be imported twice, or a limit
    lies within what was timed.
    """

    _shown: ClassVar[tuple[str, ...]] = ("context_tokens", "batch_size", "sampled", "verify", "draft")
    context_tokens: int = field(metadata=in_file(least=0))
    """Tokens in the cache while the times were taken."""
    batch_size: int
    verify: LatencyTable
    """Target pass against the nodes verified, until the answer is known to the host."""
    draft: LatencyTable | None = None
    """Drafting one level against the internal nodes fed, their children sampled; None without a draft model.

    Where `per_block`, drafting all levels at once against their number.
    """
    per_block: bool = field(default=False, metadata=in_file(optional=True))
    """Whether one pass drafts all levels, as Medusa's heads and block drafters do."""
    overhead: Timing | None = field(default=None, metadata=in_file(read=read_overhead))
    """Seconds of a step beyond its passes: the draft model reading accepted tokens, and the host's work."""
    rule_overheads: tuple[RuleOverhead, ...] = ()
    """That of single rules, where it was measured rule by rule."""
    host: Timing | None = field(default=None, metadata=in_file("host_s", read=read_seconds, write=samples))
    """The host's work alone, after the target's pass: accepting, compacting both caches, bookkeeping."""
    sampled: bool | None = field(default=None, metadata=in_file("timed", read=read_timed, write=TIMED.__getitem__))
    """Whether the timed steps sampled above temperature 0 (True) or decoded greedily (False); None is not said."""
    steps: tuple[RuleSteps, ...] = ()
    """The whole steps that the overheads were taken from, rule by rule, where they are known."""
    limit_tokens: int | None = field(default=None, metadata=in_file(least=2))
    """The smallest verification pass that memory did not suffice for; None where it sufficed for all."""
    disturbance: Disturbance | None = field(default=None, metadata=in_file("disturbed"))
    """What other programs did to the times; None where nobody looked."""
    imported: tuple[Imported, ...] = ()
    """Which of `verify`, `draft` and `overhead` were measured elsewhere; all others were measured here."""

    def __post_init__(self) -> None:
        check_imported(self.imported, LATENCY_PARTS)
        if (self.draft is None) != (self.overhead is None):
            raise InvalidValueError("overhead: expected with draft, and only there.", field="overhead")
        if self.draft is None and (self.rule_overheads or self.steps or self.host or self.per_block):
            raise InvalidValueError(
                "rule_overheads, host_s, steps, per_block: expected with draft, and only there.", field="draft"
            )
        check_limit(self.limit_tokens, self.verify)
        rules = [each.rule for each in self.rule_overheads]
        if twice := [rule for rule in rules if rules.count(rule) > 1]:
            raise InvalidValueError(
                f"rule_overheads: expected each rule once. Got {twice[0]!r:.60} twice.", field="rule_overheads"
            )

    def overhead_of(self, rule: str) -> Timing | None:
        """Return the overhead of steps under a rule: its own where that was measured, or else `overhead`."""
        return next((each.overhead for each in self.rule_overheads if each.rule == rule), self.overhead)

    def steps_of(self, rule: str) -> tuple[TimedTree, ...]:
        """Return the whole steps timed under a rule, those of the first where it has none, or none at all."""
        known = {each.rule: each.trees for each in self.steps}
        return known.get(rule, next(iter(known.values()), ()))

    def to_records(self) -> list[Row]:
        """Return a row for every measured time: of verification and drafting by tokens, and of the overhead of a step."""
        where = {"context_tokens": self.context_tokens, "batch_size": self.batch_size, "sampled": self.sampled}
        overheads: list[tuple[str | None, Timing]] = [(each.rule, each.overhead) for each in self.rule_overheads]
        if not overheads and self.overhead is not None:
            overheads = [(None, self.overhead)]
        return [
            *({**where, "part": "verify", "rule": None, **row} for row in self.verify.to_records()),
            *(
                {**where, "part": "draft", "rule": None, **row}
                for row in (self.draft.to_records() if self.draft else ())
            ),
            *({**where, "part": "overhead", "rule": rule, "tokens": None, **each.row} for rule, each in overheads),
        ]


def check_conditions(latencies: Sequence[StepLatency]) -> None:
    """Raise InvalidValueError for a condition that was measured twice, of which only one would be looked at."""
    twice = first_repeated((each.context_tokens, each.batch_size, each.sampled) for each in latencies)
    if twice is not None:
        context_tokens, batch_size, sampled = twice
        way = {None: "", True: ", sampled", False: ", greedy"}[sampled]
        raise InvalidValueError(
            f"expected each condition once. Got {context_tokens} tokens x {batch_size}{way} twice: remove one.",
            field="latency",
        )


def first_repeated(keys: Iterable[Key]) -> Key | None:
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
        raise InvalidValueError(
            f"limit_tokens: expected more than {verify.max_tokens}, timed. Got {limit_tokens}.", field="limit_tokens"
        )


def check_imported(imported: Sequence[Imported], parts: Sequence[str]) -> None:
    """Raise InvalidValueError for a part that cannot be imported there, or is named twice."""
    names = [each.what for each in imported]
    for name in names:
        if name not in parts or names.count(name) > 1:
            raise InvalidValueError(
                f"imported: expected {', '.join(parts)}, each at most once. Got {name!r:.60}.", field="imported"
            )
