"""Which systems there are, and all of them planned on the same grounds."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from tqdm import tqdm

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.methods import dynamic_tree, heads, no_draft, static_tree
from treeopt.methods.method import Grounds, System
from treeopt.records.results import NotRun

NAMES = (
    *("plain", "prompt-lookup", "chain", "k-sequences", "top-k-tree", "medusa", "redrafter"),
    *("lookahead", "specexec", "eagle2", "sequoia", "treeopt"),
)
"""In the order of the table."""


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names in the order of the table, `plain` among them; `all` stands for every one.

    Raises InvalidValueError for a name that is none.
    """
    for name in names:
        if name not in NAMES and name != "all":
            raise InvalidValueError(f"systems: expected all, or some of {', '.join(NAMES)}. Got {name!r}.")
    return tuple(name for name in NAMES if name == "plain" or name in names or "all" in names)


def planned_systems(grounds: Grounds, names: Sequence[str], *, show_progress: bool = True) -> list[System | NotRun]:
    """Return systems, each set as well as its measurements on the grounds allow, or why it cannot run on them.

    `treeopt` is the one of the others, and of the best tree under the best rule, that promises most.
    """
    recorded = cache(lambda: dynamic_tree.record(grounds))
    makers: dict[str, Callable[[], System]] = {
        "plain": lambda: static_tree.plain(grounds),
        "prompt-lookup": lambda: no_draft.prompt_lookup(grounds),
        "chain": lambda: static_tree.one_chain(grounds),
        "k-sequences": lambda: static_tree.k_sequences(grounds),
        "top-k-tree": lambda: static_tree.top_k_tree(grounds),
        "medusa": lambda: heads.medusa(grounds),
        "redrafter": lambda: heads.redrafter(grounds),
        "lookahead": lambda: no_draft.lookahead(grounds),
        "specexec": lambda: dynamic_tree.specexec(grounds, recorded()),
        "eagle2": lambda: dynamic_tree.eagle2(grounds, recorded()),
        "sequoia": lambda: static_tree.sequoia(grounds),
    }
    hidden = None if show_progress else True
    found: list[System | NotRun] = []
    others = [name for name in names if name != "treeopt"]
    for name in tqdm(others, desc="planning  ", unit="system", disable=hidden):
        try:
            found.append(makers[name]())
        except TreeoptError as error:
            if name == "plain":  # without it there is nothing to compare with
                raise
            found.append(NotRun(system=name, temperature=grounds.sampling.temperature, reason=str(error)))
    if "treeopt" in names:
        able = [each for each in found if isinstance(each, System)]
        best = max([static_tree.best_rule(grounds), *able], key=lambda system: system.predicted.value)
        setting = best.setting if best.name in ("treeopt", "sequoia") else f"{best.name}: {best.setting}"
        found.append(replace(best, name="treeopt", setting=setting))
    return found
