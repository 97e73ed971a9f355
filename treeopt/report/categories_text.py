"""The best option for each category of prompts as `treeopt solve` prints it, and what one option for all costs."""

from typing import TYPE_CHECKING

from treeopt.report.drafter_contexts_text import drafter_column, drafter_name
from treeopt.report.table import Column, aligned
from treeopt.report.text import spread

if TYPE_CHECKING:
    from treeopt.planner.categories import CategoryPlan, CategoryPlans

HEADER = ("category", "prompts", "drafter", "setting", "tokens/step", "speedup", "one for all", "gap")
COLUMNS = (Column(), Column(">"), *[Column(gap=3)] * 4, Column(">", gap=3), Column(">", gap=3))


def categories_text(plans: "CategoryPlans") -> str:
    """Return a line for each category, and the speedup over all of them with one option and with the best of each."""
    options = [plans.for_all, *(each.best for each in plans.plans)]
    rules = {each.rule for each in options if each.drafter.name == "model"}
    rows = [_row(each, name_rule=len(rules) > 1) for each in plans.plans]
    lines = ["By category of prompt:", "", *aligned([HEADER, *rows], COLUMNS)]
    return "\n".join([*lines, *_sentence(plans)])


def _row(plan: "CategoryPlan", *, name_rule: bool) -> tuple[str, ...]:
    best, for_all, gap = plan.best, plan.for_all, plan.gap
    return (
        plan.category,
        str(plan.prompts),
        drafter_column(best),
        f"{best.shape} under {best.rule}" if name_rule else best.shape,
        spread(best.tokens_per_step),
        spread(best.speedup),
        "-" if for_all is None else f"{for_all.value:.2f}",
        "-" if gap is None else f"{100 * gap:.1f} %",
    )


def _sentence(plans: "CategoryPlans") -> list[str]:
    for_all, best, gap = plans.for_all_speedup, plans.best_speedup, plans.gap
    if for_all is None or best is None or gap is None:
        return []
    option = plans.for_all
    name = drafter_name(option) if option.kind == "plain" else f"{drafter_name(option)}, {option.shape}"
    return [
        "",
        f"One option for all ({name}): {for_all:.2f}x plain decoding over equally many tokens of each category.",
        f"The best option for each: {best:.2f} times; one for all is {100 * gap:.1f} % slower.",
    ]
