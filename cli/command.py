"""Commands that are imported when called, check their files first, and name options in errors."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import click
from click.shell_completion import CompletionItem

from treeopt.cli.options.record import HeadedOption, Heading, build_record, flag_of, parameters
from treeopt.cli.outputs import InputFile, OutputFile, check_outputs
from treeopt.errors import InfeasibleError, InvalidValueError, OutOfMemoryError, TreeoptError

OPTIONS = {
    "context": "context_tokens",
    "draft_sampling": "draft_temperature",
    "token_ids": "prompt",
    "rate_per_s": "rates",
    "rule": "rules",
}
"""Parameters of commands by arguments of the library, for commands without a parameter of the argument's name."""
MIN_HEADED = 12
"""Commands with fewer options list them under one heading."""


class LazyGroup(click.Group):
    """A group that imports a command only when it is called: `--help` and completion stay fast."""

    subcommands: ClassVar[Mapping[str, tuple[str, str]]]
    """Module in `treeopt.cli`, whose function has the same name, and summary; by command, in the order of `--help`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.subcommands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self.subcommands:
            return None
        module, _ = self.subcommands[cmd_name]
        command: click.Command = getattr(import_module(f"treeopt.cli.{module}"), module)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.subcommands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        options = click.Command.shell_complete(self, ctx, incomplete)
        commands = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in self.subcommands.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *options]


class Command(click.Command):
    """A command that checks its paths before it runs.

    Errors of the library name its options; an invalid value of one is a usage error.

    Args:
        record: dataclass whose fields are the parameters; the function receives it as the argument `args`.
    """

    def __init__(self, *arguments: Any, record: type, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._record = record
        self.params += parameters(record)

    def invoke(self, ctx: click.Context) -> Any:
        check_outputs(self._paths(ctx, OutputFile), self._paths(ctx, InputFile))
        try:
            return ctx.invoke(self._call, ctx.params)  # names the command in usage errors, those of the record too
        except (InvalidValueError, InfeasibleError, OutOfMemoryError) as error:
            options = {str(param.name): flag_of(param) for param in self.params if isinstance(param, click.Option)}
            text = name_options(error, options)
            if text == str(error):
                raise
            if isinstance(error, InvalidValueError):
                raise click.UsageError(text, ctx) from error
            raise type(error)(text) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[Heading, list[tuple[str, str]]] = {heading: [] for heading in Heading}
        headed = len(self.params) >= MIN_HEADED
        for param in self.get_params(ctx):
            heading = param.heading if isinstance(param, HeadedOption) and headed else Heading.MAIN
            row = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            rows[heading] += [] if row is None else [row]
        for heading in filter(rows.get, Heading):
            with formatter.section(heading):
                formatter.write_dl(rows[heading])

    def _call(self, values: Mapping[str, Any]) -> Any:
        assert self.callback is not None  # every command is a function
        return self.callback(args=build_record(self._record, values))

    def _paths(self, ctx: click.Context, kind: type[click.Path]) -> list[tuple[str, Any]]:
        """Return all paths among the parameters of one type, each with its option or argument."""
        paths = []
        for param in self.params:
            value = ctx.params.get(param.name) if param.name and isinstance(param.type, kind) else None
            name = flag_of(param) if isinstance(param, click.Option) else param.make_metavar(ctx)
            paths += [(name, path) for path in (value if isinstance(value, tuple) else (value,)) if path]
        return paths


def name_options(error: TreeoptError, options: Mapping[str, str]) -> str:
    """Return the text of an error with options in place of the arguments in its `field`.

    Args:
        error: an error of the library.
        options: options by parameters of the command.

    >>> name_options(InvalidValueError("max_depth: expected at most 4. Got 9.", field="max_depth"), {"max_depth": "--depth"})
    '--depth: expected at most 4. Got 9.'
    >>> name_options(InfeasibleError("depth: no such file."), {"depth": "--depth"})
    'depth: no such file.'
    >>> name_options(InfeasibleError("not measured. Measure there.", field="extrapolate"), {"extrapolate": "--extrapolate"})
    'not measured. Measure there. Or allow it with --extrapolate.'
    """
    text = str(error)
    if error.field is not None and text.startswith(f"{error.field}: "):
        names = [options.get(name) or options.get(OPTIONS.get(name, name), name) for name in error.field.split(", ")]
        return ", ".join(names) + text.removeprefix(error.field)
    if error.field == "extrapolate" and "extrapolate" in options:
        return f"{text} Or allow it with {options['extrapolate']}."
    return text
