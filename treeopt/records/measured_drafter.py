"""Measurements of one drafter other than the draft model.

A drafter of static trees has its acceptance and drafting times, as the draft model. A drafter of dynamic trees has the
steps of some of its settings, decoded in interleaved runs with plain decoding of the same sequences; plans use only ratios
of these times, which exclude prefill. Both have one item per context length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.serialization import in_file
from treeopt.records.accepted_ranks import RootRanks, read_root_ranks, serialize_root_ranks
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.measured_acceptance import MeasuredAcceptance, check_categories
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import (
    HOST,
    OVERHEAD,
    SAMPLED,
    RuleSteps,
    StepLatency,
    TimedTree,
    find_duplicate,
)
from treeopt.trees.drafter_setting import (
    STATIC_TREE_DRAFTERS,
    VALUES,
    DrafterSetting,
    SettingValues,
    checked_setting,
)


def _read_integer_rows(fields: Fields, name: str) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, fields.integer_rows(name)))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CountedSequences(ShortRepr):
    """The steps of each sequence, each with one pass of the target.

    Raises InvalidValueError for different numbers of sequences, a sequence without a step, steps without a token, and
    sizes without a pass.
    """

    tokens: tuple[int, ...]
    """Committed by each sequence's steps."""
    pass_tokens: tuple[int, ...]
    """Sizes of the target's passes, increasing."""
    passes: tuple[tuple[int, ...], ...] = field(metadata=in_file(read=_read_integer_rows))
    """For each sequence, the number of passes of each size."""

    def __post_init__(self) -> None:
        sizes = self.pass_tokens
        if not sizes or list(sizes) != sorted({*sizes}) or sizes[0] < 1:
            raise InvalidValueError("expected increasing sizes of at least 1.", field="pass_tokens")
        if len(self.passes) != self.count or any(len(row) != len(sizes) or min(row) < 0 for row in self.passes):
            raise InvalidValueError(
                f"expected a row for each of {self.count} sequences, with {len(sizes)} numbers of at least 0.",
                field="passes",
            )
        if not self.tokens or any(
            not 1 <= steps <= tokens for steps, tokens in zip(self.steps, self.tokens, strict=True)
        ):
            raise InvalidValueError("expected a step of every sequence, and a token of every step.", field="tokens")
        if min(self.total_passes) < 1:
            raise InvalidValueError("expected at least 1 of every size.", field="passes")

    @property
    def count(self) -> int:
        """J: number of sequences."""
        return len(self.tokens)

    @property
    def steps(self) -> tuple[int, ...]:
        """Of each sequence."""
        return tuple(map(sum, self.passes))

    @property
    def total_passes(self) -> tuple[int, ...]:
        """Number of passes of each size, over all sequences."""
        return tuple(map(sum, zip(*self.passes, strict=True)))

    @property
    def tokens_per_step(self) -> float:
        return sum(self.tokens) / sum(self.steps)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DecodedSequences(CountedSequences):
    """Sequences that were decoded.

    Raises InvalidValueError as `CountedSequences` does, and for a different number of times.
    """

    seconds: Timing = field(metadata=in_file(inline=True))
    """Of each sequence's steps together."""

    def __post_init__(self) -> None:
        CountedSequences.__post_init__(self)
        if len(self.seconds.samples_s) != self.count:
            raise InvalidValueError(
                f"expected as many as tokens, {self.count}. Got {len(self.seconds.samples_s)}.", field="samples_s"
            )

    @property
    def step_s(self) -> float:
        return float(self.seconds.samples_s.sum()) / sum(self.steps)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ReplayedSequences(CountedSequences):
    """The steps of a drafter along sequences that the target generated without it."""

    categories: tuple[str, ...] = ()
    """Category of each sequence's prompt; empty if no prompt has one."""

    def __post_init__(self) -> None:
        CountedSequences.__post_init__(self)
        check_categories(self.categories, self.count)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DrafterLatency(ShortRepr):
    """Drafting times of static trees at one context length and batch size; the fields are those of `StepLatency`.

    Raises InvalidValueError without step times, for a tree of the root alone, and for duplicate trees.
    """

    context_tokens: int = field(metadata=in_file(least=0))
    batch_size: int
    draft: LatencyTable
    per_block: bool = field(default=False, metadata=in_file(optional=True))
    overhead: Timing = field(metadata=OVERHEAD)
    host: Timing | None = field(default=None, metadata=HOST)
    sampled: bool = field(metadata=SAMPLED)
    steps: tuple[TimedTree, ...]
    """Step times with some trees, from which the host overhead is fitted."""

    def __post_init__(self) -> None:
        if not self.steps or find_duplicate(timed.tree for timed in self.steps) is not None:
            raise InvalidValueError("expected one or more trees, each once.", field="steps")
        if any(timed.tree.nodes == 1 for timed in self.steps):
            raise InvalidValueError("expected trees of 2 nodes or more.", field="steps")

    def replace_draft_times(self, latency: StepLatency) -> StepLatency:
        """Return the latency with this drafter's times instead of the draft model's."""
        return replace(
            latency,
            draft=self.draft,
            per_block=self.per_block,
            overhead=self.overhead,
            rule_overheads=(),
            host=self.host,
            steps=(RuleSteps(rule=TARGET_RULE, trees=self.steps),),
        )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredTrees(ShortRepr):
    """The acceptance of a drafter of static trees at one temperature and context length.

    Raises InvalidValueError for an acceptance of another rule than `target`, and for ranks of a different number of
    sequences.
    """

    acceptance: MeasuredAcceptance
    root_ranks: RootRanks | None = field(
        default=None, metadata=in_file(read=read_root_ranks, write=serialize_root_ranks)
    )
    """At every position of the acceptance's sequences, for replays; None if not recorded."""
    context_tokens: int = field(metadata=in_file(least=0))
    """Sequence length halfway through decoding; a mean if prompts have different lengths."""

    @property
    def sampling(self) -> Sampling:
        """Of the target."""
        return self.acceptance.sampling

    def __post_init__(self) -> None:
        if self.acceptance.rule != TARGET_RULE:
            raise InvalidValueError(
                f"expected rule {TARGET_RULE}. Got {self.acceptance.rule!r:.60}.", field="acceptance"
            )
        if self.acceptance.context_tokens is not None:
            raise InvalidValueError("expected context_tokens beside it, not in it: move it.", field="acceptance")
        sums = self.acceptance.sequences
        if self.root_ranks is not None and (sums is None or len(sums.reached) != len(self.root_ranks.ranks)):
            raise InvalidValueError("expected those of as many sequences as the acceptance has.", field="root_ranks")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredSetting(ShortRepr):
    """Sequences decoded with one setting of a drafter of dynamic trees.

    Raises InvalidValueError if a pass exceeds `max_tokens`.
    """

    values: SettingValues = field(metadata=VALUES)
    max_tokens: int = field(metadata=in_file(least=2))
    """Size of the largest pass with this setting."""
    decoded: DecodedSequences
    replayed: ReplayedSequences | None = None
    """Steps along further sequences, if they can be replayed without passes. Predictions take tokens and passes per step
    from here, and only host overhead from `decoded`."""

    @property
    def sequences(self) -> CountedSequences:
        """The larger set of sequences: `replayed` if it exists."""
        return self.replayed or self.decoded

    def __post_init__(self) -> None:
        for name, counts in (("decoded", self.decoded), ("replayed", self.replayed)):
            if counts is not None and counts.pass_tokens[-1] > self.max_tokens:
                raise InvalidValueError(
                    f"expected at most {self.max_tokens}. Got {counts.pass_tokens[-1]}.", field=f"{name}.pass_tokens"
                )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredSettings(ShortRepr):
    """The measured settings of a drafter at one temperature and context length, and plain decoding of the same sequences.

    Raises InvalidValueError for duplicate settings and for different numbers of sequences.
    """

    sampling: Sampling = field(metadata=in_file(inline=True))
    """Of the target."""
    context_tokens: int = field(metadata=in_file(least=0))
    """As in `MeasuredTrees`."""
    plain: DecodedSequences
    settings: tuple[MeasuredSetting, ...]
    categories: tuple[str, ...] = ()
    """Category of each decoded sequence's prompt; empty if no prompt has one."""

    @property
    def temperature(self) -> float:
        """Of the target's sampling."""
        return self.sampling.temperature

    def __post_init__(self) -> None:
        if not self.settings or find_duplicate(setting.values for setting in self.settings) is not None:
            raise InvalidValueError("expected one or more, each once.", field="settings")
        plain = self.plain
        if plain.pass_tokens != (1,) or plain.steps != plain.tokens:
            raise InvalidValueError("expected a token of each step, and passes over one.", field="plain")
        if any(setting.decoded.count != plain.count for setting in self.settings):
            raise InvalidValueError(
                f"expected decodes of {plain.count} sequences, as many as were decoded plainly.", field="settings"
            )
        check_categories(self.categories, plain.count)

    @property
    def setting_values(self) -> frozenset[SettingValues]:
        return frozenset(setting.values for setting in self.settings)


Item = TypeVar("Item", MeasuredTrees, MeasuredSettings)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredDrafter(ShortRepr):
    """One drafter other than the draft model, of static or dynamic trees.

    Raises InvalidValueError for the draft model and unknown drafters, invalid settings, missing or superfluous
    measurements, duplicate temperatures at one context length, and settings or sampling that differ between contexts.
    """

    setting: DrafterSetting = field(metadata=in_file(inline=True))
    """The drafter with the digest and the blocks of its heads, without values."""
    latencies: tuple[DrafterLatency, ...] = field(default=(), metadata=in_file("latency"))
    """For static trees: one for every latency of the profile."""
    trees: tuple[MeasuredTrees, ...] = ()
    """For static trees: one for every temperature and context length."""
    decodes: tuple[MeasuredSettings, ...] = ()
    """For dynamic trees: one for every temperature and context length."""

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def label(self) -> str:
        return self.setting.label

    def setting_with(self, values: SettingValues) -> DrafterSetting:
        """Return the drafter's setting in plans and tree files; raises InvalidValueError for invalid values."""
        return checked_setting(replace(self.setting, values=values))

    def trees_at(self, temperature: float) -> tuple[MeasuredTrees, ...]:
        """Return the measurements of static trees at a temperature, by increasing context length."""
        return _sort_by_context(trees for trees in self.trees if trees.sampling.temperature == temperature)

    def decodes_at(self, temperature: float) -> tuple[MeasuredSettings, ...]:
        """Return the measured settings at a temperature, by increasing context length."""
        return _sort_by_context(decodes for decodes in self.decodes if decodes.temperature == temperature)

    def replace_draft_times(self, point: OperatingPoint) -> OperatingPoint | None:
        """Return the operating point with this drafter's times; None if drafting was not timed at all its latencies."""
        timed = {condition_key(latency): latency for latency in self.latencies}
        if any(condition_key(latency) not in timed for latency in point.latencies):
            return None
        latencies = [timed[condition_key(latency)].replace_draft_times(latency) for latency in point.latencies]
        return replace(point, latencies=tuple(latencies))

    def __post_init__(self) -> None:
        if self.name == "model":
            raise InvalidValueError(
                "expected another drafter than the draft model, whose measurements are in the profile itself.",
                field="name",
            )
        if self.setting.values:
            raise InvalidValueError("expected none, since each of decodes has its own: remove them.", field="values")
        if bool(self.trees) == bool(self.decodes) or bool(self.trees) != (self.name in STATIC_TREE_DRAFTERS):
            expected = "trees" if self.name in STATIC_TREE_DRAFTERS else "decodes"
            raise InvalidValueError(f"expected {expected} of {self.name}, and nothing else.", field=expected)
        duplicate = find_duplicate(condition_key(latency) for latency in self.latencies)
        if bool(self.latencies) != bool(self.trees) or duplicate is not None:
            raise InvalidValueError("expected with trees, and only there, each condition once.", field="latency")
        if len({latency.per_block for latency in self.latencies}) > 1:
            raise InvalidValueError("per_block: expected the same under every condition.", field="latency")
        for values in [setting.values for decodes in self.decodes for setting in decodes.settings] or [()]:
            self.setting_with(values)
        _check_contexts(self.trees, "trees")
        _check_contexts(self.decodes, "decodes")
        for decodes in self.decodes:
            if decodes.setting_values != self.decodes_at(decodes.temperature)[0].setting_values:
                raise InvalidValueError(
                    "expected the same settings at every context of a temperature: profile again.", field="decodes"
                )


def condition_key(latency: StepLatency | DrafterLatency) -> tuple[int, int, bool]:
    """Return context length, batch size, and whether the timed steps sampled."""
    return latency.context_tokens, latency.batch_size, bool(latency.sampled)


def check_drafters(drafters: Sequence[MeasuredDrafter]) -> None:
    """Raise InvalidValueError for duplicate drafters."""
    if (label := find_duplicate(drafter.label for drafter in drafters)) is not None:
        raise InvalidValueError(f"expected each once. Got {label} twice: remove one.", field="drafters")


def _sort_by_context(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: item.context_tokens))


def _check_contexts(items: Sequence[MeasuredTrees | MeasuredSettings], name: str) -> None:
    """Raise InvalidValueError for duplicates, or for several samplings of one temperature."""
    duplicate = find_duplicate((item.sampling.temperature, item.context_tokens) for item in items)
    if duplicate is not None:
        raise InvalidValueError(
            f"expected each temperature once at a context. Got {duplicate[0]:g} twice at {duplicate[1]} tokens: "
            "remove one.",
            field=name,
        )
    samplings = {item.sampling for item in items}
    if len(samplings) > len({sampling.temperature for sampling in samplings}):
        raise InvalidValueError("expected one top-p and top-k at each temperature: profile again.", field=name)
