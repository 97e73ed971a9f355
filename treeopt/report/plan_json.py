"""A plan as one JSON object, seconds and tokens, for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from treeopt.records.latency import Estimate
from treeopt.records.profile import Machine, Pair, origins
from treeopt.report.context_warnings import context_warnings
from treeopt.report.json_text import INLINE, json_lines
from treeopt.report.plan_text import warnings

if TYPE_CHECKING:
    from treeopt.planner import Candidate, Confidence, DrafterChoice, Plan, RuleChoice, Schedule, Segment
    from treeopt.records.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateReport:
    """One way to decode, and what is predicted of it."""

    nodes: int
    depth: int
    verify_tokens: int
    tokens_per_step: Estimate
    step_s: Estimate
    speedup: Estimate
    parents: list[int]

    @classmethod
    def of(cls, candidate: "Candidate") -> "CandidateReport":
        """Return that of a candidate."""
        return cls(
            nodes=candidate.tree.nodes,
            depth=candidate.tree.max_depth,
            verify_tokens=candidate.verify_tokens,
            tokens_per_step=candidate.tokens_per_step,
            step_s=candidate.step_s,
            speedup=candidate.speedup,
            parents=candidate.tree.parents.tolist(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceReport:
    """What was chosen, with its kind."""

    kind: str
    candidate: CandidateReport = field(metadata=INLINE)

    @classmethod
    def of(cls, choice: "Candidate") -> "ChoiceReport":
        """Return that of a candidate."""
        return cls(kind=choice.kind, candidate=CandidateReport.of(choice))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReport:
    """The best way to decode under one rule."""

    rule: str
    lossy: bool
    choice: ChoiceReport

    @classmethod
    def of(cls, best: "RuleChoice") -> "RuleReport":
        """Return that of one rule."""
        return cls(rule=best.rule, lossy=best.lossy, choice=ChoiceReport.of(best.choice))


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
class ConditionReport:
    """What was planned for."""

    rule: str
    lossy: bool
    temperature: float
    context_tokens: int
    batch_size: int
    extrapolated: bool

    @classmethod
    def of(cls, plan: "Plan") -> "ConditionReport":
        """Return that of a plan."""
        return cls(
            rule=plan.rule,
            lossy=plan.lossy,
            temperature=plan.temperature,
            context_tokens=plan.context_tokens,
            batch_size=plan.model.condition.batch_size,
            extrapolated=plan.extrapolated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginsReport:
    """Where the numbers of each part come from."""

    verify: str
    draft: str
    overhead: str
    acceptance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesReport:
    """The three kinds that are compared."""

    plain: CandidateReport
    chain: CandidateReport
    tree: CandidateReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateReport:
    """Why no tree has more tokens, and the bound on the speed of every tree."""

    method: str
    compared: int
    ruled_out: int
    gap_tokens: float
    statement: str
    fastest_speedup: float
    bound_on_speedup: float
    loss: float
    boxes: int

    @classmethod
    def of(cls, plan: "Plan") -> "CertificateReport":
        """Return that of a plan."""
        certificate, fastest = plan.solution.certificate, plan.fastest
        return cls(
            method=certificate.method,
            compared=certificate.compared,
            ruled_out=certificate.ruled_out,
            gap_tokens=certificate.gap_tokens,
            statement=certificate.statement,
            fastest_speedup=fastest.speedup,
            bound_on_speedup=fastest.bound,
            loss=fastest.loss,
            boxes=fastest.boxes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothingReport:
    """What was done to the acceptance as measured."""

    changed: int
    largest_change: float
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionPlanReport:
    """The plan of one condition of a schedule."""

    condition: ConditionReport = field(metadata=INLINE)
    choice: ChoiceReport
    certificate: CertificateReport
    confidence: "Confidence"

    @classmethod
    def of(cls, plan: "Plan") -> "ConditionPlanReport":
        """Return that of a plan."""
        return cls(
            condition=ConditionReport.of(plan),
            choice=ChoiceReport.of(plan.choice),
            certificate=CertificateReport.of(plan),
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
class PlanReport:
    """A plan, and the schedule that was made with it; docs/planning.md lists the keys."""

    pair: Pair
    machine: Machine
    condition: ConditionReport = field(metadata=INLINE)
    origins: OriginsReport
    objective: str
    max_nodes: int
    max_depth: int
    choice: str
    rules: tuple[RuleReport, ...]
    drafters: tuple[DrafterReport, ...]
    candidates: CandidatesReport
    budgets: tuple[CandidateReport, ...]
    certificate: CertificateReport
    confidence: "Confidence"
    smoothing: SmoothingReport | None
    warnings: tuple[str, ...]
    schedule: ScheduleReport | None

    @classmethod
    def of(
        cls, plan: "Plan", profile: "Profile", schedule: "Schedule | None", drafters: "Sequence[DrafterChoice]"
    ) -> "PlanReport":
        """Return that of a plan."""
        from treeopt.planner import best_drafter

        one, smoothing = CandidateReport.of, plan.model.smoothing
        best = best_drafter(drafters, plan.objective) if drafters else None
        found = origins([latency for _, latency in plan.model.condition.parts], plan.model.acceptance)
        return cls(
            pair=profile.pair,
            machine=profile.machine,
            condition=ConditionReport.of(plan),
            origins=OriginsReport(**found),
            objective=plan.objective,
            max_nodes=plan.solution.max_nodes,
            max_depth=plan.solution.max_depth,
            choice=plan.choice.kind,
            rules=tuple(RuleReport.of(each) for each in plan.rules),
            drafters=tuple(DrafterReport.of(each, chosen=each is best) for each in drafters),
            candidates=CandidatesReport(plain=one(plan.plain), chain=one(plan.chain), tree=one(plan.tree)),
            budgets=tuple(one(candidate) for candidate in plan.budgets),
            certificate=CertificateReport.of(plan),
            confidence=plan.confidence,
            smoothing=None
            if smoothing is None
            else SmoothingReport(
                changed=smoothing.changed, largest_change=smoothing.largest_change, kept=smoothing.kept
            ),
            warnings=tuple(map(str, [*warnings(plan), *context_warnings(plan, profile, schedule, drafters)])),
            schedule=None if schedule is None else ScheduleReport.of(schedule),
        )


def plan_json(
    plan: "Plan", profile: "Profile", schedule: "Schedule | None", drafters: "Sequence[DrafterChoice]" = ()
) -> str:
    """Return the object's text, one key a line; `drafters` are rows where others than the draft model were measured."""
    return json_lines(PlanReport.of(plan, profile, schedule, drafters))
