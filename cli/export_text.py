"""What an export says: the setting, what it promises, and how it is used."""

from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.cli.text import spread
from treeopt.files import STANDARD_STREAM

if TYPE_CHECKING:
    from treeopt.engines.engine import Engine
    from treeopt.engines.setting import Setting
    from treeopt.trees import TokenTree
    from treeopt.trees.formats.topology import TopologyFormat


def topology_text(target: "TopologyFormat", tree: "TokenTree") -> str:
    """Return what was exported, in one line."""
    nodes = f"{tree.nodes} node{'s' * (tree.nodes > 1)}, root included"
    return f"{target.title}: {nodes}, depth {tree.max_depth}"


def setting_text(engine: "Engine", setting: "Setting", written: Path) -> str:
    """Return the setting beside its alternatives, the reasons, and the line that uses it."""
    from treeopt.engines.prediction import shape

    blocks = [f"{engine.title} ({engine.versions}): {shape(setting.asked.tree)}"]
    if setting.predictions:
        width = max(len(each.label) for each in setting.predictions)
        lines = [f"  {'':<{width}}   {'tokens/step':<20}{'step, ms':<22}speedup"]
        for number, each in enumerate(setting.predictions):
            lines.append(
                f"{' ' if number else '*'} {each.label:<{width}}   {spread(each.tokens_per_step):<20}"
                f"{spread(each.step_s, 1000):<22}{spread(each.speedup)}"
            )
        blocks.append("\n".join(lines))
    if setting.remarks:
        blocks.append("\n".join(setting.remarks))
    file = Path("FILE") if str(written) == STANDARD_STREAM else written
    blocks.append(f"Use: {setting.emitted.usage.replace('FILE', str(file))}")
    return "\n\n".join(blocks)
