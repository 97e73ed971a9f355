"""`treeopt doctor`: what this machine and installation are, and what would make measurements better."""

from dataclasses import dataclass, field

import click

from treeopt.cli.command import Command
from treeopt.cli.options.record import option, options


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """How it is told."""

    as_json: bool = field(
        metadata=option("--json", "as_json", is_flag=True, help="Print everything as one JSON object instead of lines.")
    )


@click.command(cls=Command)
@options(DoctorOptions)
def doctor(asked: DoctorOptions) -> None:
    """Tell what would make measurements better.

    Prints versions, processors, threads, devices, what is installed for which engine and what other programs use, and
    below each finding that would spoil measurements what to do.  Nothing is measured or changed; the exit code is 0
    also where there is something to do.
    """
    from treeopt.doctor import doctor_text, examine
    from treeopt.report.json_text import json_text

    report = examine()
    click.echo(json_text(report) if asked.as_json else doctor_text(report))
