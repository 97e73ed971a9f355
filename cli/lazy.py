"""Commands that are imported when they are called, so that `treeopt --help` waits for nothing that they import."""

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, NamedTuple

import click
from click.shell_completion import CompletionItem


class Place(NamedTuple):
    """Where a command is, and what is said of it before it is there."""

    module: str
    """In `treeopt.cli`; the command has the module's name there."""
    summary: str
    """What it does, in one line of `treeopt --help`."""


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name, each imported when it is asked for."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            from importlib import import_module

            place = self._places[name]
            self._loaded[name] = getattr(import_module(f"treeopt.cli.{place.module}"), place.module)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._places, *self._loaded]))

    def __len__(self) -> int:
        return len(set(self._places) | set(self._loaded))


class LazyGroup(click.Group):
    """A group that lists its commands, in the order given, without importing them."""

    places: ClassVar[Mapping[str, Place]]

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords, commands=LazyCommands(self.places))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they are used."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every command and its summary."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in self.places.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that begin as what was typed."""
        found = [(name, place) for name, place in self.places.items() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=place.summary) for name, place in found), *options]
