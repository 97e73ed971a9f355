"""The names of the streams of `treeopt bench --drift`: no torch, so that a shell can complete them."""

import re

DRIFTS = (
    "code to prose",
    "short to long context",
    "temperature 0 to 1",
    "free to busy machine",
    "text that repeats itself",
    "both temperatures measured",
    "draft spoilt",
    "draft mended",
)
"""In the fifth the temperature goes from 1 to 0, and prompt lookup is measured too; in the sixth the profile made before the
change has both temperatures.  The last two need a spoilt draft."""
STEADY = ("steady: short code", "steady: temperature 1", "steady: spoilt draft")
"""Nothing changes in these; what there is to gain is nothing."""


def dashed(name: str) -> str:
    """Return a name as the single word that a shell completes.

    >>> dashed("steady: temperature 1")
    'steady-temperature-1'
    """
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def named(part: str, stream: str) -> bool:
    """Return whether a part of a name, as it is or with dashes, is one of a stream's.

    >>> named("draft spoilt", "draft spoilt"), named("to-prose", "code to prose"), named("prose to", "code to prose")
    (True, True, False)
    """
    word = dashed(part)
    return bool(word) and word in dashed(stream)
