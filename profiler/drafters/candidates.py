"""Settings of drafters with trees of their own that are worth decoding with."""

from collections.abc import Callable, Sequence

from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner.calibration import calibration, specexec_settings
from treeopt.planner.dynamic import fastest_dynamic_tree
from treeopt.planner.model import StepModel
from treeopt.planner.replay import Replay
from treeopt.records.draft_record import DraftRecord
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.trees.drafter_setting import DrafterSetting, OwnTrees, SettingValue, number_names
from treeopt.trees.dynamic_tree import DynamicTree
from treeopt.trees.own_trees import LOOKAHEAD_SETTINGS, PROMPT_LOOKUP_SETTINGS, REDRAFTER_SETTINGS

HEAD_TREES = tuple(
    DynamicTree(top_k=top_k, depth=depth, nodes=nodes)
    for top_k, depth, nodes in (
        *((1, 2, 3), (1, 4, 5), (2, 3, 6), (2, 4, 8), (3, 4, 12), (4, 5, 16), (4, 6, 24)),
        *((8, 5, 32), (8, 6, 48), (10, 7, 60)),
    )
)
"""Dynamic trees of a head, of which there is no draft record: from a short chain to EAGLE-2's own numbers."""
LOOKUP = "prompt-lookup"
USUAL: dict[str, Sequence[OwnTrees]] = {
    "redrafter": REDRAFTER_SETTINGS,
    "lookahead": LOOKAHEAD_SETTINGS,
    LOOKUP: PROMPT_LOOKUP_SETTINGS,
}
"""Settings that are tried on every machine."""
Recorded = Callable[[], DraftRecord]
Modelled = Callable[[], StepModel]


def candidates(drafter: LoadedDrafter, model: Modelled, recorded: Recorded, max_tokens: int) -> list[DrafterSetting]:
    """Return the settings of a drafter that may be the fastest, each once.

    Args:
        drafter: with trees of its own.
        model: returns the profile's times, from which settings of trees of the draft model are chosen.
        recorded: returns what the draft model thinks along some texts; asked where it is needed only.
        max_tokens: of the largest pass; settings beyond it are left out.

    Raises InfeasibleError where none is left.
    """
    names = number_names(drafter.name)
    found = [
        drafter.setting(tuple(SettingValue(name=name, value=getattr(record, name)) for name in names))
        for record in _records(drafter, model, recorded, max_tokens)
    ]
    fitting = [each for each in dict.fromkeys(found) if _fits(drafter, each, max_tokens)]
    if not fitting:
        raise InfeasibleError(
            f"{drafter.name}: no setting of it verifies {max_tokens} tokens at most. Profile with a larger --max-tokens."
        )
    return fitting


def _records(drafter: LoadedDrafter, model: Modelled, recorded: Recorded, max_tokens: int) -> Sequence[OwnTrees]:
    if drafter.name in USUAL:
        return USUAL[drafter.name]
    if drafter.name == "specexec":
        return specexec_settings(model(), calibration(recorded()))
    return HEAD_TREES if drafter.heads is not None else _recorded_trees(recorded(), model(), max_tokens)


def _recorded_trees(record: DraftRecord, model: StepModel, max_tokens: int) -> Sequence[DynamicTree]:
    """Return the fastest dynamic trees of a row of sizes, as a record and a profile's times say."""
    replay, most = Replay(record), min(max_tokens, model.costs.max_nodes)
    sizes = [size for size in (4, 6, 8, 12, 16, 24, 32, 64) if size <= most] or [most]
    return [fastest_dynamic_tree(replay, model, max_nodes=size)[0] for size in sizes]


def _fits(drafter: LoadedDrafter, setting: DrafterSetting, max_tokens: int) -> bool:
    """Return whether the drafter can be set so, and verifies no more than was timed."""
    try:
        return drafter.set_to(setting).max_tokens <= max_tokens
    except InvalidValueError:  # more children than a small vocabulary has
        return False
