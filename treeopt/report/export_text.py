"""What `treeopt export` prints: an exported tree, acceptance or engine setting, and the lists of formats."""

import textwrap
from pathlib import Path

from treeopt.engines import ENGINES
from treeopt.engines.exporters import speculation_profile
from treeopt.engines.exporters.engine import Engine
from treeopt.engines.exporters.setting import Setting, describe_dynamic_tree
from treeopt.engines.importers import IMPORTERS
from treeopt.engines.importers.read import OPTIONS
from treeopt.files.atomic_files import STANDARD_STREAM
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.report.table import PREDICTED, PREDICTED_COLUMNS, Column, aligned, predicted_cells
from treeopt.report.text import counted
from treeopt.trees import TokenTree
from treeopt.trees.formats import FORMATS, READABLE
from treeopt.trees.formats.topology import TopologyFormat

WIDTH = 100


def topology_text(target: TopologyFormat, tree: TokenTree) -> str:
    """Return the line on an exported tree."""
    return f"{target.title}: {counted(tree.nodes, 'node')}, root included, depth {tree.max_depth}"


def acceptance_text(acceptance: MeasuredAcceptance) -> str:
    """Return the line on an exported acceptance."""
    title = f"{speculation_profile.TITLE} ({speculation_profile.VERSIONS})"
    return f"{title}: rule {acceptance.rule}, temperature {acceptance.temperature:g}"


def setting_text(engine: Engine, setting: Setting, written: Path) -> str:
    """Return the setting next to its alternatives, the reasons, and the line that uses it."""
    chosen = "no speculation" if setting.request is None else describe_dynamic_tree(setting.request.tree)
    blocks = [f"{engine.title} ({engine.versions}): {chosen}"]
    if setting.predictions:
        rows = [
            (f"{' ' if index else '*'} {label}", *predicted_cells(prediction))
            for index, (label, prediction) in enumerate(setting.predictions.items())
        ]
        blocks.append("\n".join(aligned([("", *PREDICTED), *rows], (Column(), *PREDICTED_COLUMNS))))
    if setting.notes:
        blocks.append("\n".join(setting.notes))
    file = "FILE" if str(written) == STANDARD_STREAM else str(written)
    blocks.append(f"Use: {setting.output.describe_usage(file, setting.target_model or 'TARGET')}")
    return "\n\n".join(blocks)


def export_list() -> str:
    """Return the formats and engines of `treeopt export`, a few lines each."""
    profiles = speculation_profile
    return _sections(
        {
            "Trees": [(target.name, target.title, target.versions, target.needs) for target in FORMATS],
            "Settings of engines": [(engine.name, engine.title, engine.versions, engine.needs) for engine in ENGINES],
            "Acceptance": [(profiles.NAME, profiles.TITLE, profiles.VERSIONS, profiles.NEEDS)],
        },
        "treeopt export --to NAME",
    )


def import_list() -> str:
    """Return the files of other programs that treeopt reads, a few lines each."""
    trees = [(source.name, source.title, source.versions, source.needs) for source in READABLE]
    measurements = [
        (
            importer.name,
            importer.title,
            ", ".join(OPTIONS[part] for part in importer.contains) or "not read",
            importer.needs,
        )
        for importer in IMPORTERS
    ]
    return "\n\n".join(
        [
            _sections({"Trees": trees}, "treeopt import FILE"),
            _sections({"Measurements": measurements}, "treeopt profile"),
        ]
    )


def _sections(sections: dict[str, list[tuple[str, str, str, str]]], command: str) -> str:
    blocks = []
    for title, rows in sections.items():
        blocks.append(f"{title} ({command}):")
        width = max(len(name) for name, *_ in rows)
        blocks += [_block(width, *row) for row in rows]
    return "\n\n".join(blocks)


def _block(width: int, name: str, title: str, versions: str, needs: str) -> str:
    indent = " " * (width + 3)
    text = textwrap.fill(needs, WIDTH, initial_indent=indent, subsequent_indent=indent)
    return f"  {name:<{width}} {title} ({versions})\n{text}"
