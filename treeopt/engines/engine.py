"""What an engine's exporter gets and what it gives: one canonical record in, the engine's own files out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from treeopt.errors import Warning
from treeopt.trees import TokenTree
from treeopt.trees.dynamic_tree import DynamicTree


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLength:
    """How many draft tokens are fastest for a range of batch sizes, both ends included."""

    first_batch: int
    last_batch: int
    length: int
    """Draft tokens of a chain, the root not counted; 0 is plain decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyTime:
    """Measured seconds of a verification pass over so many tokens."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRequest:
    """What an engine is to be set to, in treeopt's words; the root counts as a node."""

    tree: DynamicTree
    """The setting; a chain of K draft tokens is `DynamicTree.chain(K)`."""
    schedule: tuple[BatchLength, ...] = ()
    """Chain lengths over batch sizes, from 1 on without gaps; empty where one batch size was measured, or for trees.
    No length is above the tree's depth."""
    survival: tuple[float, ...] = ()
    """For a chain: the probability that a step accepts at least 1, 2, … draft tokens; empty where not predicted."""
    verify_times: tuple[VerifyTime, ...] = ()
    """Passes that were measured, tokens rising; empty without a profile."""
    draft_model: str
    """Path or name of the draft model."""
    method: str | None = None
    """The engine's own name of the speculation method; None takes the exporter's default, a separate draft model."""
    ngram: int | None = None
    """For methods that look up n-grams of the text: most tokens of one; None leaves it to the engine."""
    engine_version: str | None = None
    """Version that will read the files; None is the newest that the exporter knows."""
    static_tree: TokenTree | None = None
    """For engines that can be handed treeopt's own decoder: the tree it is to run."""
    rule: str = "sequoia"
    """Verification rule of that decoder."""


MAIN = "FILE"
"""Stands for the main file's name, in the names of the files beside it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingFiles:
    """All files of a setting, and what their user must know."""

    files: Mapping[str, str]
    """Texts by name, the main one first: `FILE`, `FILE.kwargs.json`, …"""
    usage: str
    """One line: how the engine is started with it.  `TARGET` stands for the target model, `FILE` for the main file."""
    warnings: tuple[Warning, ...] = ()
    """Each ends in an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine: what it can be set to, and how."""

    name: str
    """As in `treeopt export --to`."""
    title: str
    versions: str
    """Range of versions that the exporter was checked against."""
    checked: tuple[str, str] | None = None
    """The oldest and the newest of them as numbers; None if releases have none."""
    needs: str
    """What a setting must be like, in words, root counted or not."""
    dynamic: bool
    """Whether it drafts dynamic trees; if not, chains only."""
    schedules: bool = False
    """Whether its files can contain a schedule; if not, one length serves all batch sizes."""
    default: DynamicTree | None
    """What it does when it is told nothing but to speculate; None where a length must be given."""
    limits: Callable[[SettingRequest], str | None]
    """Returns why the engine cannot be set to a request: the field, what is expected, what came; None if it can."""
    render: Callable[[SettingRequest], SettingFiles]
    """Returns the files of a request within the limits."""
    off: SettingFiles
    """What makes it decode plainly, without a draft."""
    static: bool = False
    """Whether it can be handed treeopt's own decoder, and so any static tree."""
    takes: tuple[str, ...] = ("draft_model", "method", "engine_version")
    """Fields of a request beside the plan that change its files."""
    method_names: tuple[str, ...] = ()
    """Its own names of speculation methods; empty if there is no choice."""
    old_method_names: tuple[str, ...] = ()
    """Those that the newest version no longer has."""
    methods: Mapping[str, str | None] = field(default_factory=dict)
    """Drafters beside the draft model that it has, by treeopt's names, each with its own name of the method, None where
    that is the default: `eagle`, a head; `eagle2`, dynamic trees of the draft model; `prompt-lookup`."""


Json = dict[str, Any]
