"""Warnings about a plan and the profile that it is based on, each with what to do."""

from collections.abc import Iterable, Iterator, Sequence

from treeopt.errors import Warning
from treeopt.planner import DrafterChoice, Plan, Schedule, choice_confidence
from treeopt.planner.categories import CategoryPlans
from treeopt.planner.drafter_costs import measured_contexts
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.planner.unmeasured import outside_contexts, warn_outside_contexts
from treeopt.records.engine import lengths_around
from treeopt.records.measured_drafter import MeasuredDrafter
from treeopt.records.profile import Profile, trace_origins
from treeopt.records.step_latency import StepLatency
from treeopt.records.timing_quality import estimate_drift, relative_iqr
from treeopt.report.profile_text import SOURCES, SURE
from treeopt.report.text import percent, percent_floor

MAX_DRIFT = 0.05
MAX_SPREAD = 0.25
"""Largest relative changes of times without a warning; the spread is between the quartiles of single calls."""
MIN_ACCEPTANCE, MIN_POSITIONS = 0.05, 100
"""A trained head's first draft token is accepted more often, if as many positions are counted."""
REMEDIES = {"acceptance": "--positions", "verify": "--rounds", "draft": "--rounds", "overhead": "--rounds"}
"""The option of `treeopt profile` that makes each source of uncertainty smaller."""


def profile_plan_warnings(planned: ProfilePlan, categories: CategoryPlans | None = None) -> list[Warning]:
    """Return the warnings about everything that was planned from a profile."""
    return [
        *plan_warnings(planned.plan, planned.drafters),
        *context_warnings(planned.plan, planned.profile, planned.schedule, planned.drafters),
        *head_warnings(planned.profile.drafters),
        *(() if categories is None else categories.warnings),
    ]


def plan_warnings(plan: Plan, drafters: Sequence[DrafterChoice] = ()) -> list[Warning]:
    """Return warnings about what was not measured, imports without errors, and an uncertain choice."""
    return [
        *plan.warnings,
        *_extrapolation(plan),
        *_unmeasured_length(plan),
        *_confidence_warnings(plan, drafters),
    ]


def under_rule(plan: Plan) -> str:
    """Return the rule of a plan for the end of a sentence; empty if it is the only one that was planned."""
    return f" under {plan.rule}" if len(plan.rules) > 1 else ""


def acceptance_without_counts(plan: Plan) -> bool:
    """Whether the acceptance was imported as rates, whose errors are unknown."""
    acceptance = plan.model.acceptance
    unknown = acceptance.sequences is None and acceptance.table.standard_error is None
    return unknown and _origins(plan)["acceptance"] != "measured"


def context_warnings(
    plan: Plan,
    profile: Profile,
    schedule: Schedule | None = None,
    drafters: Sequence[DrafterChoice] = (),
) -> list[Warning]:
    """Return a warning for each acceptance that is used at context lengths outside those it was measured at.

    An acceptance that was measured right after the prompts counts for the first context length that was timed.
    """
    acceptance = profile.acceptance(rule=plan.rule, temperature=plan.temperature)
    scheduled = [] if schedule is None else [plan.context_tokens for plan in schedule.plans]
    contexts = [plan.context_tokens, *scheduled]
    labels = {choice.option.drafter.label for choice in drafters}
    warnings = [
        warn_outside_contexts(profile, acceptance, contexts),
        *(
            outside_contexts(
                f"acceptance of {drafter.label}", measured_contexts(profile, drafter, plan.temperature), contexts
            )
            for drafter in profile.drafters
            if drafter.label in labels
        ),
    ]
    return [warning for warning in warnings if warning is not None]


def head_warnings(drafters: Iterable[MeasuredDrafter]) -> list[Warning]:
    """Return a warning for each head whose acceptance suggests that it reads other states than in its training."""
    return [warning for drafter in drafters for warning in _head_warnings(drafter)]


def _head_warnings(drafter: MeasuredDrafter) -> Iterator[Warning]:
    for trees in drafter.trees:
        positions, first = trees.acceptance.positions or 0, float(trees.acceptance.table.p[0, 0])
        if positions >= MIN_POSITIONS and not MIN_ACCEPTANCE <= first < 1:
            yield Warning(
                f"{drafter.label}: the first draft token is accepted at {percent(first)} of {positions} positions at "
                f"temperature {trees.sampling.temperature:g}, which suggests that the head reads other states than in its "
                "training.",
                "Check that it was trained on this target, and the layers in its config.json.",
            )
            return


def times_warnings(latencies: Iterable[StepLatency]) -> list[Warning]:
    """Return warnings about disturbed, drifting and scattered times."""
    return [warning for latency in latencies for warning in _times_warnings(latency)]


def _times_warnings(latency: StepLatency) -> Iterator[Warning]:
    """Yield the warnings of one operating point; disturbed times do not show how steady the machine is."""
    point = f"{latency.context_tokens} tokens of context, batch {latency.batch_size}"
    interference = latency.interference
    if interference is not None and interference.processors is not None and interference.samples > 0:
        yield Warning(
            f"{point}: other programs used {percent(interference.processors)} of the processors during "
            f"{percent(interference.calls)} of the timed calls. {percent(interference.samples)} of the samples were taken then "
            "and are too long.",
            "Close them, or wait for quiet with --wait 10m, and profile again.",
        )
        return
    timings = [*latency.verify.timings, *(latency.draft.timings if latency.draft else ())]
    change, width = estimate_drift(timings), relative_iqr(timings)
    if abs(change) > MAX_DRIFT:
        yield Warning(
            f"{point}: the machine became {percent(abs(change))} {'slower' if change > 0 else 'faster'} while it was timed. It "
            "may be throttling, or shared.",
            "Let it cool, close other programs, and profile again.",
        )
    if width > MAX_SPREAD:
        yield Warning(
            f"{point}: single calls vary by {percent(width)}.",
            "Close other programs, set --threads to the cores that are free, or use more --rounds.",
        )


def _extrapolation(plan: Plan) -> Iterator[Warning]:
    point, max_nodes = plan.model.point, plan.solution.max_nodes
    if point.extrapolated:
        yield Warning(
            f"context {point.context_tokens} tokens x batch {point.batch_size} is outside the measured range; times are "
            "extrapolated linearly.",
            "Measure there before you rely on them.",
        )
    if max_nodes > point.max_nodes:
        yield Warning(
            f"passes were measured up to {point.max_nodes} tokens; times of larger ones are extrapolated linearly.",
            f"Profile with --max-tokens {max_nodes} before you rely on them.",
        )


def _unmeasured_length(plan: Plan) -> Iterator[Warning]:
    """Yield a warning if an engine's chain lies between measured lengths, where its step may suddenly take longer."""
    if not plan.model.costs.whole_steps:
        return
    length = plan.choice.tree.max_depth
    tables = [latency.verify.tokens.tolist() for latency in plan.model.point.latencies]
    around = lengths_around([tokens - 1 for tokens in set.intersection(*map(set, tables))], length)
    if around is not None:
        yield Warning(
            f"{length} draft tokens were not measured; the step time is interpolated between {around[0]} and {around[1]}.",
            "Measure it before you serve.",
        )


def _confidence_warnings(plan: Plan, drafters: Sequence[DrafterChoice]) -> list[Warning]:
    """Return a single warning about imports without errors and an uncertain choice."""
    warnings = [*_uncertain_choice(plan, drafters), *_imports_without_errors(plan)]
    if len(warnings) < 2:
        return warnings
    uncertain, imports = warnings
    return [Warning(f"{uncertain.problem} {imports.sentence}", uncertain.action)]


def _imports_without_errors(plan: Plan) -> Iterator[Warning]:
    latencies, origins = plan.model.point.latencies, _origins(plan)
    tables = {
        "verify": [latency.verify for latency in latencies],
        "draft": [latency.draft for latency in latencies if latency.draft],
    }
    exact = {
        "acceptance": acceptance_without_counts(plan),
        **{
            part: all(len(timing.samples_s) == 1 for table in part_tables for timing in table.timings)
            for part, part_tables in tables.items()
        },
    }
    names = [SOURCES[part] for part in SOURCES if exact.get(part) and origins[part] != "measured"]
    if names:
        yield Warning(
            f"imported without uncertainty: {', '.join(names)}. Intervals and probabilities treat them as exact.",
            "Import several samples of each time, and counts instead of rates.",
        )


def _uncertain_choice(plan: Plan, drafters: Sequence[DrafterChoice]) -> Iterator[Warning]:
    if plan.objective != "speed":
        return
    if len(drafters) > 1:
        if (probability := choice_confidence(drafters)) < SURE:
            yield Warning(
                f"the chance that this is within 1 % of the fastest of all drafters is only {percent_floor(probability)}.",
                "Profile with a longer --time-budget.",
            )
        return
    others = bool(drafters) and drafters[0].option.drafter.name != "model"  # the confidence is that of the draft model
    confidence = plan.confidence
    if others or confidence.probability >= SURE:
        return
    measured = _origins(plan)[confidence.weakest] == "measured"
    yield Warning(
        f"the chance that this is within 1 % of the fastest{under_rule(plan)} is only {percent_floor(confidence.probability)}. It would "
        f"be {percent_floor(confidence.if_exact[confidence.weakest])} if {SOURCES[confidence.weakest]} were known exactly.",
        f"Profile with a longer --time-budget, or more {REMEDIES[confidence.weakest]}."
        if measured
        else "Import more samples of it.",
    )


def _origins(plan: Plan) -> dict[str, str]:
    return trace_origins(plan.model.point.latencies, plan.model.acceptance)
