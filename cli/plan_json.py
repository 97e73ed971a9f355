"""A plan as one JSON object, seconds and tokens, for programs."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from treeopt.cli.plan_text import warnings
from treeopt.records.profile import origins

if TYPE_CHECKING:
    from treeopt.planner import Candidate, Plan, RuleChoice, Schedule, Segment
    from treeopt.records.latency import Estimate
    from treeopt.records.profile import Profile

Object = dict[str, Any]


def plan_json(plan: "Plan", profile: "Profile", schedule: "Schedule | None") -> str:
    """Return the object's text, one key a line; docs/planning.md lists the keys."""
    content = {
        "pair": asdict(profile.pair),
        "machine": asdict(profile.machine),
        **_condition(plan),
        "origins": origins([latency for _, latency in plan.model.condition.parts], plan.model.acceptance),
        "objective": plan.objective,
        "max_nodes": plan.solution.max_nodes,
        "max_depth": plan.solution.max_depth,
        "choice": plan.choice.kind,
        "rules": [_rule_choice(each) for each in plan.rules],
        "candidates": {candidate.kind: _candidate(candidate) for candidate in (plan.plain, plan.chain, plan.tree)},
        "budgets": [_candidate(candidate) for candidate in plan.budgets],
        "certificate": _certificate(plan),
        "confidence": asdict(plan.confidence),
        "smoothing": _smoothing(plan),
        "warnings": warnings(plan),
        "schedule": None if schedule is None else _schedule(schedule),
    }
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def _condition(plan: "Plan") -> Object:
    return {
        "rule": plan.rule,
        "lossy": plan.lossy,
        "temperature": plan.temperature,
        "context_tokens": plan.context_tokens,
        "batch_size": plan.model.condition.batch_size,
        "extrapolated": plan.extrapolated,
    }


def _rule_choice(best: "RuleChoice") -> Object:
    return {"rule": best.rule, "lossy": best.lossy, "choice": _chosen(best.choice)}


def _candidate(candidate: "Candidate") -> Object:
    return {
        "nodes": candidate.tree.nodes,
        "depth": candidate.tree.max_depth,
        "verify_tokens": candidate.verify_tokens,
        **_estimate("tokens_per_step", candidate.tokens_per_step),
        **_estimate("step_s", candidate.step_s),
        **_estimate("speedup", candidate.speedup),
        "parents": candidate.tree.parents.tolist(),
    }


def _estimate(name: str, estimate: "Estimate") -> Object:
    return {name: estimate.value, f"{name}_interval": [estimate.low, estimate.high]}


def _certificate(plan: "Plan") -> Object:
    """Return why no tree has more tokens, and the bound on the speed of every tree."""
    return {
        **asdict(plan.solution.certificate),
        "statement": plan.solution.certificate.statement,
        "fastest_speedup": plan.fastest.speedup,
        "bound_on_speedup": plan.fastest.bound,
        "loss": plan.fastest.loss,
        "boxes": plan.fastest.boxes,
    }


def _smoothing(plan: "Plan") -> Object | None:
    smoothing = plan.model.smoothing
    if smoothing is None:
        return None
    return {name: getattr(smoothing, name) for name in ("changed", "largest_change", "kept")}


def _schedule(schedule: "Schedule") -> Object:
    plans = [
        {
            **_condition(plan),
            "choice": _chosen(plan.choice),
            "certificate": _certificate(plan),
            "confidence": asdict(plan.confidence),
        }
        for plan in schedule.plans
    ]
    return {
        "plans": plans,
        "over_contexts": _segments(schedule.over_contexts),
        "over_batch_sizes": _segments(schedule.over_batch_sizes),
    }


def _segments(segments: Iterable["Segment"]) -> list[Object]:
    return [
        {
            "rule": segment.rule,
            "lossy": segment.lossy,
            "temperature": segment.temperature,
            "batch_sizes": list(segment.batch_sizes),
            "context_tokens": list(segment.context_tokens),
            "choice": _chosen(segment.choice),
        }
        for segment in segments
    ]


def _chosen(choice: "Candidate") -> Object:
    return {"kind": choice.kind, **_candidate(choice)}
