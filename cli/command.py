"""What all commands share: outputs are checked first, and refusals name options in place of functions' arguments."""

from collections.abc import Mapping
from typing import Any

import click

from treeopt.cli.options.record import HeadedOption, Heading
from treeopt.cli.outputs import InputFile, Named, OutputFile, check_outputs
from treeopt.errors import InfeasibleError, InvalidValueError, OutOfMemoryError, TreeoptError

OPTIONS = {
    "max_nodes": "budget",
    "max_depth": "depth",
    "level_widths": "level_width",
    "context": "context_tokens",
    "draft_sampling": "draft_temperature",
    "token_ids": "prompt",
}
"""Parameters of commands by arguments of functions, where their names differ."""
EXTRAPOLATE = "extrapolate"
"""The argument that allows to go on beyond what was measured."""
LEAST_HEADED = 12
"""Options from which on `--help` has headings."""


class Command(click.Command):
    """A command of treeopt's.  Its refusals are those of the library, told in the words of its options."""

    def invoke(self, ctx: click.Context) -> Any:
        """Check all paths that were given, and run the command."""
        check_outputs(self._given(ctx, OutputFile), self._given(ctx, InputFile))
        try:
            return super().invoke(ctx)
        except (InvalidValueError, InfeasibleError, OutOfMemoryError) as error:
            options = {str(param.name): _long_name(param) for param in self.params if isinstance(param, click.Option)}
            text = in_options(error, options)
            if text == str(error):
                raise
            raise type(error)(text) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings, or under one where there are few."""
        rows: dict[Heading, list[tuple[str, str]]] = {heading: [] for heading in Heading}
        few = len(self.params) < LEAST_HEADED
        for param in self.get_params(ctx):
            heading = param.heading if isinstance(param, HeadedOption) and not few else Heading.MAIN
            row = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            rows[heading] += [] if row is None else [row]
        for heading in filter(rows.get, Heading):
            with formatter.section(heading):
                formatter.write_dl(rows[heading])

    def _given(self, ctx: click.Context, kind: type[click.Path]) -> list[Named]:
        """Return the paths of one kind, which may come one or several to a parameter."""
        found = []
        for param in self.params:
            value = ctx.params.get(param.name) if param.name and isinstance(param.type, kind) else None
            name = _long_name(param) if isinstance(param, click.Option) else param.make_metavar(ctx)
            found += [Named(name, path) for path in (value if isinstance(value, tuple) else (value,)) if path]
        return found


def in_options(error: TreeoptError, options: Mapping[str, str]) -> str:
    """Return the text of a refusal with options in place of the arguments that it names.

    Args:
        error: of the library; its `field` names the arguments that its text begins with.
        options: options by parameters of the command.

    >>> in_options(InvalidValueError("max_depth: expected at most 4. Got 9.", field="max_depth"), {"depth": "--depth"})
    '--depth: expected at most 4. Got 9.'
    >>> in_options(InfeasibleError("depth: no such file."), {"depth": "--depth"})
    'depth: no such file.'
    >>> in_options(InfeasibleError("not measured. Profile there.", field="extrapolate"), {"extrapolate": "--extrapolate"})
    'not measured. Profile there. Or allow it with --extrapolate.'
    """
    text = str(error)
    if error.field is not None and text.startswith(f"{error.field}: "):
        names = [options.get(OPTIONS.get(name, name), name) for name in error.field.split(", ")]
        return ", ".join(names) + text.removeprefix(error.field)
    if error.field == EXTRAPOLATE and EXTRAPOLATE in options:
        return f"{text} Or allow it with {options[EXTRAPOLATE]}."
    return text


def _long_name(param: click.Parameter) -> str:
    return max(param.opts, key=len)
