"""Settings of drafters with trees of their own that are worth decoding with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from treeopt.arrays import Float64, Integers
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner.dynamic import fastest_dynamic_tree, specexec_settings
from treeopt.planner.model import StepModel
from treeopt.planner.replay import Replay
from treeopt.records.draft_record import DraftRecord
from treeopt.records.measured_drafter import ReplayedSequences
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.trees.drafter_parameters import (
    LOOKAHEAD_SETTINGS,
    PROMPT_LOOKUP_SETTINGS,
    REDRAFTER_SETTINGS,
    DDTreeSetting,
    DynamicTree,
)
from treeopt.trees.drafter_setting import DrafterParameters, DrafterSetting, parameter_names

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
MIN_SETTINGS = 2
"""Settings to decode with on all prompts, or one per context if those are more."""
WORTHWHILE = 1.02
"""Tokens per second in a category of prompts, relative to the fastest setting selected already."""
PassSeconds = Callable[[Integers], Float64]
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
        replace(
            drafter.setting,
            values=tuple((name, getattr(parameters, name)) for name in names),
        )
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


def select_settings(ranked: Sequence[Sequence[DrafterSetting]]) -> list[DrafterSetting]:
    """Return the settings to decode with in full: the fastest at every context, then the next, at least `MIN_SETTINGS`.

    Args:
        ranked: settings at each context, the fastest first.
    """
    by_rank = dict.fromkeys(setting for row in zip_longest(*ranked) for setting in row if setting is not None)
    return list(by_rank)[: max(MIN_SETTINGS, len({settings[0] for settings in ranked}))]


def add_category_settings(
    selected: Sequence[DrafterSetting], replayed: Mapping[DrafterSetting, ReplayedSequences], step_s: PassSeconds
) -> list[DrafterSetting]:
    """Return `selected`, followed by the settings that are at least 2 % faster in some category of prompts.

    Args:
        selected: settings to decode with in any case.
        replayed: steps along the sequences of all categories, by setting.
        step_s: from sizes of the target's passes (sizes,) to the seconds of steps.
    """
    settings = list(selected)
    for category in sorted({name for sequences in replayed.values() for name in sequences.categories if name}):
        rates = {setting: tokens_per_s(sequences, step_s, category) for setting, sequences in replayed.items()}
        fastest = max(rates, key=lambda setting: rates[setting])
        if rates[fastest] > WORTHWHILE * max((rates.get(setting, 0.0) for setting in settings), default=0.0):
            settings.append(fastest)
    return settings


def tokens_per_s(sequences: ReplayedSequences, step_s: PassSeconds, category: str | None = None) -> float:
    """Return the tokens per second in a category of prompts, by default in all; 0 without a sequence."""
    indices: Sequence[int] = range(sequences.count)
    if category is not None:
        indices = [index for index, name in enumerate(sequences.categories) if name == category]
    if not indices:
        return 0.0
    passes = np.array(sequences.passes)[indices].sum(axis=0)
    seconds = float(step_s(np.array(sequences.pass_tokens)) @ passes)
    return sum(sequences.tokens[index] for index in indices) / seconds
