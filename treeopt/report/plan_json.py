"""A plan as one JSON object, seconds and tokens, for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treeopt.files.record_form import in_file
from treeopt.planner.plan_content import (
    CertificateReport,
    ChoiceReport,
    ConditionReport,
    PlanContent,
)
from treeopt.records.latency import Estimate
from treeopt.records.machine import Machine, Pair
from treeopt.report.context_warnings import context_warnings
from treeopt.report.json_text import json_lines
from treeopt.report.plan_text import warnings

if TYPE_CHECKING:
    from treeopt.planner import Confidence, DrafterChoice, Plan, Schedule, Segment
    from treeopt.planner.categories import CategoryPlans
    from treeopt.planner.drafters_over_contexts import DrafterSegment
    from treeopt.records.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterReport:
    """The best that one drafter comes to; no parents where it brings trees of its own."""

    drafter: str
    source: str | None
    layers: tuple[int, ...]
    settings: dict[str, int]
    rule: str
    nodes: int
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    bound_on_speedup: float | None
    chosen: bool
    parents: list[int] | None

    @classmethod
    def of(cls, choice: "DrafterChoice", *, chosen: bool) -> "DrafterReport":
        """Return that of one drafter."""
        return cls(
            drafter=choice.setting.name,
            source=choice.setting.source,
            layers=choice.setting.layers,
            settings={each.name: each.value for each in choice.setting.values},
            rule=choice.rule,
            nodes=choice.nodes,
            tokens_per_step=choice.tokens_per_step,
            step_s=choice.step_s,
            speedup=choice.speedup,
            bound_on_speedup=choice.bound,
            chosen=chosen,
            parents=None if choice.tree is None else choice.tree.parents.tolist(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSegmentReport:
    """The fastest of all drafters over a range of contexts."""

    context_tokens: tuple[int, int]
    drafter: str
    settings: dict[str, int]
    rule: str
    nodes: int
    parents: list[int] | None
    speedup: float
    """At the start of the range."""

    @classmethod
    def of(cls, segment: "DrafterSegment") -> "DrafterSegmentReport":
        """Return that of a segment."""
        choice = segment.choice
        return cls(
            context_tokens=segment.context_tokens,
            drafter=choice.setting.name,
            settings={each.name: each.value for each in choice.setting.values},
            rule=choice.rule,
            nodes=choice.nodes,
            parents=None if choice.tree is None else choice.tree.parents.tolist(),
            speedup=segment.speedup,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionPlanReport:
    """The plan of one condition of a schedule."""

    condition: ConditionReport = field(metadata=in_file(inline=True))
    choice: ChoiceReport
    certificate: CertificateReport
    confidence: "Confidence"

    @classmethod
    def of(cls, plan: "Plan") -> "ConditionPlanReport":
        """Return that of a plan."""
        return cls(
            condition=plan.content.condition,
            choice=ChoiceReport.of(plan.choice),
            certificate=plan.content.certificate,
            confidence=plan.confidence,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentReport:
    """What to run over a range of conditions."""

    rule: str
    lossy: bool
    temperature: float
    batch_sizes: tuple[int, int]
    context_tokens: tuple[int, int]
    choice: ChoiceReport

    @classmethod
    def of(cls, segment: "Segment") -> "SegmentReport":
        """Return that of a segment."""
        return cls(
            rule=segment.rule,
            lossy=segment.lossy,
            temperature=segment.temperature,
            batch_sizes=segment.batch_sizes,
            context_tokens=segment.context_tokens,
            choice=ChoiceReport.of(segment.choice),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReport:
    """A context length from which on another way to decode is the fastest."""

    temperature: float
    batch_size: int
    context_tokens: int
    rule: str
    before: ChoiceReport
    after: ChoiceReport

    @classmethod
    def of(cls, before: "Segment", after: "Segment") -> "SwitchReport":
        """Return that between two segments."""
        return cls(
            temperature=after.temperature,
            batch_size=after.batch_sizes[0],
            context_tokens=after.context_tokens[0],
            rule=after.rule,
            before=ChoiceReport.of(before.choice),
            after=ChoiceReport.of(after.choice),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleReport:
    """What to run where."""

    plans: tuple[ConditionPlanReport, ...]
    over_contexts: tuple[SegmentReport, ...]
    over_batch_sizes: tuple[SegmentReport, ...]
    switches: tuple[SwitchReport, ...]
    """Where to run another tree than at shorter contexts."""

    @classmethod
    def of(cls, schedule: "Schedule") -> "ScheduleReport":
        """Return that of a schedule."""

        def segments(found: Iterable["Segment"]) -> tuple[SegmentReport, ...]:
            return tuple(SegmentReport.of(each) for each in found)

        return cls(
            plans=tuple(ConditionPlanReport.of(each) for each in schedule.plans),
            over_contexts=segments(schedule.over_contexts),
            over_batch_sizes=segments(schedule.over_batch_sizes),
            switches=tuple(SwitchReport.of(before, after) for before, after in schedule.switches),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryReport:
    """The best option for one category of prompts, and the option for all prompts there."""

    category: str
    prompts: int
    best: DrafterReport = field(metadata=in_file(inline=True))
    for_all: "SpeedupReport | None"
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedupReport:
    """A speedup with its interval."""

    speedup: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class OneForAllReport:
    """One option for all categories against the best of each, over equally many tokens of each category."""

    speedup: float | None
    best_speedup: float | None
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoriesReport:
    """The best option for each category of prompts, and what one option for all costs."""

    plans: tuple[CategoryReport, ...]
    one_for_all: OneForAllReport

    @classmethod
    def of(cls, categories: "CategoryPlans") -> "CategoriesReport":
        return cls(
            plans=tuple(
                CategoryReport(
                    category=each.category,
                    prompts=each.prompts,
                    best=DrafterReport.of(each.best, chosen=True),
                    for_all=None if each.for_all is None else SpeedupReport(speedup=each.for_all),
                    gap=each.gap,
                )
                for each in categories.plans
            ),
            one_for_all=OneForAllReport(
                speedup=categories.for_all_speedup, best_speedup=categories.best_speedup, gap=categories.gap
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A plan, and the schedule that was made with it; docs/planning.md lists the keys."""

    pair: Pair
    machine: Machine
    new_tokens: int | None
    """Of the texts that are planned for; None is as long as those measured."""
    category: str | None
    """Of the prompts that are planned for; None is all of the profile."""
    plan: PlanContent = field(metadata=in_file(inline=True))
    drafters: tuple[DrafterReport, ...]
    drafters_over_contexts: tuple[DrafterSegmentReport, ...]
    warnings: tuple[str, ...]
    schedule: ScheduleReport | None
    categories: CategoriesReport | None
    """Where the profile has several categories of prompts."""

    @classmethod
    def of(
        cls,
        plan: "Plan",
        profile: "Profile",
        schedule: "Schedule | None",
        drafters: "Sequence[DrafterChoice]",
        over_contexts: "Sequence[DrafterSegment]" = (),
        new_tokens: int | None = None,
        category: str | None = None,
        categories: "CategoryPlans | None" = None,
    ) -> "PlanReport":
        """Return that of a plan."""
        from treeopt.planner import best_drafter

        best = best_drafter(drafters, plan.objective) if drafters else None
        cautions = [*warnings(plan, drafters), *context_warnings(plan, profile, schedule, drafters)]
        cautions += () if categories is None else categories.warnings
        return cls(
            pair=profile.pair,
            machine=profile.machine,
            new_tokens=new_tokens,
            category=category,
            plan=plan.content,
            drafters=tuple(DrafterReport.of(each, chosen=each is best) for each in drafters),
            drafters_over_contexts=tuple(map(DrafterSegmentReport.of, over_contexts)),
            warnings=tuple(map(str, cautions)),
            schedule=None if schedule is None else ScheduleReport.of(schedule),
            categories=None if categories is None else CategoriesReport.of(categories),
        )


def plan_json(
    plan: "Plan",
    profile: "Profile",
    schedule: "Schedule | None",
    drafters: "Sequence[DrafterChoice]" = (),
    over_contexts: "Sequence[DrafterSegment]" = (),
    *,
    new_tokens: int | None = None,
    category: str | None = None,
    categories: "CategoryPlans | None" = None,
) -> str:
    """Return the object's text, one key a line; `drafters` are rows where others than the draft model were measured."""
    return json_lines(PlanReport.of(plan, profile, schedule, drafters, over_contexts, new_tokens, category, categories))
