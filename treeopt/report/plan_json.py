"""A plan as JSON, in seconds and tokens; docs/guides/plan.md lists the keys."""

import json
from typing import Any

from treeopt.files.serialization import serialize_record
from treeopt.planner import Option, Schedule, Segment
from treeopt.planner.categories import CategoryPlans
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.report.plan_warnings import profile_plan_warnings


def plan_json(
    planned: ProfilePlan,
    *,
    new_tokens: int | None = None,
    category: str | None = None,
    categories: CategoryPlans | None = None,
) -> str:
    """Return the object as text, one key per line.

    Args:
        planned: the plan, and what else follows from the profile.
        new_tokens: of the sequences that are planned for; None is as long as those measured.
        category: of the prompts that are planned for; None is all of the profile.
        categories: the best option for each, if the profile has several.
    """
    report = {
        "pair": serialize_record(planned.profile.pair, nulls=True),
        "machine": serialize_record(planned.profile.machine, nulls=True),
        "new_tokens": new_tokens,
        "category": category,
        **planned.plan.to_dict(),
        "drafters": [
            {**_option(choice.option), "bound_on_speedup": choice.bound, "chosen": choice is planned.best}
            for choice in planned.drafters
        ],
        "drafters_over_contexts": [
            {
                "context_tokens": segment.context_tokens,
                **_setting(segment.option),
                "speedup": segment.option.speedup.value,
            }
            for segment in planned.over_contexts
        ],
        "warnings": list(map(str, profile_plan_warnings(planned, categories))),
        "schedule": None if planned.schedule is None else _schedule(planned.schedule),
        "categories": None if categories is None else _categories(categories),
    }
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in report.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _setting(option: Option) -> dict[str, Any]:
    """Return the drafter and its setting; no parents if it builds its own trees."""
    return {
        "drafter": option.drafter.name,
        "settings": dict(option.drafter.values),
        "rule": option.rule,
        "nodes": option.max_nodes,
        "parents": None if option.drafter.builds_own_trees else option.tree.parents.tolist(),
    }


def _option(option: Option) -> dict[str, Any]:
    """Return the drafter and its setting with the prediction."""
    return {
        **_setting(option),
        "source": option.drafter.source,
        "layers": option.drafter.layers,
        "block_draft_tokens": option.drafter.block_draft_tokens,
        **option.prediction.fields,
    }


def _categories(categories: CategoryPlans) -> dict[str, Any]:
    return {
        "plans": [
            {
                "category": plan.category,
                "prompts": plan.prompts,
                **_option(plan.best),
                "for_all": None if plan.for_all is None else plan.for_all.named_fields("speedup"),
                "gap": plan.gap,
            }
            for plan in categories.plans
        ],
        "one_for_all": {
            "speedup": categories.for_all_speedup,
            "best_speedup": categories.best_speedup,
            "gap": categories.gap,
        },
    }


def _choice(option: Option) -> dict[str, Any]:
    return {"kind": option.kind, **option.to_dict()}


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "rule": segment.option.rule,
        "lossy": segment.option.lossy,
        "temperature": segment.temperature,
        "batch_sizes": segment.batch_sizes,
        "context_tokens": segment.context_tokens,
        "choice": _choice(segment.option),
    }


def _schedule(schedule: Schedule) -> dict[str, Any]:
    condition = ("rule", "lossy", "temperature", "context_tokens", "batch_size", "extrapolated")
    plans = [(plan, plan.to_dict()) for plan in schedule.plans]
    return {
        "plans": [
            {
                **{name: content[name] for name in condition},
                "choice": _choice(plan.choice),
                "certificate": content["certificate"],
                "confidence": content["confidence"],
            }
            for plan, content in plans
        ],
        "over_contexts": [_segment(segment) for segment in schedule.over_contexts],
        "over_batch_sizes": [_segment(segment) for segment in schedule.over_batch_sizes],
    }
