"""The names of all ways of speculating, in the order of the table: no torch, so that a shell can complete them."""

from collections.abc import Sequence

from treeopt.errors import InvalidValueError

NAMES = (
    *("plain", "prompt-lookup", "chain", "osd", "k-sequences", "top-k-tree", "medusa", "dflash", "redrafter"),
    *("eagle", "lookahead", "specexec", "eagle2", "sequoia", "treeopt"),
)
"""In the order of the table."""


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names in the order of the table, `plain` among them; `all` stands for every one.

    Raises InvalidValueError for a name that is none.
    """
    for name in names:
        if name not in NAMES and name != "all":
            raise InvalidValueError(
                f"methods: expected all, or some of {', '.join(NAMES)}. Got {name!r}.", field="methods"
            )
    return tuple(name for name in NAMES if name == "plain" or name in names or "all" in names)
