"""A plan as JSON, in seconds and tokens; docs/guides/plan.md lists the keys."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treeopt.files.serialization import serialize_record
from treeopt.report.json_text import json_lines
from treeopt.report.plan_warnings import context_warnings, plan_warnings

if TYPE_CHECKING:
    from treeopt.planner import DrafterChoice, Option, Plan, Schedule, Segment
    from treeopt.planner.categories import CategoryPlans
    from treeopt.records.profile import Profile


def plan_json(
    plan: "Plan",
    profile: "Profile",
    schedule: "Schedule | None",
    drafters: "Sequence[DrafterChoice]" = (),
    over_contexts: "Sequence[Segment]" = (),
    *,
    new_tokens: int | None = None,
    category: str | None = None,
    categories: "CategoryPlans | None" = None,
) -> str:
    """Return the object as text, one key per line.

    Args:
        plan: of the draft model.
        profile: what it was planned from.
        schedule: over several operating points.
        drafters: the best setting of each, if others than the draft model were measured.
        over_contexts: the fastest of all drafters by context length.
        new_tokens: of the sequences that are planned for; None is as long as those measured.
        category: of the prompts that are planned for; None is all of the profile.
        categories: the best option for each, if the profile has several.
    """
    from treeopt.planner import best_drafter

    best = best_drafter(drafters, plan.objective) if drafters else None
    warnings = [*plan_warnings(plan, drafters), *context_warnings(plan, profile, schedule, drafters)]
    warnings += () if categories is None else categories.warnings
    return json_lines(
        {
            "pair": serialize_record(profile.pair, nulls=True),
            "machine": serialize_record(profile.machine, nulls=True),
            "new_tokens": new_tokens,
            "category": category,
            **plan.to_dict(),
            "drafters": [
                {**_option(choice.option), "bound_on_speedup": choice.bound, "chosen": choice is best}
                for choice in drafters
            ],
            "drafters_over_contexts": [
                {
                    "context_tokens": segment.context_tokens,
                    **_setting(segment.option),
                    "speedup": segment.option.speedup.value,
                }
                for segment in over_contexts
            ],
            "warnings": list(map(str, warnings)),
            "schedule": None if schedule is None else _schedule(schedule),
            "categories": None if categories is None else _categories(categories),
        }
    )


def _setting(option: "Option") -> dict[str, Any]:
    """Return the drafter and its setting; no parents if it builds its own trees."""
    return {
        "drafter": option.drafter.name,
        "settings": {parameter.name: parameter.value for parameter in option.drafter.values},
        "rule": option.rule,
        "nodes": option.max_nodes,
        "parents": None if option.drafter.builds_own_trees else option.tree.parents.tolist(),
    }


def _option(option: "Option") -> dict[str, Any]:
    """Return the drafter and its setting with the prediction."""
    return {
        **_setting(option),
        "source": option.drafter.source,
        "layers": option.drafter.layers,
        "block_draft_tokens": option.drafter.block_draft_tokens,
        **option.prediction.fields,
    }


def _categories(categories: "CategoryPlans") -> dict[str, Any]:
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


def _choice(option: "Option") -> dict[str, Any]:
    return {"kind": option.kind, **option.to_dict()}


def _segment(segment: "Segment") -> dict[str, Any]:
    return {
        "rule": segment.option.rule,
        "lossy": segment.option.lossy,
        "temperature": segment.temperature,
        "batch_sizes": segment.batch_sizes,
        "context_tokens": segment.context_tokens,
        "choice": _choice(segment.option),
    }


def _schedule(schedule: "Schedule") -> dict[str, Any]:
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
        "switches": [
            {
                "temperature": after.temperature,
                "batch_size": after.batch_sizes[0],
                "context_tokens": after.context_tokens[0],
                "rule": after.option.rule,
                "before": _choice(before.option),
                "after": _choice(after.option),
            }
            for before, after in schedule.switches
        ],
    }
