"""Which drafter a plan takes: the record of `treeopt.trees.drafter_setting`, which lies below because tree files name it."""

from treeopt.trees.drafter_setting import (
    DRAFTERS,
    HEADS,
    LAYERS,
    SETTINGS,
    TREES,
    DrafterSetting,
    SettingValue,
    checked_setting,
    drafter_setting,
)

__all__ = [
    "DRAFTERS",
    "HEADS",
    "LAYERS",
    "SETTINGS",
    "TREES",
    "DrafterSetting",
    "SettingValue",
    "checked_setting",
    "drafter_setting",
]
