"""Settings of drafters with trees of their own that are worth decoding with."""

from collections.abc import Callable, Sequence

from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner.dynamic import fastest_dynamic_tree, specexec_settings
from treeopt.planner.model import StepModel
from treeopt.planner.replay import Replay
from treeopt.records.draft_record import DraftRecord
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.trees.drafter_parameters import (
    LOOKAHEAD_SETTINGS,
    PROMPT_LOOKUP_SETTINGS,
    REDRAFTER_SETTINGS,
    DDTreeSetting,
    DynamicTree,
)
from treeopt.trees.drafter_setting import DrafterParameters, DrafterSetting, SettingValue, parameter_names

HEAD_TREES = tuple(
    DynamicTree(top_k=top_k, depth=depth, nodes=nodes)
    for top_k, depth, nodes in (
        *((1, 2, 3), (1, 4, 5), (2, 3, 6), (2, 4, 8), (3, 4, 12), (4, 5, 16), (4, 6, 24)),
        *((8, 5, 32), (8, 6, 48), (10, 7, 60)),
    )
)
"""Dynamic trees of a head, which has no draft record: from a short chain to EAGLE-2's own parameters."""
LOOKUP, DDTREE = "prompt-lookup", "ddtree"
REPLAYED = (LOOKUP, DDTREE)
"""Drafters whose steps can be replayed along sequences that the target generated, without decoding."""
FIXED_SETTINGS: dict[str, Sequence[DrafterParameters]] = {
    "redrafter": REDRAFTER_SETTINGS,
    "lookahead": LOOKAHEAD_SETTINGS,
    LOOKUP: PROMPT_LOOKUP_SETTINGS,
}
"""Settings that are tried on every machine."""
MakeRecord = Callable[[], DraftRecord]
MakeModel = Callable[[], StepModel]


def find_candidates(
    drafter: LoadedDrafter, make_model: MakeModel, make_record: MakeRecord, max_tokens: int
) -> list[DrafterSetting]:
    """Return the settings of a drafter that may be the fastest, each once.

    Args:
        drafter: with trees of its own.
        make_model: returns the step model of the profile.
        make_record: returns the draft model's record along some sequences; called only if needed.
        max_tokens: of the largest pass; larger settings are left out.

    Raises InfeasibleError if none is left.
    """
    names = parameter_names(drafter.name)
    settings = [
        drafter.setting(tuple(SettingValue(name=name, value=getattr(parameters, name)) for name in names))
        for parameters in _find_parameters(drafter, make_model, make_record, max_tokens)
    ]
    fitting = [setting for setting in dict.fromkeys(settings) if _fits(drafter, setting, max_tokens)]
    if not fitting:
        raise InfeasibleError(
            f"{drafter.name}: no setting of it verifies {max_tokens} tokens at most. Profile with a larger --max-tokens."
        )
    return fitting


def _find_parameters(
    drafter: LoadedDrafter, make_model: MakeModel, make_record: MakeRecord, max_tokens: int
) -> Sequence[DrafterParameters]:
    if drafter.name in FIXED_SETTINGS:
        return FIXED_SETTINGS[drafter.name]
    if drafter.name == DDTREE:
        return [DDTreeSetting(budget=budget) for budget in range(2, max_tokens + 1)]
    if drafter.name == "specexec":
        return specexec_settings(make_model())
    return HEAD_TREES if drafter.heads is not None else _fastest_trees(make_record(), make_model(), max_tokens)


def _fastest_trees(record: DraftRecord, model: StepModel, max_tokens: int) -> Sequence[DynamicTree]:
    replay, max_nodes = Replay(record), min(max_tokens, model.costs.max_nodes)
    sizes = [size for size in (4, 6, 8, 12, 16, 24, 32, 64) if size <= max_nodes] or [max_nodes]
    return [fastest_dynamic_tree(replay, model, max_nodes=size)[0] for size in sizes]


def _fits(drafter: LoadedDrafter, setting: DrafterSetting, max_tokens: int) -> bool:
    if drafter.name == DDTREE:  # all do, and each drafter would allocate a cache
        return True
    try:
        return drafter.make_with_setting(setting).max_tokens <= max_tokens
    except InvalidValueError:  # more children than a small vocabulary has
        return False
