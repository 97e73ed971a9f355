"""Settings of prompt lookup that are worthwhile for one category of prompts, although not the fastest on all prompts."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.records.measured_drafter import ReplayedSequences
from treeopt.trees.drafter_setting import DrafterSetting

PassSeconds = Callable[[Int64], Float64]
WORTHWHILE = 1.02
"""Tokens per second of passes, relative to the fastest setting selected already."""


def add_category_settings(
    selected: Sequence[DrafterSetting], replayed: Mapping[DrafterSetting, ReplayedSequences], pass_s: PassSeconds
) -> list[DrafterSetting]:
    """Return `selected`, followed by the settings that are at least 2 % faster in some category.

    Args:
        selected: settings to decode with in any case.
        replayed: steps along the sequences of all categories, by setting.
        pass_s: from sizes of the target's passes (sizes,) to their seconds.
    """
    settings = list(selected)
    for category in sorted({name for sequences in replayed.values() for name in sequences.categories if name}):
        rates = {setting: _tokens_per_s(sequences, category, pass_s) for setting, sequences in replayed.items()}
        fastest = max(rates, key=lambda setting: rates[setting])
        if rates[fastest] > WORTHWHILE * max((rates.get(setting, 0.0) for setting in settings), default=0.0):
            settings.append(fastest)
    return settings


def _tokens_per_s(sequences: ReplayedSequences, category: str, pass_s: PassSeconds) -> float:
    indices = [index for index, name in enumerate(sequences.categories) if name == category]
    if not indices:
        return 0.0
    passes = np.array(sequences.passes_by_sequence)[indices].sum(axis=0)
    seconds = float(pass_s(np.array(sequences.pass_tokens)) @ passes)
    return sum(sequences.tokens[index] for index in indices) / seconds
