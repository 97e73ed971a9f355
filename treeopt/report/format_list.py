"""Every format and engine that a command writes or reads, with versions and needs."""

import textwrap

WIDTH = 100


def export_list() -> str:
    """Return everything that `treeopt export` writes, a few lines each."""
    from treeopt.engines import ENGINES
    from treeopt.engines.importers import ACCEPTANCE_FORMATS
    from treeopt.trees.formats import FORMATS

    return _sections(
        {
            "Trees": [(each.name, each.title, each.versions, each.needs) for each in FORMATS],
            "Settings of engines": [(each.name, each.title, each.versions, each.needs) for each in ENGINES],
            "Acceptance": [(each.name, each.title, each.versions, each.needs) for each in ACCEPTANCE_FORMATS],
        },
        "treeopt export --to NAME",
    )


def import_list() -> str:
    """Return every kind of file of other programs that treeopt reads, a few lines each."""
    from treeopt.engines.importers import IMPORTERS
    from treeopt.engines.importers.read import OPTIONS
    from treeopt.trees.formats import READABLE

    trees = [(each.name, each.title, each.versions, each.needs) for each in READABLE]
    measured = [
        (each.name, each.title, ", ".join(OPTIONS[part] for part in each.contains) or "not read", each.needs)
        for each in IMPORTERS
    ]
    return "\n\n".join(
        [_sections({"Trees": trees}, "treeopt import FILE"), _sections({"Measurements": measured}, "treeopt profile")]
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
