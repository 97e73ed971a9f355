"""Settings of prompt lookup that one category of prompts needs, although they are not the fastest on all prompts."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treeopt.arrays import Float64, Int64
from treeopt.records.measured_drafter import ReplayedTexts
from treeopt.trees.drafter_setting import DrafterSetting

PassSeconds = Callable[[Int64], Float64]
WORTHWHILE = 1.02
"""Tokens per second of passes, relative to the fastest setting that is decoded with anyway."""


def settings_of_categories(
    kept: Sequence[DrafterSetting], replayed: Mapping[DrafterSetting, ReplayedTexts], pass_s: PassSeconds
) -> list[DrafterSetting]:
    """Return `kept`, followed by the settings that are at least 2 % faster in some category.

    Args:
        kept: settings that are decoded with anyway.
        replayed: steps along the texts of all categories, by setting.
        pass_s: from sizes of the target's passes (sizes,) to their seconds.
    """
    found = list(kept)
    for category in sorted({name for texts in replayed.values() for name in texts.categories if name}):
        rates = {setting: _rate(texts, category, pass_s) for setting, texts in replayed.items()}
        fastest = max(rates, key=lambda setting: rates[setting])
        if rates[fastest] > WORTHWHILE * max((rates.get(each, 0.0) for each in found), default=0.0):
            found.append(fastest)
    return found


def _rate(texts: ReplayedTexts, category: str, pass_s: PassSeconds) -> float:
    """Return the tokens per second of passes along the texts of a category, 0 where there are none."""
    places = [place for place, name in enumerate(texts.categories) if name == category]
    if not places:
        return 0.0
    passes = np.array(texts.passes_by_text)[places].sum(axis=0)
    return sum(texts.tokens[place] for place in places) / float(pass_s(np.array(texts.pass_tokens)) @ passes)
