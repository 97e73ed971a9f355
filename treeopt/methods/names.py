"""Names of all methods; imports no torch, for shell completion."""

from collections.abc import Sequence

from treeopt.errors import InvalidValueError

NAMES = (
    *("plain", "prompt-lookup", "chain", "osd", "k-sequences", "top-k-tree", "medusa", "dflash", "dspark"),
    *("ddtree", "redrafter", "eagle", "p-eagle", "lookahead", "specexec", "eagle2", "sequoia", "treeopt"),
)
"""In the order of the table."""


def select_methods(names: Sequence[str]) -> tuple[str, ...]:
    """Return names in the order of the table, always with `plain`; `all` stands for every name.

    Raises InvalidValueError for an unknown name.
    """
    for name in names:
        if name not in NAMES and name != "all":
            raise InvalidValueError(
                f"methods: expected all, or some of {', '.join(NAMES)}. Got {name!r}.", field="methods"
            )
    return tuple(name for name in NAMES if name == "plain" or name in names or "all" in names)
