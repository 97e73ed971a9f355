"""`--list` of `treeopt export` and `treeopt import`: every format and engine, with versions and needs."""

import click

from treeopt.cli.options.record import Function


def list_option(function: Function) -> Function:
    """Add `--list`, which prints all formats and ends the command."""

    def show(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
        del parameter
        if asked and not context.resilient_parsing:
            from treeopt.report.format_list import format_list

            click.echo(format_list())
            context.exit()

    return click.option(
        "--list", is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show every format, and leave."
    )(function)
