"""A plan as `treeopt solve` prints it: the table, what is certain about it, and what to be warned of."""

import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.errors import Warning
from treeopt.report.categories_text import categories_text
from treeopt.report.drafter_contexts_text import drafter_column, drafter_contexts_text
from treeopt.report.schedule_text import schedule_table
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, percent_floor, rule_name, spread

if TYPE_CHECKING:
    from treeopt.planner import DrafterChoice, Option, Plan, PlanRequest, Prediction, Schedule, Segment
    from treeopt.planner.categories import CategoryPlans
    from treeopt.records.machine import Machine, Pair
    from treeopt.records.profile import Profile
    from treeopt.records.sampling import Sampling

PREDICTED = ("tokens/step", "step, ms", "speedup")
PREDICTED_COLUMNS = (Column(least=18, gap=3), Column(least=20), Column())
"""What is predicted of a way to decode, with intervals."""
COLUMNS = (Column(least=9), Column(">", least=5), Column(">", least=5, gap=1), *PREDICTED_COLUMNS)
SURE = 0.9
"""A choice that is less probably the best than this is warned of."""
SOURCES = {"acceptance": "acceptance", "verify": "verification time", "draft": "draft time", "overhead": "overhead"}
REMEDIES = {"acceptance": "--positions", "verify": "--rounds", "draft": "--rounds", "overhead": "--rounds"}
"""The option of `treeopt profile` that makes each source of uncertainty smaller."""


def planning_options(request: "PlanRequest") -> str:
    """Return the options of `treeopt solve` that stand for a request, those of the defaults left out.

    >>> from treeopt.planner import PlanRequest
    >>> planning_options(PlanRequest(temperature=0.6, max_nodes=64, memory_bytes=40_000_000_000, lossy=True))
    ' --temperature 0.6 --budget 64 --memory 40000000KB --lossy'
    """
    values = {
        "rule": request.rule,
        "temperature": request.temperature,
        "context-tokens": request.context_tokens,
        "batch-size": request.batch_size,
        "budget": request.max_nodes,
        "depth": request.max_depth,
        "level-width": request.level_widths,
        "memory": None if request.memory_bytes is None else f"{Decimal(request.memory_bytes) / 1000}KB",
        "objective": None if request.objective == "speed" else request.objective,
    }
    flags = [name for name in ("extrapolate", "raw", "lossy") if getattr(request, name)]
    options = [f" --{name} {value}" for name, value in values.items() if value is not None]
    return "".join([*options, *(f" --{name}" for name in flags)])


def decoding_options(plan: "Plan") -> str:
    """Return the options of `treeopt run` and `bench tree` under which a plan was made, those of the defaults left out."""
    acceptance = plan.model.acceptance
    return sampling_text(acceptance.sampling, acceptance.draft_sampling) + (" --lossy" if plan.lossy else "")


def sampling_text(sampling: "Sampling", draft_sampling: "Sampling | None") -> str:
    """Return the options that stand for a way of sampling, those of the defaults left out.

    >>> from treeopt.records.sampling import Sampling
    >>> sampling_text(Sampling(0.6, top_k=50), Sampling(0.8)), sampling_text(Sampling(), None)
    (' --temperature 0.6 --top-k 50 --draft-temperature 0.8', '')
    """
    given = [(name, getattr(sampling, name)) for name in ("temperature", "top_p", "top_k")]
    if draft_sampling is not None:
        given += [(f"draft_{name}", getattr(draft_sampling, name)) for name in ("temperature", "top_p", "top_k")]
    usual = {"temperature": 0, "top_p": 1, "top_k": 0, "draft_top_p": 1, "draft_top_k": 0}
    return "".join(f" --{name.replace('_', '-')} {value:g}" for name, value in given if value != usual.get(name))


def plan_text(
    plan: "Plan",
    profile: "Profile",
    schedule: "Schedule | None" = None,
    *,
    level_width: int | None = None,
    new_tokens: int | None = None,
    drafters: "Sequence[DrafterChoice]" = (),
    over_contexts: "Sequence[Segment]" = (),
    category: str | None = None,
    categories: "CategoryPlans | None" = None,
) -> str:
    """Return all of a plan in words and tables.

    Args:
        plan: what was planned.
        profile: what it was planned from.
        schedule: what to run where, if that was planned too.
        level_width: the most nodes of any level that were allowed, or None for any number.
        new_tokens: of the texts that are planned for, or None for those measured.
        drafters: the best of each, where others than the draft model were measured.
        over_contexts: the fastest of them by context length.
        category: of the prompts that are planned for, or None for all of the profile.
        categories: the best option for each category, where the profile has several.
    """
    blocks = [heading(plan, profile, new_tokens, category)]
    if profile.has_draft_model:
        blocks.append(table(plan))
    if len(plan.rules) > 1:
        blocks.append(rules_table(plan))
    if profile.has_draft_model:
        blocks.append("\n".join(remarks(plan, level_width)))
    if drafters:
        blocks.append(drafters_table(drafters, plan.objective))
    if over_contexts:
        blocks.append(drafter_contexts_text(over_contexts))
    if schedule is not None:
        blocks.append(schedule_table(schedule))
    if categories is not None:
        blocks.append(categories_text(categories))
    return "\n\n".join(blocks)


def plan_source(path: Path, plan: "Plan", new_tokens: int | None = None, category: str | None = None) -> str:
    """Return the source that a tree file names: the profile, the texts that were planned for, and imported parts."""
    return "; ".join(filter(None, [str(path), *_texts(new_tokens, category), imported(plan)]))


def heading(plan: "Plan", profile: "Profile", new_tokens: int | None = None, category: str | None = None) -> str:
    """Return what was planned for: the pair, the machine, the conditions, and on a line of its own what was imported."""
    conditions = ", ".join([plan.conditions, *_texts(new_tokens, category)])
    return "\n".join(filter(None, [f"{subject(profile)}: {conditions}", imported(plan)]))


def _texts(new_tokens: int | None, category: str | None) -> list[str]:
    """Return the length of the texts that are planned for, and the category of their prompts, where they are given."""
    length = [] if new_tokens is None else [f"texts of {counted(new_tokens, 'new token')}"]
    return [*length, *([] if category is None else [f"prompts of category {category}"])]


def subject(profile: "Profile") -> str:
    """Return the pair and the machine of a profile."""
    engine = "" if profile.engine is None else f" in {profile.engine.name}"
    return f"{profile.pair.label}{engine}{_on(profile.machine)}"


def models_and_machine(pair: "Pair", machine: "Machine") -> str:
    """Return a pair and a machine, such as `big + small on AMD EPYC (2 threads)`."""
    return f"{pair.label}{_on(machine)}"


def _on(machine: "Machine") -> str:
    threads = "" if machine.threads is None else f" ({counted(machine.threads, 'thread')})"
    return f" on {machine.processor}{threads}"


def imported(plan: "Plan") -> str:
    """Return where the plan's numbers come from, empty where all were measured here."""
    from treeopt.records.profile import origins_text

    return origins_text(plan.model.point.latencies, plan.model.acceptance)


def table(plan: "Plan") -> str:
    """Return the candidates as lines, the choice marked."""
    budgets = [_row("", candidate) for candidate in plan.budgets]
    last = [_row(name, option, chosen=option is plan.choice) for name, option in plan.candidates.items()]
    return "\n".join(aligned([_header(""), *budgets, (), *last], COLUMNS))


def rules_table(plan: "Plan") -> str:
    """Return the best of every rule that was planned as lines, the chosen one marked."""
    rows = [_row(rule_name(each.rule, lossy=each.lossy), each, chosen=each.rule == plan.rule) for each in plan.rules]
    return "\n".join(aligned([_header("rule"), *rows], COLUMNS))


def drafters_table(drafters: "Sequence[DrafterChoice]", objective: str) -> str:
    """Return the best of every drafter as lines, that of all marked, and in words where there are several."""
    from treeopt.planner import best_drafter, choice_confidence

    best = best_drafter(drafters, objective)
    rows = [
        (
            f"{'*' if each is best else ' '} {drafter_column(each.option)}",
            each.option.shape,
            *spreads(each.option.prediction),
        )
        for each in drafters
    ]
    columns = (Column(least=9), Column(least=9, gap=3), *PREDICTED_COLUMNS)
    lines = aligned([("  drafter", "setting", *PREDICTED), *rows], columns)
    if len(drafters) == 1:
        return "\n".join(lines)
    sure = [
        f"{percent_floor(choice_confidence(drafters)).capitalize()} chance that this is within 1 % of the fastest of all drafters."
    ]
    return "\n".join([*lines, "", _best_of_all(best.option, objective), *(sure if objective == "speed" else [])])


def _best_of_all(best: "Option", objective: str) -> str:
    """Return the best option of all drafters in a sentence."""
    name = "the draft model" if best.drafter.name == "model" else best.drafter.name
    if objective == "tokens":
        return f"Most tokens of all drafters: {name}, {best.shape}, {best.tokens_per_step.value:.2f} per step."
    if best.kind == "plain":
        return "Plain decoding is the fastest of all: no drafter pays for itself here."
    return f"Fastest of all drafters: {name}, {best.shape}, {best.speedup.value:.2f}x plain decoding."


def spreads(predicted: "Prediction") -> tuple[str, str, str]:
    """Return the columns of a prediction."""
    return spread(predicted.tokens_per_step), spread(predicted.step_s, 1000), spread(predicted.speedup)


def remarks(plan: "Plan", level_width: int | None = None) -> list[str]:
    """Return the verdict, why nothing is better, how sure that is, and what was done to the measurements.

    Args:
        plan: what was planned.
        level_width: the most nodes of any level that were allowed, or None for any number.
    """
    remarks = [_verdict(plan), _optimality(plan, level_width)]
    if plan.objective == "speed":
        remarks.append(
            "The confidence cannot be estimated: the acceptance was imported without counts."
            if _acceptance_without_counts(plan)
            else f"{percent_floor(plan.confidence.probability).capitalize()} chance that this is within 1 % of the fastest{_under(plan)}."
        )
    if plan.choice.verify_tokens > plan.choice.tree.nodes:
        remarks.append(f"Run the verification pass padded to {plan.choice.verify_tokens} tokens: that is faster.")
    return remarks + _memory(plan) + _smoothing(plan)


def _memory(plan: "Plan") -> list[str]:
    """Return how many sequences fit in memory, with plain decoding and with the choice."""
    if plan.memory is None:
        return []
    nodes = plan.choice.tree.nodes
    plain, chosen = (plan.memory.sequences(plan.context_tokens, count) for count in (1, nodes))
    line = f"{plan.memory.total_bytes / 1e9:.3g} GB hold {counted(plain, 'sequence')} of {plan.context_tokens} tokens"
    return [f"{line}, {chosen} with {counted(nodes, 'node')} in each step." if nodes > 1 else f"{line}."]


def warnings(plan: "Plan", drafters: "Sequence[DrafterChoice]" = ()) -> list[Warning]:
    """Return what to be careful with."""
    return _extrapolated(plan) + _without_errors(plan) + _unsure(plan, drafters)


def _header(name: str) -> tuple[str, ...]:
    return (f"  {name}", "nodes", "depth", *PREDICTED)


def _row(name: str, candidate: "Option", *, chosen: bool = False) -> tuple[str, ...]:
    return (
        f"{'*' if chosen else ' '} {name}",
        str(candidate.tree.nodes),
        str(candidate.tree.max_depth),
        *spreads(candidate.prediction),
    )


def _verdict(plan: "Plan") -> str:
    choice = plan.choice
    shape = f"a {choice.shape}{_under(plan)}"
    if plan.objective == "tokens":
        return f"Most tokens: {shape}, {choice.tokens_per_step.value:.2f} per step."
    if choice.kind == "plain":
        return f"Plain decoding wins: on this machine no draft of this pair pays for itself{_best_draft(plan)}."
    return f"Fastest: {shape}, {choice.speedup.value:.2f}x plain decoding."


def _best_draft(plan: "Plan") -> str:
    """Return by how much the fastest of the budgets' drafts loses, empty where none drafts."""
    drafts = [each for each in plan.budgets if each.tree.nodes > 1]
    if not drafts:
        return ""
    best = max(drafts, key=lambda each: each.speedup.value)
    return f"; the fastest above, of {best.tree.nodes} nodes, is {best.speedup.value:.2f} times as fast"


def _optimality(plan: "Plan", level_width: int | None) -> str:
    """Return how much better any other tree can be; what is not 0 is rounded up."""
    solved = plan.solution
    width = "" if level_width is None else f", {level_width} to a level,"
    trees = f"No tree of up to {solved.max_nodes} nodes{width} and depth {solved.max_depth}{_under(plan)}"
    if plan.objective == "tokens":
        return f"{trees} yields more."
    from treeopt.trees import describe_tree

    other = plan.fastest.tree
    if plan.tree.tree != other:
        return (
            f"By the table alone a {describe_tree(other)} is the fastest; "
            "replayed along the measured texts, of the hundred fastest by the table, the choice is."
        )
    replayed = ", nor is one of the hundred fastest replayed along the texts" if plan.model.tokens.replayed else ""
    if plan.fastest.loss == 0:
        return f"{trees} is faster{' by the table' if replayed else ''}{replayed}."
    more = plan.fastest.bound / plan.fastest.speedup - 1
    return f"{trees} can be more than {math.ceil(1000 * more) / 10:g} % faster."


def _under(plan: "Plan") -> str:
    """Return which rule's trees are spoken of, where there are others."""
    return f" under {plan.rule}" if len(plan.rules) > 1 else ""


def _smoothing(plan: "Plan") -> list[str]:
    smoothing = plan.model.smoothing
    remarks = []
    if smoothing and smoothing.changed:
        entries = "entry" if smoothing.changed == 1 else "entries"
        remarks.append(
            f"Smoothed {smoothing.changed} acceptance {entries} whose ranks rose by noise "
            f"(largest change {smoothing.largest_change:.2g}); --raw uses them as measured."
        )
    if smoothing and smoothing.kept:
        runs = "1 run of ranks rises" if smoothing.kept == 1 else f"{smoothing.kept} runs of ranks rise"
        remarks.append(f"{runs} by more than noise explains, and stayed as measured.")
    return remarks


def _extrapolated(plan: "Plan") -> list[Warning]:
    where, most = plan.model.point, plan.solution.max_nodes
    warnings: list[Warning] = []
    if where.extrapolated:
        warnings.append(
            Warning(
                f"context {where.context_tokens} tokens x batch {where.batch_size} lies outside what was measured; its times "
                "are extrapolated linearly.",
                "Profile there before you rely on them.",
            )
        )
    if most > where.max_nodes:
        warnings.append(
            Warning(
                f"passes were measured up to {where.max_nodes} tokens; times of larger ones are extrapolated linearly.",
                f"Profile with --max-tokens {most} before you rely on them.",
            )
        )
    return warnings


def _acceptance_without_counts(plan: "Plan") -> bool:
    acceptance = plan.model.acceptance
    unknown = acceptance.texts is None and acceptance.table.standard_error is None
    return unknown and _origins(plan)["acceptance"] != "measured"


def _without_errors(plan: "Plan") -> list[Warning]:
    """Return the warning that something imported came without errors, so that nothing is known of its own."""
    latencies = plan.model.point.latencies
    tables = {"verify": [each.verify for each in latencies], "draft": [each.draft for each in latencies if each.draft]}
    exact = {
        "acceptance": _acceptance_without_counts(plan),
        **{
            part: all(len(timing.samples_s) == 1 for each in found for timing in each.timings)
            for part, found in tables.items()
        },
    }
    found = _origins(plan)
    names = tuple(SOURCES[part] for part in SOURCES if exact.get(part) and found[part] != "measured")
    if not names:
        return []
    return [
        Warning(
            f"imported without errors: {', '.join(names)}. Intervals and probabilities take them for exact.",
            "Import several samples of each time, and counts in place of rates.",
        )
    ]


def _unsure(plan: "Plan", drafters: "Sequence[DrafterChoice]") -> list[Warning]:
    if len(drafters) > 1:
        return _unsure_of_drafters(plan, drafters)
    confidence = plan.confidence
    if plan.objective != "speed" or confidence.probability >= SURE:
        return []
    under = f" under {plan.rule}" if len(plan.rules) > 1 else ""
    measured = _origins(plan)[confidence.weakest] == "measured"
    return [
        Warning(
            f"the chance that this is within 1 % of the fastest{under} is only {percent_floor(confidence.probability)}. It would "
            f"be {percent_floor(confidence.without_weakest)} if {SOURCES[confidence.weakest]} were known exactly.",
            f"Profile with a larger --time-budget, or more {REMEDIES[confidence.weakest]}."
            if measured
            else "Import more samples of it.",
        )
    ]


def _unsure_of_drafters(plan: "Plan", drafters: "Sequence[DrafterChoice]") -> list[Warning]:
    from treeopt.planner import choice_confidence

    probability = choice_confidence(drafters)
    if plan.objective != "speed" or probability >= SURE:
        return []
    return [
        Warning(
            f"the chance that this is within 1 % of the fastest of all drafters is only {percent_floor(probability)}.",
            "Profile with a longer --time-budget.",
        )
    ]


def _origins(plan: "Plan") -> dict[str, str]:
    from treeopt.records.profile import origins

    return origins(plan.model.point.latencies, plan.model.acceptance)
