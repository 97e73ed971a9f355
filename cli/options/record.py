"""Options made from a record: each field of a frozen dataclass says in its metadata which option, or argument, fills it.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ShowOptions:
        path: Path = field(metadata=argument(type=InputFile()))
        rows: int = field(metadata=option("--rows", default=64, help="Most lines."))

    @click.command()
    @options(ShowOptions)
    def show(asked: ShowOptions) -> None: ...

A field may hold a record with options of its own.  In `--help` options stand in the order of fields.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import click
from click.core import ParameterSource

Function = TypeVar("Function", bound=Callable[..., Any])
Metadata = Mapping[str, Any]
_PARAMETER, _RECORD, _GIVEN = "parameter", "record", "given"


def option(*flags: str, **attributes: Any) -> Metadata:
    """Return the metadata of a field that an option fills; arguments are those of `click.option`.

    click knows the option by the field's name, unless `flags` end in a name without dashes.
    """
    return {_PARAMETER: (click.option, flags, attributes)}


def argument(*name: str, **attributes: Any) -> Metadata:
    """Return the metadata of a field that an argument of the command fills; as `option`."""
    return {_PARAMETER: (click.argument, name, attributes)}


def group(record: type) -> Metadata:
    """Return the metadata of a field with a record whose fields have options."""
    return {_RECORD: record}


def given(name: str) -> Metadata:
    """Return the metadata of a field that tells whether the user gave an option, which click knows by `name`."""
    return {_GIVEN: name}


def options(record: type, name: str = "asked") -> Callable[[Function], Function]:
    """Return a decorator that adds the options of a record's fields; the command receives the record as `name`."""

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            return function(*args, **{name: _made(record, values)}, **values)

        for add in reversed(list(_adders(record))):
            add(command)
        return command  # type: ignore[return-value]

    return decorated


def _adders(record: type) -> Iterator[Callable[[Any], Any]]:
    """Yield click's decorator for every option, those of records within at their places."""
    for each in fields(record):
        if _RECORD in each.metadata:
            yield from _adders(each.metadata[_RECORD])
        elif _PARAMETER in each.metadata:
            kind, names, attributes = each.metadata[_PARAMETER]
            known = names if any(name.isidentifier() for name in names) else (*names, each.name)
            yield kind(*known, **attributes)


def _made(record: type, values: dict[str, Any]) -> Any:
    """Return the record, its values taken out of those that click hands to the command."""
    found = {}
    for each in fields(record):
        if _RECORD in each.metadata:
            found[each.name] = _made(each.metadata[_RECORD], values)
        elif _PARAMETER in each.metadata:
            names = each.metadata[_PARAMETER][1]
            found[each.name] = values.pop(next((name for name in names if name.isidentifier()), each.name))
        elif _GIVEN in each.metadata:
            source = click.get_current_context().get_parameter_source(each.metadata[_GIVEN])
            found[each.name] = source is not ParameterSource.DEFAULT
    return record(**found)
