"""What was measured of one drafter beside the draft model.

Of a drafter of static trees: its acceptance, and what drafting costs, as of the draft model.  Of one with trees of its
own: what steps with some of its settings came to, decoded in turn with plain decoding of the same texts; seconds are those
of whole texts, the prompts left out, and only quotients are planned with.  Either after the prompts, or around several
context lengths, each with an item of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.record_form import in_file
from treeopt.records.categories import check_categories
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.root_ranks import RootRanks, read_root_ranks, written_root_ranks
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.records.sampling import Sampling
from treeopt.records.step_latency import (
    TIMED,
    RuleSteps,
    StepLatency,
    TimedTree,
    first_repeated,
    read_overhead,
    read_samples,
    read_seconds,
    read_timed,
    samples,
)
from treeopt.trees.drafter_setting import LAYERS, TREES, DrafterSetting, SettingValue, checked_setting


def _values(fields: Fields, name: str) -> tuple[SettingValue, ...]:
    given = fields.mapping(name)
    return tuple(SettingValue(name=each, value=given.integer(each)) for each in given.names())


def _integer_rows(fields: Fields, name: str) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, fields.integer_rows(name)))


def _named(values: Sequence[SettingValue]) -> dict[str, int]:
    return {each.name: each.value for each in values}


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DecodedTexts(ShortRepr):
    """Some texts decoded in one way, text by text.

    Raises InvalidValueError where there is not as much of each, a text has no step, or a step no token.
    """

    tokens: tuple[int, ...]
    """That each text's steps committed."""
    steps: tuple[int, ...]
    seconds: Timing = field(metadata=in_file("samples_s", read=read_samples, write=samples))
    """Of each text's steps together."""

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.steps) == len(self.seconds.samples_s):
            raise InvalidValueError(
                f"expected as many of each. Got {len(self.steps)}, {len(self.tokens)} and "
                f"{len(self.seconds.samples_s)}.",
                field="steps",
            )
        _check_steps(self.tokens, self.steps)

    @property
    def texts(self) -> int:
        """J: how many there are."""
        return len(self.steps)

    @property
    def tokens_per_step(self) -> float:
        """Over all texts together."""
        return sum(self.tokens) / sum(self.steps)

    @property
    def step_s(self) -> float:
        """Seconds of a step, over all texts together."""
        return float(self.seconds.samples_s.sum()) / sum(self.steps)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DrafterLatency(ShortRepr):
    """What drafting static trees costs at one context length and batch size, where the profile timed the target's passes.

    Raises InvalidValueError without whole steps, for a tree of the root alone, and for one that was timed twice.
    """

    context_tokens: int = field(metadata=in_file(least=0))
    """As in `StepLatency`, and so are the fields below."""
    batch_size: int
    draft: LatencyTable
    per_block: bool = field(default=False, metadata=in_file(optional=True))
    overhead: Timing = field(metadata=in_file(read=read_overhead))
    host: Timing | None = field(default=None, metadata=in_file("host_s", read=read_seconds, write=samples))
    sampled: bool = field(metadata=in_file("timed", read=read_timed, write=TIMED.__getitem__))
    steps: tuple[TimedTree, ...]
    """Whole steps with some trees, from which the host overhead is fitted."""

    def __post_init__(self) -> None:
        if not self.steps or first_repeated(each.tree for each in self.steps) is not None:
            raise InvalidValueError("expected one or more trees, each once.", field="steps")
        if any(each.tree.nodes == 1 for each in self.steps):
            raise InvalidValueError("expected trees of 2 nodes or more.", field="steps")

    def in_place_of_draft(self, latency: StepLatency) -> StepLatency:
        """Return the latency of the same condition with this drafter's times in place of the draft model's."""
        return replace(
            latency,
            draft=self.draft,
            per_block=self.per_block,
            overhead=self.overhead,
            rule_overheads=(),
            host=self.host,
            steps=(RuleSteps(rule=GIVEN_TOKENS, trees=self.steps),),
        )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredTrees(ShortRepr):
    """How often a drafter of static trees is accepted at one temperature and context.

    Raises InvalidValueError for an acceptance of another rule than `target`, and ranks of other texts than the acceptance's.
    """

    acceptance: MeasuredAcceptance
    ranks: RootRanks | None = field(
        default=None, metadata=in_file("outcomes", read=read_root_ranks, write=written_root_ranks)
    )
    """Below every position of the acceptance's texts, along which any tree is replayed; None where nobody kept them."""
    context_tokens: int = field(metadata=in_file(least=0))
    """Tokens of a text in the middle of what was decoded; on average, where that lies behind prompts of any length."""

    @property
    def sampling(self) -> Sampling:
        """How the target's tokens were sampled."""
        return self.acceptance.sampling

    def __post_init__(self) -> None:
        if self.acceptance.rule != GIVEN_TOKENS:
            raise InvalidValueError(
                f"expected rule {GIVEN_TOKENS}. Got {self.acceptance.rule!r:.60}.", field="acceptance"
            )
        if self.acceptance.context_tokens is not None:
            raise InvalidValueError("expected context_tokens beside it, not in it: move it.", field="acceptance")
        texts = self.acceptance.texts
        if self.ranks is not None and (texts is None or len(texts.reached) != len(self.ranks.ranks)):
            raise InvalidValueError("expected those of as many texts as the acceptance has.", field="outcomes")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ReplayedTexts(ShortRepr):
    """The steps that a drafter takes along texts that the target generated without it.

    Raises InvalidValueError where there is not as much of each, or passes and steps do not add up.
    """

    tokens: tuple[int, ...]
    """That each text's steps commit."""
    steps: tuple[int, ...]
    pass_tokens: tuple[int, ...]
    """Sizes of the target's passes, rising."""
    passes: tuple[int, ...]
    """How many passes have each size, over all texts."""
    passes_by_text: tuple[tuple[int, ...], ...] = field(default=(), metadata=in_file(read=_integer_rows))
    """The same, text by text; empty where the prompts have no categories."""
    categories: tuple[str, ...] = ()
    """The category of each text's prompt; empty where no prompt has one."""

    def __post_init__(self) -> None:
        _check_steps(self.tokens, self.steps)
        _check_passes(self.pass_tokens, self.passes, sum(self.steps))
        _check_passes_by_text(self.passes_by_text, self.passes, self.steps, wanted=bool(self.categories))
        check_categories(self.categories, len(self.steps))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CountedSetting(ShortRepr):
    """Texts decoded with one setting of a drafter that brings trees of its own.

    Raises InvalidValueError where passes and steps do not add up, or a pass is larger than any can be.
    """

    values: tuple[SettingValue, ...] = field(metadata=in_file(read=_values, write=_named))
    max_tokens: int = field(metadata=in_file(least=2))
    """Of the largest pass that the setting allows."""
    decoded: DecodedTexts
    pass_tokens: tuple[int, ...]
    """Sizes of the target's passes, rising."""
    passes: tuple[int, ...]
    """How many passes had each size, over all texts."""
    passes_by_text: tuple[tuple[int, ...], ...] = field(default=(), metadata=in_file(read=_integer_rows))
    """As in `ReplayedTexts`."""
    replayed: ReplayedTexts | None = None
    """What the drafter comes to along more texts, where that is seen without a pass; tokens and passes of a step are
    predicted from it, and from what was decoded only the seconds beside the passes."""

    @property
    def steps(self) -> "DecodedTexts | ReplayedTexts":
        """Tokens and steps, text by text, of as many texts as there are."""
        return self.replayed or self.decoded

    @property
    def tokens_per_step(self) -> float:
        """Over all these texts together."""
        return sum(self.steps.tokens) / sum(self.steps.steps)

    def __post_init__(self) -> None:
        _check_passes(self.pass_tokens, self.passes, sum(self.decoded.steps))
        _check_passes_by_text(self.passes_by_text, self.passes, self.decoded.steps)
        for each in (self, self.replayed):
            if each is not None and each.pass_tokens[-1] > self.max_tokens:
                raise InvalidValueError(
                    f"expected at most {self.max_tokens}. Got {each.pass_tokens[-1]}.", field="pass_tokens"
                )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class CountedDecodes(ShortRepr):
    """Some settings of a drafter at one temperature and context, each decoded with, and plain decoding of the same texts.

    Raises InvalidValueError for settings that are not each once, or of other texts than those decoded plainly.
    """

    temperature: float
    top_p: float = field(metadata=in_file(most=1.0))
    top_k: int = field(default=0, metadata=in_file(least=0, optional=True))
    """Tokens of the target's distribution that sampling kept; 0 is all."""
    context_tokens: int = field(metadata=in_file(least=0))
    """As in `MeasuredTrees`."""
    plain: DecodedTexts
    settings: tuple[CountedSetting, ...]
    categories: tuple[str, ...] = ()
    """The category of each decoded text's prompt; empty where no prompt has one."""

    @property
    def sampling(self) -> Sampling:
        """How the target's tokens were sampled."""
        return Sampling(self.temperature, self.top_p, self.top_k)

    def __post_init__(self) -> None:
        if not self.settings or first_repeated(each.values for each in self.settings) is not None:
            raise InvalidValueError("expected one or more, each once.", field="settings")
        _check_texts(self.plain, (each.decoded for each in self.settings), "settings")
        check_categories(self.categories, self.plain.texts)
        if self.categories and not all(each.passes_by_text for each in self.settings):
            raise InvalidValueError("expected passes_by_text, because the texts have categories.", field="settings")


Item = TypeVar("Item", MeasuredTrees, CountedDecodes)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class MeasuredDrafter(ShortRepr):
    """One drafter beside the draft model: of static trees, or with settings that were decoded with.

    Raises InvalidValueError for the draft model and unknown names, settings that are none of the drafter, where it is not
    measured in the way that suits it, for a temperature twice at one context, and where contexts of one temperature
    differ in their sampling or their settings.
    """

    name: str
    """As in `DRAFTERS`."""
    source: str | None = None
    """The folder of its heads as it was given; None for those that ship, and where it has none."""
    digest: str | None = None
    """What the heads' files hold."""
    layers: tuple[int, ...] = field(default=(), metadata=LAYERS)
    """As in `DrafterSetting`."""
    latencies: tuple[DrafterLatency, ...] = field(default=(), metadata=in_file("latency"))
    """Of drafting static trees, under every condition that the target's passes were timed at; else empty."""
    trees: tuple[MeasuredTrees, ...] = ()
    """One for every temperature and context; empty where it brings trees of its own."""
    decodes: tuple[CountedDecodes, ...] = ()
    """Likewise; empty where its trees are solved for."""

    def setting(self, values: tuple[SettingValue, ...] = ()) -> DrafterSetting:
        """Return the drafter as plans and tree files name it; raises InvalidValueError for values that are not its own."""
        return checked_setting(
            DrafterSetting(name=self.name, source=self.source, digest=self.digest, layers=self.layers, values=values)
        )

    def trees_at(self, temperature: float) -> tuple[MeasuredTrees, ...]:
        """Return what was measured of static trees at a temperature, by rising context; empty where nothing was."""
        return _by_context(each for each in self.trees if each.sampling.temperature == temperature)

    def timed_at(self, point: OperatingPoint) -> bool:
        """Return whether drafting static trees was timed under every condition that an operating point is made of."""
        known = {condition_of(each) for each in self.latencies}
        return all(condition_of(each) in known for each in point.latencies)

    def in_place_of_draft(self, point: OperatingPoint) -> OperatingPoint:
        """Return an operating point with this drafter's times in place of the draft model's; raises InfeasibleError without."""
        if not self.timed_at(point):
            raise InfeasibleError(
                f"drafter {self.name}: drafting was not timed at {point.context_tokens} tokens of context x batch "
                f"{point.batch_size}. Profile again with --drafter {self.name}."
            )
        known = {condition_of(each): each for each in self.latencies}
        latencies = [known[condition_of(each)].in_place_of_draft(each) for each in point.latencies]
        return replace(point, latencies=tuple(latencies))

    def decodes_at(self, temperature: float) -> tuple[CountedDecodes, ...]:
        """Return the settings that were decoded with at a temperature, by rising context; empty where there are none."""
        return _by_context(each for each in self.decodes if each.temperature == temperature)

    def __post_init__(self) -> None:
        if self.name == "model":
            raise InvalidValueError(
                "expected another drafter than the draft model, which has the profile.", field="name"
            )
        DrafterSetting(name=self.name)  # refuse an unknown one first
        if bool(self.trees) == bool(self.decodes) or bool(self.trees) != (self.name in TREES):
            wanted = "trees" if self.name in TREES else "decodes"
            raise InvalidValueError(f"expected {wanted} of {self.name}, and nothing else.", field=wanted)
        twice = first_repeated(condition_of(each) for each in self.latencies)
        if bool(self.latencies) != bool(self.trees) or twice is not None:
            raise InvalidValueError("expected with trees, and only there, each condition once.", field="latency")
        if len({each.per_block for each in self.latencies}) > 1:
            raise InvalidValueError("per_block: expected the same under every condition.", field="latency")
        for values in [each.values for decodes in self.decodes for each in decodes.settings] or [()]:
            self.setting(values)
        _check_contexts(self.trees, "trees")
        _check_contexts(self.decodes, "decodes")
        if any(_values_of(each) != _values_of(self.decodes_at(each.temperature)[0]) for each in self.decodes):
            raise InvalidValueError(
                "expected the same settings at every context of a temperature: profile again.", field="decodes"
            )


def condition_of(latency: StepLatency | DrafterLatency) -> tuple[int, int, bool]:
    """Return context length, batch size, and whether steps were timed that sampled."""
    return latency.context_tokens, latency.batch_size, bool(latency.sampled)


def check_drafters(drafters: Sequence[MeasuredDrafter]) -> None:
    """Raise InvalidValueError for a drafter that was measured twice."""
    if (twice := first_repeated(each.name for each in drafters)) is not None:
        raise InvalidValueError(f"expected each once. Got {twice} twice: remove one.", field="drafters")


def _check_steps(tokens: Sequence[int], steps: Sequence[int]) -> None:
    if len(tokens) != len(steps):
        raise InvalidValueError(f"expected as many as tokens, {len(tokens)}. Got {len(steps)}.", field="steps")
    if not steps or any(each < 1 or found < each for found, each in zip(tokens, steps, strict=True)):
        raise InvalidValueError("expected a step of every text, and a token of every step.", field="tokens")


def _check_passes(pass_tokens: Sequence[int], passes: Sequence[int], steps: int) -> None:
    if not pass_tokens or list(pass_tokens) != sorted({*pass_tokens}) or pass_tokens[0] < 1:
        raise InvalidValueError("expected sizes that rise from 1 or more.", field="pass_tokens")
    if len(passes) != len(pass_tokens) or min(passes) < 1:
        raise InvalidValueError("expected a number of at least 1 for every size.", field="passes")
    if sum(passes) != steps:
        raise InvalidValueError(f"expected as many as steps, {steps}. Got {sum(passes)}.", field="passes")


def _check_passes_by_text(
    rows: Sequence[Sequence[int]], passes: Sequence[int], steps: Sequence[int], *, wanted: bool = False
) -> None:
    """Refuse rows that are not one for each text, or do not add up to `passes` and to the steps of each text."""
    if not rows and not wanted:
        return
    if len(rows) != len(steps) or any(len(row) != len(passes) or min(row) < 0 for row in rows):
        raise InvalidValueError(
            f"expected a row for each of {len(steps)} texts, with {len(passes)} numbers of at least 0.",
            field="passes_by_text",
        )
    if [sum(row) for row in rows] != list(steps) or [sum(column) for column in zip(*rows, strict=True)] != list(passes):
        raise InvalidValueError("expected rows that add up to steps, and columns to passes.", field="passes_by_text")


def _check_texts(plain: DecodedTexts, others: Iterable[DecodedTexts], name: str) -> None:
    """Refuse decodes of other texts than those decoded plainly."""
    if any(steps != tokens for tokens, steps in zip(plain.tokens, plain.steps, strict=True)):
        raise InvalidValueError("expected a token of each step.", field="plain")
    if any(each.texts != plain.texts for each in others):
        raise InvalidValueError(f"expected decodes of {plain.texts} texts, as many as decoded plainly.", field=name)


def _by_context(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return them in the order of their context lengths."""
    return tuple(sorted(items, key=lambda each: each.context_tokens))


def _check_contexts(items: Sequence[MeasuredTrees | CountedDecodes], name: str) -> None:
    """Refuse a temperature twice at one context length, and one that was sampled in two ways."""
    twice = first_repeated((each.sampling.temperature, each.context_tokens) for each in items)
    if twice is not None:
        raise InvalidValueError(
            f"expected each temperature once at a context. Got {twice[0]:g} twice at {twice[1]} tokens: remove one.",
            field=name,
        )
    samplings = {each.sampling for each in items}
    if len(samplings) > len({each.temperature for each in samplings}):
        raise InvalidValueError("expected one way of sampling at each temperature: profile again.", field=name)


def _values_of(decodes: CountedDecodes) -> frozenset[tuple[SettingValue, ...]]:
    return frozenset(each.values for each in decodes.settings)
