"""How many examples hypothesis draws: few in a fast run, half before a change lands, many more by night."""

import os

from hypothesis import settings

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fast")
FAST_EXAMPLES = 25
NIGHTLY_TIMES = 10


def examples(count: int, fast: int = FAST_EXAMPLES) -> int:
    """Return how many examples to draw: of `count`, at most `fast` in a fast run, and half in `ci` if that is more."""
    few = min(count, fast)
    return {"fast": few, "ci": max(few, -(-count // 2)), "nightly": NIGHTLY_TIMES * count}[PROFILE]


def load_profile() -> None:
    """Let tests that name no number draw as many as the profile asks for, however long each takes."""
    settings.register_profile(PROFILE, max_examples=examples(settings.default.max_examples), deadline=None)
    settings.load_profile(PROFILE)
