"""`--list` of `treeopt export` and `treeopt import`: every kind of file that the command writes or reads."""

import click

from treeopt.cli.options.record import Function


def list_option(function: Function) -> Function:
    """Add `--list`, which prints every kind of file of a command and ends it."""

    def show(context: click.Context, parameter: click.Parameter, chosen: bool) -> None:
        del parameter
        if chosen and not context.resilient_parsing:
            from treeopt.report.format_list import export_list, import_list

            click.echo(import_list() if context.info_name == "import" else export_list())
            context.exit()

    return click.option(
        "--list",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="List every kind of file, and exit.",
    )(function)
