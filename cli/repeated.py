"""The command that runs, to be printed again with some of its options changed."""

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from treeopt.report.text import quoted


def repeated(changes: Mapping[str, Any]) -> str:
    """Return the running command as a shell takes it: arguments, and options that were given or are changed.

    Args:
        changes: values by the names that click knows options by; True sets a flag.
    """
    context = click.get_current_context()
    values = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    } | dict(changes)
    words = ["treeopt", str(context.info_name)]
    for each in context.command.params:
        value = values.get(str(each.name))
        if value is None or value is False:
            continue
        if isinstance(each, click.Option):
            words.append(each.opts[-1])
        if value is not True:
            words.append(quoted(_text(value)))
    return " ".join(words)


def _text(value: Any) -> str:
    """Return a value as options take it: lists with commas, numbers with no needless digits."""
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
