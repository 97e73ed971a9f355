"""Every format and engine, with versions and needs."""

import textwrap

WIDTH = 100


def format_list() -> str:
    """Return every format and engine as a few lines each."""
    from treeopt.engines import ENGINES
    from treeopt.engines.importers import ACCEPTANCE_FORMATS
    from treeopt.trees.formats import FORMATS

    blocks = ["Trees, both ways (treeopt export --to NAME, treeopt import):"]
    blocks += [_block(each.name, each.title, each.versions, each.needs) for each in FORMATS]
    blocks.append("Settings of engines (treeopt export --to NAME):")
    blocks += [_block(each.name, each.title, each.versions, each.needs) for each in ENGINES]
    blocks.append("Acceptance, both ways (treeopt export --to NAME, treeopt profile --acceptance):")
    blocks += [_block(each.name, each.title, each.versions, each.needs) for each in ACCEPTANCE_FORMATS]
    return "\n\n".join(blocks)


def _block(name: str, title: str, versions: str, needs: str) -> str:
    text = textwrap.fill(needs, WIDTH, initial_indent=" " * 16, subsequent_indent=" " * 16)
    return f"  {name:<13} {title} ({versions})\n{text}"
