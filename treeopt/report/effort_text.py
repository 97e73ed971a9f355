"""What a profile's time was spent on, and what is left open, as texts."""

from collections.abc import Mapping

from treeopt.planner.certainty import Certainty
from treeopt.report.plan_text import SOURCES, SURE

PARTS = {
    "loading": "loading",
    "verify": "verification passes",
    "draft": "drafting passes",
    "overhead": "whole steps",
    "prefill": "prefill",
    "acceptance": "acceptance",
    "traversal": "traversal on trees",
    "drafters": "other drafters",
    "record": "draft record",
    "planning": "planning",
}


def spent_text(spent_s: Mapping[str, float]) -> str:
    """Return the seconds that every part took, largest first, in one line."""
    parts = sorted(spent_s.items(), key=lambda each: -each[1])
    return f"Spent {sum(spent_s.values()):.0f} s: " + ", ".join(f"{PARTS[name]} {s:.1f} s" for name, s in parts) + "."


def choice_text(probability: float) -> str:
    """Return how certain the choice among several drafters is."""
    chance = f"{100 * probability:.0f} % chance that the choice among drafters is within 1 % of the fastest."
    return chance if probability >= SURE else f"{chance} For more, raise --time-budget."


def certainty_text(certainty: Certainty) -> str:
    """Return how certain the plan is, and what is least certain where that is not enough.

    >>> certainty_text(Certainty(probability=0.5, gains={"draft": 0.3}, verify_tokens=frozenset(), draft_widths=frozenset()))
    '50 % chance that the plan is within 1 % of the fastest. Least certain: draft time. For more, raise --time-budget.'
    """
    chance = f"{100 * certainty.probability:.0f} % chance that the plan is within 1 % of the fastest."
    if certainty.probability >= SURE:
        return chance
    return f"{chance} Least certain: {SOURCES[certainty.weakest]}. For more, raise --time-budget."
