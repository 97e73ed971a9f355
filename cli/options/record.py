"""Options made from a record: each field of a frozen dataclass says in its metadata which option, or argument, fills it.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ShowOptions:
        path: Path = field(metadata=argument(type=InputFile()))
        rows: int = field(metadata=option("--rows", default=64, help="Most lines."))

    @click.command()
    @options(ShowOptions)
    def show(asked: ShowOptions) -> None: ...

A field may hold a record with options of its own.  `--help` lists options under their headings, in the order of fields.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

import click
from click.core import ParameterSource

Function = TypeVar("Function", bound=Callable[..., Any])
Metadata = Mapping[str, Any]
_PARAMETER, _RECORD, _GIVEN, _HEADING = "parameter", "record", "given", "heading"


class Heading(StrEnum):
    """Headings of `--help`, in its order."""

    MAIN = "Options"
    MODELS = "Models and device"
    MEASURED = "What is measured"
    PLANNED = "What is planned"
    SAMPLING = "Sampling and verification"
    PROMPTS = "Prompts"
    ADAPTATION = "Adaptation and learning"
    FORMAT = "Settings of formats and engines"
    IMPORTS = "Measured elsewhere"
    OUTPUT = "Output"


class HeadedOption(click.Option):
    """An option that `--help` lists under a heading.

    Args:
        heading: as `Heading` has them.
    """

    def __init__(self, *flags: Any, heading: Heading, **attributes: Any) -> None:
        super().__init__(*flags, **attributes)
        self.heading = heading


def option(*flags: str, heading: Heading | None = None, **attributes: Any) -> Metadata:
    """Return the metadata of a field that an option fills; other arguments are those of `click.option`.

    click knows the option by the field's name, unless `flags` end in a name without dashes.

    Args:
        flags: such as `--rows`.
        heading: where `--help` lists it; by default that of the group it is in, or the first.
        attributes: for click.
    """
    return {_PARAMETER: (click.option, flags, attributes), _HEADING: heading}


def argument(*name: str, **attributes: Any) -> Metadata:
    """Return the metadata of a field that an argument of the command fills; as `option`."""
    return {_PARAMETER: (click.argument, name, attributes)}


def group(record: type, heading: Heading | None = None) -> Metadata:
    """Return the metadata of a field with a record whose fields have options, under a heading unless they name another."""
    return {_RECORD: record, _HEADING: heading}


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


def _adders(record: type, outer: Heading = Heading.MAIN) -> Iterator[Callable[[Any], Any]]:
    """Yield click's decorator for every option, those of records within at their places."""
    for each in fields(record):
        heading = each.metadata.get(_HEADING) or outer
        if _RECORD in each.metadata:
            yield from _adders(each.metadata[_RECORD], heading)
        elif _PARAMETER in each.metadata:
            kind, names, attributes = each.metadata[_PARAMETER]
            known = names if any(name.isidentifier() for name in names) else (*names, each.name)
            headed = {"cls": HeadedOption, "heading": heading} if kind is click.option else {}
            yield kind(*known, **headed, **attributes)


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
