"""`treeopt show`: a tree, or a profile's curves or acceptance, as text or as a picture."""

from dataclasses import dataclass, field
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import (
    TREE_NAME,
    file,
    is_profile,
    load_profile,
    output_option,
    read_any_tree,
    tree_budget,
    tree_depth,
)
from treeopt.cli.options.record import argument, option, options
from treeopt.cli.options.values import MOST, Whole
from treeopt.cli.terminal import diagram_width
from treeopt.files.picture_file import checked_suffix
from treeopt.files.whole_files import STANDARD_STREAM

TREE_SUFFIX = ".json"
SIZED = "a solution file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """Which tree, and how it is shown."""

    path: Path = field(metadata=argument(type=file, metavar="FILE"))
    name: str | None = field(metadata=TREE_NAME)
    budget: int | None = field(metadata=tree_budget(SIZED))
    depth: int | None = field(metadata=tree_depth(SIZED))
    written: Path = field(
        metadata=output_option(
            "written", "Picture to write, .svg, .png or .pdf, or tree file, .json.", default=Path(STANDARD_STREAM)
        )
    )
    acceptance: bool = field(
        metadata=option(
            "--acceptance",
            is_flag=True,
            help="Of a profile: acceptance by depth and rank, in place of what passes take.",
        )
    )
    rows: int = field(
        metadata=option(
            "--rows", type=Whole(9, MOST), default=64, show_default=True, help="Most lines of the text diagram."
        )
    )


@click.command(cls=Command)
@options(ShowOptions)
def show(asked: ShowOptions) -> None:
    """Draw a tree or a profile as text, or as a picture with -o.

    FILE is a tree in any known format (treeopt import --list), a solution file, out of which the tree of most tokens for
    --budget and --depth is taken, or a profile, of which it draws what passes take, or with --acceptance what is accepted.
    """
    if is_profile(asked.path):
        _show_profile(asked)
        return
    if asked.acceptance:
        raise click.UsageError(
            f"--acceptance: {asked.path} is no profile. Leave it out, or name what treeopt profile wrote."
        )
    _show_tree(asked)


def _show_profile(asked: ShowOptions) -> None:
    """Draw the curves of a profile, or its acceptance."""
    if (asked.name, asked.budget, asked.depth) != (None, None, None):
        raise click.UsageError(
            f"--name, --budget and --depth: {asked.path} is a profile, which has no tree. Find one with treeopt solve."
        )
    as_text = str(asked.written) == STANDARD_STREAM
    if not as_text:
        checked_suffix(asked.written)
    profile = load_profile(asked.path)
    if as_text:
        from treeopt.report.curve_text import acceptance_text, curve_text

        click.echo((acceptance_text if asked.acceptance else curve_text)(profile, diagram_width()))
        return
    from treeopt.files.picture_file import save_drawing
    from treeopt.report.figures.whole import acceptance_figure, times_figure

    save_drawing((acceptance_figure if asked.acceptance else times_figure)(profile), asked.written)
    click.echo(f"Written to {asked.written}", err=True)


def _show_tree(asked: ShowOptions) -> None:
    """Draw a tree, or write it as a tree file."""
    written = asked.written
    as_text = str(written) == STANDARD_STREAM
    as_tree = not as_text and checked_suffix(written, TREE_SUFFIX) == TREE_SUFFIX
    from treeopt.trees import draw_text, headline, save_figure
    from treeopt.trees.tree_file import drafted_by

    content = read_any_tree(asked.path, name=asked.name, budget=asked.budget, depth=asked.depth)
    if as_text:
        click.echo(draw_text(content.tree, reach=content.reach, max_rows=asked.rows, width=diagram_width()))
        if content.drafter is not None:
            click.echo(f"\n{drafted_by(content)}")
        return
    if as_tree:
        content.save(written)
    else:
        title, subtitle = headline(content)
        save_figure(content.tree, written, reach=content.reach, title=title, subtitle=subtitle)
    click.echo(f"Written to {written}", err=True)
