"""`treeopt doctor`: this machine and installation, and what would improve measurements."""

import json

import click

from treeopt.cli.command import Command


@click.command(cls=Command)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def doctor(as_json: bool) -> None:
    """Check this machine and installation.

    Prints versions, processors, devices, installed engines and programs that use the processors, each problem with its
    remedy.  Nothing is measured or changed, and the exit code is always 0.
    """
    from treeopt.doctor import doctor_text, run_checks
    from treeopt.files.serialization import serialize_record

    checks = run_checks()
    content = {"checks": [serialize_record(check, nulls=True) for check in checks]}
    click.echo(json.dumps(content, indent=2) if as_json else doctor_text(checks))
