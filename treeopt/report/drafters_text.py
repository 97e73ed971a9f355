"""Drafters compared as `treeopt solve` prints it: the best setting of each, over context lengths, and by category of prompt."""

from collections.abc import Sequence

from treeopt.planner import DrafterChoice, Option, Segment, best_drafter, choice_confidence
from treeopt.planner.categories import CategoryPlan, CategoryPlans
from treeopt.report.table import PREDICTED, PREDICTED_COLUMNS, Column, aligned, predicted_cells
from treeopt.report.text import percent, percent_floor, range_text, spread

CONTEXTS_HEADER = ("context", "drafter", "setting", "speedup at the start")
CATEGORIES_HEADER = ("category", "prompts", "drafter", "setting", "tokens/step", "speedup", "one for all", "gap")
CATEGORIES_COLUMNS = (Column(), Column(">"), *[Column(gap=3)] * 4, Column(">", gap=3), Column(">", gap=3))


def drafter_name(option: Option) -> str:
    """Return what drafts, for sentences."""
    if option.kind == "plain":
        return "plain decoding"
    return "the draft model" if option.drafter.name == "model" else option.drafter.name


def _drafter_and_shape(option: Option) -> str:
    name = drafter_name(option)
    return name if option.kind == "plain" else f"{name}, {option.shape}"


def _drafter_cell(option: Option) -> str:
    return "plain" if option.kind == "plain" else option.drafter.name


def drafters_table(drafters: Sequence[DrafterChoice], objective: str) -> str:
    """Return a line for the best setting of every drafter, the best of all marked, and a sentence if there are several."""
    best = best_drafter(drafters, objective)
    rows = [
        (
            f"{'*' if choice is best else ' '} {_drafter_cell(choice.option)}",
            choice.option.shape,
            *predicted_cells(choice.option.prediction),
        )
        for choice in drafters
    ]
    columns = (Column(least=9), Column(least=9, gap=3), *PREDICTED_COLUMNS)
    lines = aligned([("  drafter", "setting", *PREDICTED), *rows], columns)
    if len(drafters) > 1:
        lines += ["", _best_of_all(best.option, objective)]
        if objective == "speed":
            chance = percent_floor(choice_confidence(drafters)).capitalize()
            lines.append(f"{chance} chance that this is within 1 % of the fastest of all drafters.")
    return "\n".join(lines)


def _best_of_all(best: Option, objective: str) -> str:
    if objective == "tokens":
        return f"Most tokens of all drafters: {_drafter_and_shape(best)}, {best.tokens_per_step.value:.2f} per step."
    if best.kind == "plain":
        return "Plain decoding is the fastest of all: no drafter pays for itself here."
    return f"Fastest of all drafters: {_drafter_and_shape(best)}, {best.speedup.value:.2f}x plain decoding."


def drafter_contexts_text(segments: Sequence[Segment]) -> str:
    """Return a line for every range of context lengths."""
    rows = [
        (
            range_text(segment.context_tokens, "-"),
            segment.option.drafter.name,
            segment.option.shape,
            f"{segment.option.speedup.value:.2f}",
        )
        for segment in segments
    ]
    table = "\n".join(aligned([CONTEXTS_HEADER, *rows], [Column(gap=3)] * len(CONTEXTS_HEADER)))
    return f"All drafters by context length:\n\n{table}"


def categories_text(plans: CategoryPlans) -> str:
    """Return the best option for each category of prompts, and the speedup over all with it and with one option for all."""
    options = [plans.for_all, *(plan.best for plan in plans.plans)]
    rules = {option.rule for option in options if option.drafter.name == "model"}
    rows = [_category_row(plan, name_rule=len(rules) > 1) for plan in plans.plans]
    lines = ["By category of prompt:", "", *aligned([CATEGORIES_HEADER, *rows], CATEGORIES_COLUMNS)]
    for_all, best, gap = plans.for_all_speedup, plans.best_speedup, plans.gap
    if for_all is not None and best is not None and gap is not None:
        summary = (
            f"With equally many tokens of each category: {best:.2f}x plain decoding with the best option for each, "
            f"{for_all:.2f}x with one for all ({_drafter_and_shape(plans.for_all)}), a gap of {percent(gap, 1)}."
        )
        lines += ["", summary]
    return "\n".join(lines)


def _category_row(plan: CategoryPlan, *, name_rule: bool) -> tuple[str, ...]:
    best, for_all, gap = plan.best, plan.for_all, plan.gap
    return (
        plan.category,
        str(plan.prompts),
        _drafter_cell(best),
        f"{best.shape} under {best.rule}" if name_rule else best.shape,
        spread(best.tokens_per_step),
        spread(best.speedup),
        "-" if for_all is None else f"{for_all.value:.2f}",
        "-" if gap is None else percent(gap, 1),
    )
