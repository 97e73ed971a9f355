"""What an export says: the setting, what it promises, and how it is used."""

from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.files.whole_files import STANDARD_STREAM
from treeopt.report.plan_text import PREDICTED, PREDICTED_COLUMNS, spreads
from treeopt.report.table import Column, aligned
from treeopt.report.text import quoted

if TYPE_CHECKING:
    from treeopt.engines.engine import Engine
    from treeopt.engines.importers import AcceptanceFormat
    from treeopt.engines.settings.made import Setting
    from treeopt.records.measured_acceptance import MeasuredAcceptance
    from treeopt.trees import TokenTree
    from treeopt.trees.formats.topology import TopologyFormat


def topology_text(target: "TopologyFormat", tree: "TokenTree") -> str:
    """Return what was exported, in one line."""
    nodes = f"{tree.nodes} node{'s' * (tree.nodes > 1)}, root included"
    return f"{target.title}: {nodes}, depth {tree.max_depth}"


def acceptance_text(target: "AcceptanceFormat", acceptance: "MeasuredAcceptance") -> str:
    """Return whose acceptance was exported, in one line."""
    return f"{target.title} ({target.versions}): rule {acceptance.rule}, temperature {acceptance.temperature:g}"


def setting_text(engine: "Engine", setting: "Setting", written: Path) -> str:
    """Return the setting beside its alternatives, the reasons, and the line that uses it."""
    from treeopt.engines.settings.prediction import shape

    chosen = "no speculation" if setting.asked is None else shape(setting.asked.tree)
    blocks = [f"{engine.title} ({engine.versions}): {chosen}"]
    if setting.predictions:
        rows = [
            (f"{' ' if number else '*'} {each.label}", *spreads(each.prediction))
            for number, each in enumerate(setting.predictions)
        ]
        blocks.append("\n".join(aligned([("", *PREDICTED), *rows], (Column(), *PREDICTED_COLUMNS))))
    if setting.remarks:
        blocks.append("\n".join(setting.remarks))
    file = Path("FILE") if str(written) == STANDARD_STREAM else written
    target = "TARGET" if setting.target_model is None else quoted(setting.target_model)
    blocks.append(f"Use: {setting.emitted.usage.replace('FILE', str(file)).replace('TARGET', target)}")
    return "\n\n".join(blocks)
