"""`treeopt show`: a diagram or figure of a tree, or of a profile's times or acceptance."""

from dataclasses import dataclass
from pathlib import Path

import click

from treeopt.cli.command import Command
from treeopt.cli.options.inputs import (
    ANY_TREE,
    TreeChoiceOptions,
    file,
    is_profile,
    load_profile,
    output_option,
    read_any_tree,
)
from treeopt.cli.options.record import argument, group, option, refuse_options
from treeopt.cli.options.values import MAX_COUNT, whole
from treeopt.cli.outputs import is_stdout
from treeopt.cli.terminal import diagram_width
from treeopt.errors import TreeoptError
from treeopt.files.atomic_files import STANDARD_STREAM
from treeopt.files.figure_file import check_suffix, write_figure
from treeopt.report.curve_text import acceptance_text, curve_text
from treeopt.report.profile_text import labelled_acceptances
from treeopt.trees import draw_text, headline, save_figure
from treeopt.trees.tree_file import describe_drafter

TREE_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    path: Path = argument(type=file, metavar="FILE")
    choice: TreeChoiceOptions = group(TreeChoiceOptions)
    written: Path = output_option(
        "Figure (.svg, .png or .pdf) or tree file (.json) to write; - prints a diagram.",
        default=Path(STANDARD_STREAM),
    )
    acceptance: bool = option("--acceptance", is_flag=True, help="Draw a profile's acceptance instead of its times.")
    rows: int = option("--rows", type=whole(9, MAX_COUNT), default=64, help="Maximum lines of a text diagram.")


@click.command(cls=Command, record=ShowOptions)
def show(args: ShowOptions) -> None:
    """Draw a tree or a profile as text, or as a figure with -o.

    FILE is a tree in any known format (treeopt import --list), a solution file or a profile.  Of a solution file, the best
    tree for --budget and --depth is drawn; of a profile, the times of passes, or with --acceptance the acceptance.
    """
    of_profile = is_profile(args.path)
    drawn_as_text = is_stdout(args.written) and not of_profile
    if not drawn_as_text:
        refuse_options(["rows"], "expected a tree drawn as text. Leave it out.")
    if of_profile:
        _show_profile(args)
    elif args.acceptance and args.path.exists():
        raise click.UsageError(
            f"--acceptance: {args.path} is no profile. Leave it out, or name what treeopt profile wrote."
        )
    else:
        _show_tree(args)


def _show_profile(args: ShowOptions) -> None:
    if args.choice != ANY_TREE:
        raise click.UsageError(
            f"--name, --budget and --depth: {args.path} is a profile, which has no tree. Find one with treeopt solve."
        )
    as_text = is_stdout(args.written)
    if not as_text:
        check_suffix(args.written)
    profile = load_profile(args.path)
    if args.acceptance and not labelled_acceptances(profile):
        raise TreeoptError(
            f"{args.path}: expected acceptance by depth and rank. Got drafters that build their own trees: profile with "
            "--draft MODEL or the heads of static trees."
        )
    if as_text:
        click.echo((acceptance_text if args.acceptance else curve_text)(profile, diagram_width()))
        return
    from treeopt.report.figures.profile_figures import acceptance_figure, times_figure

    write_figure((acceptance_figure if args.acceptance else times_figure)(profile), args.written)
    click.echo(f"Written to {args.written}", err=True)


def _show_tree(args: ShowOptions) -> None:
    written = args.written
    as_text = is_stdout(written)
    as_tree = not as_text and check_suffix(written, TREE_SUFFIX) == TREE_SUFFIX
    tree = read_any_tree(args.path, args.choice)
    if as_text:
        diagram = draw_text(
            tree.tree,
            reach=tree.reach,
            tokens_per_step=tree.tokens_per_step,
            max_rows=args.rows,
            width=diagram_width(),
        )
        click.echo(diagram)
        if tree.drafter is not None:
            click.echo(f"\n{describe_drafter(tree)}")
        return
    if as_tree:
        tree.save(written)
    else:
        title, subtitle = headline(tree)
        save_figure(tree.tree, written, reach=tree.reach, title=title, subtitle=subtitle)
    click.echo(f"Written to {written}", err=True)
