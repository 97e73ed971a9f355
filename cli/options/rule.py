"""Options that choose a verification rule, and which rules may be run."""

from typing import TYPE_CHECKING

import click

from treeopt.cli.options.record import Heading, Metadata, option
from treeopt.cli.options.values import MEASURED_RULE
from treeopt.errors import InvalidValueError
from treeopt.records.rules import check_rule

if TYPE_CHECKING:
    from treeopt.trees import TreeFile

LOSSY = option(
    "--lossy", heading=Heading.SAMPLING, is_flag=True, help="Allow rules that change the text's distribution."
)


def measured_rule(help_text: str) -> Metadata:
    """Return the option of a rule that a profile may hold; the text says what it is taken for, and its default."""
    return option("--rule", heading=Heading.SAMPLING, type=MEASURED_RULE, help=help_text)


def checked_rule(rule: str, *, lossy: bool, option: str = "--rule") -> str:
    """Return a rule that can be run; click.UsageError for an unknown one, and for a lossy one without --lossy."""
    try:
        check_rule(rule, lossy=lossy)
    except InvalidValueError as error:
        raise click.UsageError(f"{option}: {str(error).partition(': ')[2]}") from None
    return rule


def planned_rule(planned: "TreeFile") -> str:
    """Return the rule that a tree was planned for; where its file does not say, the one that fits its drafter."""
    fitting = "sequoia" if planned.drafter is None else "target"
    return (planned.provenance and planned.provenance.rule) or fitting
