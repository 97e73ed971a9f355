"""What a topology format is, and the trees that a file of it holds."""

from collections.abc import Callable
from dataclasses import dataclass

from treeopt.errors import Warning
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.trees.provenance import Provenance
from treeopt.trees.token_tree import TokenTree


@dataclass(frozen=True, slots=True)
class NamedTree:
    """One tree of a file, with the name it has there; None where the format gives no names."""

    name: str | None
    tree: TokenTree
    provenance: Provenance | None = None
    """What a tree file says of it; other formats say nothing."""
    drafter: DrafterSetting | None = None
    """As in `TreeFile`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What some formats have to be told beside the tree."""

    name: str | None = None
    """Name of the tree in formats that give names."""
    max_depth: int | None = None
    """Heads of a Medusa-like model, and so its deepest tree; None is not known, and not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file's bytes, and what its user must know; every warning ends in an action."""

    data: bytes
    warnings: tuple[Warning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFormat:
    """One format of other programs that trees are read from."""

    name: str
    title: str
    """The programs that read it, in words."""
    versions: str
    """Their versions."""
    needs: str
    """What a tree must be like, and what has to be installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFormat(TreeFormat):
    """One that is written too, by its name in `treeopt export --to`."""

    text: bool
    """Whether its files are text."""
    write: Callable[[TokenTree, WriteOptions, str], Written]
    """From a tree, options and the suffix of the file to be written; raises InfeasibleError for trees it cannot hold."""
    takes: tuple[str, ...] = ()
    """Fields of the options that it heeds."""
