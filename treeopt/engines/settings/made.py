"""What an export makes for an engine."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.engines.engine import Engine, SettingFiles, SettingRequest
from treeopt.engines.settings.prediction import Predicted
from treeopt.errors import Warning
from treeopt.planner import DrafterChoice

UNNAMED_DRAFT = "DRAFT"
"""Stands for the draft model where nobody named one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An engine's files, and what they promise."""

    asked: SettingRequest | None
    """None where plain decoding is the fastest, or all that was asked for: speculation is off then."""
    emitted: SettingFiles
    target_model: str | None = None
    """What the target was loaded from; None where nobody knows, and for the bundled one."""
    predictions: tuple[Predicted, ...]
    """The setting, the engine's default where it can be predicted, and plain decoding; empty without a profile.
    Of plain decoding, the best that drafts stands behind it."""
    remarks: tuple[str, ...]
    """What was chosen for which reason, in words."""
    warnings: tuple[Warning, ...]


def plain_setting(engine: Engine, slower: Sequence[DrafterChoice] = ()) -> Setting:
    """Return the setting of an engine that decodes plainly, because nothing is to be drafted.

    Args:
        engine: which.
        slower: drafters that were measured and lose.
    """
    best = max(slower, key=lambda each: each.option.speedup.value, default=None)
    off = speculation_off_warning(engine.title)
    if best is not None:
        off = speculation_off_warning(engine.title, best.option.drafter.words, best.option.speedup.value)
    return Setting(asked=None, emitted=engine.off, predictions=(), remarks=(), warnings=(off,))


def speculation_off_warning(engine: str, best: str | None = None, speedup: float | None = None) -> Warning:
    """Return the warning of an engine that is set to decode plainly.

    Args:
        engine: its title.
        best: the fastest draft in words; None where none was measured.
        speedup: of that draft, over plain decoding.
    """
    if best is None or speedup is None:
        found = f"{engine} is set to decode plainly, because no draft was measured."
    elif speedup > 1:
        found = f"{engine} is set to decode plainly, as asked, although a {best} is {speedup:.2f} times as fast."
    else:
        found = (
            f"speculation loses: the fastest draft, a {best}, is {speedup:.2f} times as fast as plain decoding, so {engine} is "
            "set to decode plainly."
        )
    return Warning(found, "Export a tree file with a chain to speculate.")
