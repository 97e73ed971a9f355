"""A plan as `treeopt solve` prints it: the table, how certain it is, and the schedule."""

import math
from collections.abc import Sequence
from pathlib import Path

from treeopt.planner import Option, Plan, PlanRequest, Schedule, Segment
from treeopt.planner.categories import CategoryPlans
from treeopt.planner.planning import RIVALS
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.profile import Profile, describe_origins
from treeopt.report.drafters_text import categories_text, drafter_contexts_text, drafters_table
from treeopt.report.plan_warnings import acceptance_without_counts, under_rule
from treeopt.report.table import PREDICTED, PREDICTED_COLUMNS, Column, aligned, predicted_cells
from treeopt.report.text import counted, percent_floor, range_text, rule_name, spread, subject
from treeopt.trees import describe_tree

COLUMNS = (Column(least=9), Column(">", least=5), Column(">", least=5, gap=1), *PREDICTED_COLUMNS)
SCHEDULE_HEADER = ("rule", "temperature", "batch", "context", "run", "speedup at the start")


def plan_text(
    planned: ProfilePlan,
    *,
    new_tokens: int | None = None,
    category: str | None = None,
    categories: CategoryPlans | None = None,
) -> str:
    """Return a plan in tables and sentences.

    Args:
        planned: the plan, and what else follows from the profile.
        new_tokens: length of the sequences that are planned for; None for those measured.
        category: of the prompts that are planned for; None for all of the profile.
        categories: the best option for each, if the profile has several.
    """
    plan, profile = planned.plan, planned.profile
    blocks = [heading(plan, profile, new_tokens, category)]
    if profile.has_draft_model:
        blocks.append(candidates_table(plan))
    if len(plan.rules) > 1:
        blocks.append(rules_table(plan))
    if profile.has_draft_model:
        blocks.append("\n".join(conclusions(planned)))
    if planned.drafters:
        blocks.append(drafters_table(planned.drafters, plan.objective))
    if planned.over_contexts:
        blocks.append(drafter_contexts_text(planned.over_contexts))
    if planned.schedule is not None:
        blocks.append(schedule_table(planned.schedule))
    if categories is not None:
        blocks.append(categories_text(categories))
    return "\n\n".join(blocks)


def plan_source(path: Path, plan: Plan, new_tokens: int | None = None, category: str | None = None) -> str:
    """Return the source that a tree file names: the profile, the prompts and sequences planned for, and imported parts."""
    return "; ".join(filter(None, [str(path), *_planned_for(new_tokens, category), plan_origins(plan)]))


def heading(plan: Plan, profile: Profile, new_tokens: int | None = None, category: str | None = None) -> str:
    """Return the pair, machine and conditions, and on a second line what was imported."""
    conditions = ", ".join([plan.conditions, *_planned_for(new_tokens, category)])
    return "\n".join(filter(None, [f"{subject(profile)}: {conditions}", plan_origins(plan)]))


def _planned_for(new_tokens: int | None, category: str | None) -> list[str]:
    length = [] if new_tokens is None else [f"sequences of {counted(new_tokens, 'new token')}"]
    return [*length, *([] if category is None else [f"prompts of category {category}"])]


def plan_origins(plan: Plan) -> str:
    """Return where the plan's numbers come from; empty if all were measured here."""
    return describe_origins(plan.model.point.latencies, plan.model.acceptance)


def candidates_table(plan: Plan) -> str:
    """Return the fastest tree of every budget, then plain decoding, the best chain and the best tree, the choice marked.

    A candidate that equals a simpler one is left out.
    """
    budgets = [_row("", option) for option in plan.budgets]
    first_names = {option.tree: name for name, option in reversed(plan.candidates.items())}
    candidates = [
        _row(name, option, chosen=name == plan.choice_name)
        for name, option in plan.candidates.items()
        if first_names[option.tree] == name
    ]
    return "\n".join(aligned([_header(""), *budgets, (), *candidates], COLUMNS))


def rules_table(plan: Plan) -> str:
    """Return the best option of every rule that was planned, the chosen one marked."""
    rows = [_row(rule_name(option.rule), option, chosen=option.rule == plan.rule) for option in plan.rules]
    return "\n".join(aligned([_header("rule"), *rows], COLUMNS))


def schedule_table(schedule: Schedule) -> str:
    """Return the segments over context lengths, and those over batch sizes."""
    contexts, batches = schedule.over_contexts, schedule.over_batch_sizes
    if all(segment.context_tokens[0] == segment.context_tokens[1] for segment in contexts) and batches:
        contexts = ()  # one length per batch size: the segments over batch sizes contain these
    blocks = [
        ("What to run where, by context length at each measured batch size:", contexts),
        ("What to run where, by batch size at each measured context length:", batches),
    ]
    return "\n\n".join(f"{title}\n\n{_segments_table(segments)}" for title, segments in blocks if segments)


def conclusions(planned: ProfilePlan) -> list[str]:
    """Return sentences: the choice, how much faster other trees can be, how certain that is, and what was smoothed."""
    plan = planned.plan
    sentences = [_verdict(plan), _optimality(plan, planned.request)]
    if plan.objective == "speed":
        chance = percent_floor(plan.confidence.probability).capitalize()
        sentences.append(
            "The confidence cannot be estimated: the acceptance was imported without counts."
            if acceptance_without_counts(plan)
            else f"{chance} chance that this is within 1 % of the fastest{under_rule(plan)}."
        )
    if plan.choice.verify_tokens > plan.choice.tree.nodes:
        sentences.append(f"Run the verification pass padded to {plan.choice.verify_tokens} tokens: that is faster.")
    return sentences + _memory(plan) + _smoothing(plan)


def _header(name: str) -> tuple[str, ...]:
    return (f"  {name}", "nodes", "depth", *PREDICTED)


def _row(name: str, option: Option, *, chosen: bool = False) -> tuple[str, ...]:
    return (
        f"{'*' if chosen else ' '} {name}",
        str(option.tree.nodes),
        str(option.tree.max_depth),
        *predicted_cells(option.prediction),
    )


def _verdict(plan: Plan) -> str:
    choice = plan.choice
    shape = f"a {choice.shape}{under_rule(plan)}"
    if plan.objective == "tokens":
        return f"Most tokens: {shape}, {choice.tokens_per_step.value:.2f} per step."
    if min(plan.solution.max_nodes - 1, plan.solution.max_depth) == 0:
        return "Plain decoding: the limits, or what was measured, allow no draft token."
    if choice.kind == "plain":
        drafts = [option for option in plan.budgets if option.tree.nodes > 1]
        if not drafts:
            return "Plain decoding is the fastest: no draft of this pair pays for itself on this machine."
        best = max(drafts, key=lambda option: option.speedup.value)
        return (
            "Plain decoding is the fastest: no draft of this pair pays for itself on this machine. The best above, of "
            f"{best.tree.nodes} nodes, reaches {best.speedup.value:.2f}x."
        )
    return f"Fastest: {shape}, {choice.speedup.value:.2f}x plain decoding."


def _optimality(plan: Plan, request: PlanRequest) -> str:
    """Return how much faster any other tree can be, rounded up."""
    solved = plan.solution
    width = "" if request.level_widths is None else f", {request.level_widths} to a level,"
    trees = f"No tree of up to {solved.max_nodes} nodes{width} and depth {solved.max_depth}{under_rule(plan)}"
    if plan.objective == "tokens":
        return f"{trees} yields more."
    fastest = plan.fastest.tree
    if plan.tree.tree != fastest:
        return (
            f"The acceptance table alone favours a {describe_tree(fastest)}; replaying the measured sequences puts the choice "
            "ahead of it."
        )
    if plan.fastest.loss > 0:
        gain = plan.fastest.bound / plan.fastest.speedup - 1
        return f"{trees} can be more than {math.ceil(1000 * gain) / 10:g} % faster."
    if not plan.model.tokens.replayed:
        return f"{trees} is faster."
    return f"{trees} is faster by the acceptance table, and none of its {RIVALS} fastest when replayed on the measured sequences."


def _memory(plan: Plan) -> list[str]:
    """Return how many sequences fit in memory, with plain decoding and with the choice."""
    if plan.memory is None:
        return []
    nodes = plan.choice.tree.nodes
    plain, chosen = (plan.memory.sequences(plan.context_tokens, count) for count in (1, nodes))
    line = f"{plan.memory.total_bytes / 1e9:.3g} GB hold {counted(plain, 'sequence')} of {plan.context_tokens} tokens"
    return [f"{line}, {chosen} with {counted(nodes, 'node')} in each step." if nodes > 1 else f"{line}."]


def _smoothing(plan: Plan) -> list[str]:
    smoothing = plan.model.tokens.smoothing
    sentences = []
    if smoothing and smoothing.changed:
        entries = "entry" if smoothing.changed == 1 else "entries"
        sentences.append(
            f"Smoothed {smoothing.changed} acceptance {entries} that increased by rank through noise "
            f"(largest change {smoothing.largest_change:.2g}); --raw uses them as measured."
        )
    if smoothing and smoothing.kept:
        increases = "1 increase" if smoothing.kept == 1 else f"{smoothing.kept} increases"
        sentences.append(f"Kept {increases} of acceptance by rank that noise does not explain.")
    return sentences


def _segments_table(segments: Sequence[Segment]) -> str:
    rows = [SCHEDULE_HEADER, *(_segment_row(segment) for segment in segments)]
    return "\n".join(aligned(rows, [Column(gap=3)] * len(SCHEDULE_HEADER)))


def _segment_row(segment: Segment) -> tuple[str, ...]:
    option = segment.option
    padded = f", padded to {option.verify_tokens}" if option.verify_tokens > option.tree.nodes else ""
    return (
        rule_name(option.rule),
        f"{segment.temperature:g}",
        range_text(segment.batch_sizes, "-"),
        range_text(segment.context_tokens, "-"),
        option.shape + padded,
        spread(option.speedup),
    )
