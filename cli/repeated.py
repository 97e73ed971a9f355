"""The command that runs, to be printed again with some of its options changed."""

from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

from treeopt.report.text import quoted


def repeated(changes: Mapping[str, Any]) -> str:
    """Return the running command as a shell takes it: arguments, and options that were given or are changed.

    Args:
        changes: values by the names that click knows options by; True sets a flag, False its opposite.
    """
    context = click.get_current_context()
    values = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    } | dict(changes)
    words = ["treeopt", *_names(context)]
    for each in context.command.params:
        if (value := values.get(str(each.name))) is not None:
            words += _words(each, value)
    return " ".join(words)


def _names(context: click.Context) -> list[str]:
    """Return the names of the running command and of the groups that it is in, without the program's."""
    return [] if context.parent is None else [*_names(context.parent), str(context.info_name)]


def _words(param: click.Parameter, value: Any) -> list[str]:
    """Return the words that give a parameter its value."""
    if not isinstance(param, click.Option):
        return _values(value, several=param.nargs != 1)
    if isinstance(value, bool):
        flags = param.opts if value else param.secondary_opts
        return flags[-1:]
    given = value if param.multiple else [value]
    return [word for each in given for word in (param.opts[-1], *_values(each, several=param.nargs != 1))]


def _values(value: Any, *, several: bool) -> list[str]:
    return [quoted(_text(each)) for each in (value if several else [value])]


def _text(value: Any) -> str:
    """Return a value as options take it: lists with commas, numbers with no needless digits."""
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
