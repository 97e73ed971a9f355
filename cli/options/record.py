"""Command-line options declared as the fields of a frozen dataclass.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ShowOptions:
        path: Path = argument(type=InputFile())
        rows: int = option("--rows", default=64, help="Maximum number of lines.")
        written: Path = Heading.OUTPUT.option("--output", type=OutputFile(stream=True))

    @click.command(cls=Command, record=ShowOptions)
    def show(args: ShowOptions) -> None: ...

A field may also hold another such record (`group`). `--help` lists options under headings, in the order of the fields.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, fields
from enum import StrEnum
from typing import Any, TypeVar

import click
from click.core import ParameterSource

Function = TypeVar("Function", bound=Callable[..., Any])


class Heading(StrEnum):
    """Headings of `--help`, in order."""

    MAIN = "Options"
    MODELS = "Models and device"
    MEASURED = "Measurement"
    PLANNED = "Planning"
    SAMPLING = "Sampling and verification"
    PROMPTS = "Prompts"
    ADAPTATION = "Adaptation and learning"
    FORMAT = "Formats and engines"
    IMPORTS = "Imported measurements"
    OUTPUT = "Output"

    def option(self, *flags: str, **attributes: Any) -> Any:
        """Return a dataclass field as the function `option` does, whose option `--help` lists under this heading."""
        return _option_field(flags, attributes, self)


class HeadedOption(click.Option):
    """An option that `--help` lists under a heading."""

    def __init__(self, *flags: Any, heading: Heading, **attributes: Any) -> None:
        super().__init__(*flags, **attributes)
        self.heading = heading


def option(*flags: str, **attributes: Any) -> Any:
    """Return a dataclass field that an option fills; `--help` lists the option under the heading of its group.

    Args:
        flags: such as `--rows`; click names the parameter after the field.
        attributes: further arguments of `click.option`; `show_default` is True by default.
    """
    return _option_field(flags, attributes)


def argument(**attributes: Any) -> Any:
    """Return a dataclass field that a positional argument fills; `attributes` are those of `click.argument`."""
    return field(metadata={"attributes": attributes})


def group(record: type, heading: Heading | None = None) -> Any:
    """Return a dataclass field that holds a record of options."""
    return field(metadata={"record": record, "heading": heading})


def flag_of(param: click.Parameter) -> str:
    """Return the long flag of an option, such as `--output`."""
    return max(param.opts, key=len)


def is_given(name: str) -> bool:
    """Return whether the user typed the option that click knows by this name."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def refuse_options(names: Collection[str], reason: str) -> None:
    """Raise click.UsageError for the first of these options that the user typed.

    Args:
        names: options by the names that click knows, those of the fields.
        reason: what was expected, and what to do.
    """
    known = _options_of_command()
    assert known.keys() >= {*names}  # a misspelt name would refuse nothing
    for name, param in known.items():
        if name in names and is_given(name):
            raise click.UsageError(f"{flag_of(param)}: {reason}")


def refuse_other_options(names: Collection[str], reason: str) -> None:
    """Raise click.UsageError as `refuse_options` does, for all options of the command other than these."""
    refuse_options(_options_of_command().keys() - names, reason)


def _options_of_command() -> dict[str, click.Option]:
    params = click.get_current_context().command.params
    return {str(param.name): param for param in params if isinstance(param, click.Option)}


def print_option(flag: str, describe: Callable[[], str], help_text: str) -> Callable[[Function], Function]:
    """Return a decorator that adds an option that prints a text and exits; the text is made only then."""

    def print_text(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        del parameter
        if value and not context.resilient_parsing:
            click.echo(describe())
            context.exit()

    return click.option(flag, is_flag=True, is_eager=True, expose_value=False, callback=print_text, help=help_text)


def parameters(record: type, heading: Heading = Heading.MAIN) -> Iterator[click.Parameter]:
    """Yield the parameters of a record, in the order of its fields; options without a heading get `heading`."""
    for item in fields(record):
        own_heading = item.metadata.get("heading") or heading
        if "record" in item.metadata:
            yield from parameters(item.metadata["record"], own_heading)
        elif "flags" in item.metadata:
            yield HeadedOption([*item.metadata["flags"], item.name], heading=own_heading, **item.metadata["attributes"])
        else:
            yield click.Argument([item.name], **item.metadata["attributes"])


def build_record(record: type, values: Mapping[str, Any]) -> Any:
    """Return a record with the values of its parameters."""
    arguments = {}
    for item in fields(record):
        inner = item.metadata.get("record")
        arguments[item.name] = values[item.name] if inner is None else build_record(inner, values)
    return record(**arguments)


def _option_field(flags: Sequence[str], attributes: dict[str, Any], heading: Heading | None = None) -> Any:
    return field(metadata={"flags": flags, "attributes": {"show_default": True} | attributes, "heading": heading})
