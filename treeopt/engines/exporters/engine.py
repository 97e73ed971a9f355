"""The exporter contract: an `Engine` refuses a request by its `limits`, or renders it as the engine's own files."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from treeopt.errors import Warning
from treeopt.trees import TokenTree
from treeopt.trees.drafter_parameters import DynamicTree

Json = dict[str, Any]
MAIN = "FILE"
"""Placeholder for the main file's name, also in the names of the files next to it."""
PLACEHOLDERS = re.compile(r"(?P<string>\")?(?<![\w/.-])(?P<name>FILE|TARGET)(?![\w/-])")
"""In usages; a name in a string of Python is not quoted for a shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLength:
    """The fastest number of draft tokens for a range of batch sizes, both ends included."""

    first_batch: int
    last_batch: int
    length: int
    """Draft tokens of a chain, the root not counted; 0 is plain decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRequest:
    """The setting to export, in treeopt's terms; the root counts as a node."""

    tree: DynamicTree
    """A chain of K draft tokens is `DynamicTree.chain(K)`."""
    schedule: tuple[BatchLength, ...] = ()
    """Chain lengths by batch size, from 1 on without gaps, none above the tree's depth; empty for trees, and if one batch
    size was measured."""
    survival: tuple[float, ...] = ()
    """For a chain: the probability that a step accepts at least 1, 2, … draft tokens; empty if not predicted."""
    verify_s: Mapping[int, float] = field(default_factory=dict)
    """Measured seconds of a verification pass, by tokens in ascending order; empty without a profile."""
    draft_model: str
    """Path or name of the draft model."""
    method: str | None = None
    """The engine's own name of the draft method; None is the exporter's default, a separate draft model."""
    ngram: int | None = None
    """Longest n-gram of methods that look up n-grams; None is the engine's default."""
    parallel_drafting: bool = False
    """Whether one pass of the draft drafts the whole chain, as with P-EAGLE heads."""
    engine_version: str | None = None
    """Version that will read the files; None is the newest one that the exporter supports."""
    static_tree: TokenTree | None = None
    """Tree for treeopt's own decoder, if the engine can load that."""
    rule: str = "sequoia"
    """Verification rule of that decoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFiles:
    """The files of a setting."""

    files: Mapping[str, str]
    """Texts by name, the main one first: `FILE`, `FILE.kwargs.json`, …"""
    usage: str
    """Command or code that starts the engine; `TARGET` stands for the target model, `FILE` for the main file."""
    warnings: tuple[Warning, ...] = ()

    def describe_usage(self, file: str, target: str) -> str:
        """Return the usage with the names of the main file and the target, quoted where a shell reads them."""
        names = {"FILE": file, "TARGET": target}

        def replace(match: re.Match[str]) -> str:
            name = names[match["name"]]
            return f'"{name}' if match["string"] else shlex.quote(name)

        return PLACEHOLDERS.sub(replace, self.usage)


def _accept_all(_: SettingRequest) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that settings can be exported to."""

    name: str
    """As in `treeopt export --to`."""
    title: str
    checked: tuple[str, ...]
    """The oldest and the newest release that the exporter was checked against, or the only one, or a commit."""
    needs: str = "a chain of at least 1 draft token, the root not counted"
    """What it accepts, and whether it counts the root."""
    dynamic: bool = False
    """Whether it drafts dynamic trees; if not, chains only."""
    schedules: bool = False
    """Whether its files can contain a schedule; if not, one length serves all batch sizes."""
    length_sets_block: bool = False
    """Whether a block drafter predicts blocks of as many draft tokens as the length, whatever its head was trained with."""
    default: DynamicTree | None
    """What it drafts without a length; None if it needs one."""
    limits: Callable[[SettingRequest], str | None] = _accept_all
    """Returns why the engine does not accept a chain, or a tree if it drafts trees: field, what is expected, what came; None
    if it does."""
    render: Callable[[SettingRequest], SettingFiles]
    """Returns the files of a request within the limits."""
    off: SettingFiles
    """The files of plain decoding."""
    static: bool = False
    """Whether it can load treeopt's own decoder, and so any static tree."""
    takes: tuple[str, ...] = ("draft_model", "method", "engine_version")
    """Fields of a request, besides the plan, that change its files."""
    method_names: tuple[str, ...] = ()
    """Its own names of draft methods; empty if there is no choice."""
    old_method_names: tuple[str, ...] = ()
    """Those that the newest version no longer has."""
    chain_methods: tuple[str, ...] = ()
    """Those that draft chains only, though the engine drafts dynamic trees with others."""
    methods: Mapping[str, str | None] = field(default_factory=dict)
    """Its own method names by treeopt's names of drafters other than a draft model, None for its default method: `eagle`
    for EAGLE heads, `p-eagle`, `dflash`, `dspark`, `prompt-lookup`, and `eagle2` for dynamic trees of the draft model."""

    @property
    def versions(self) -> str:
        """The versions that the exporter was checked against, in words."""
        return " to ".join(self.checked)

    def drafts_trees(self, method: str | None) -> bool:
        """Return whether it drafts dynamic trees with a method; None is its default one."""
        return self.dynamic and method not in self.chain_methods
