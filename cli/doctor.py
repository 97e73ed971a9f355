"""`treeopt doctor`: this machine and installation, and what would improve measurements."""

import json
from dataclasses import dataclass

import click

from treeopt.cli.command import Command
from treeopt.cli.options.record import option


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    as_json: bool = option("--json", is_flag=True, help="Print one JSON object instead of lines.")


@click.command(cls=Command, record=DoctorOptions)
def doctor(args: DoctorOptions) -> None:
    """Check this machine and installation.

    Prints versions, processors, devices, installed engines and programs that use the processors, each problem with its
    remedy.  Nothing is measured or changed, and the exit code is always 0.
    """
    from treeopt.doctor import doctor_text, run_checks
    from treeopt.files.serialization import serialize_record

    checks = run_checks()
    content = {"checks": [serialize_record(check, nulls=True) for check in checks]}
    click.echo(json.dumps(content, indent=2) if args.as_json else doctor_text(checks))
