"""A topology format, and what the readers of all formats share."""

import reprlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from treeopt.arrays import Array
from treeopt.errors import Warning
from treeopt.trees.token_tree import TokenTree

MASK_NODES = 4096
"""Most nodes in formats that hold an n x n mask."""

_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = 8
_REPR.maxstring = _REPR.maxother = 60
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))
_LONGEST = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of some formats."""

    name: str | None = None
    """Name of the tree, in formats with names."""
    max_depth: int | None = None
    """Heads of a Medusa-like model, the depth of its deepest tree; None is unknown, and not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file's bytes, and warnings for the user."""

    data: bytes
    warnings: tuple[Warning, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFormat:
    """A format of other programs that is read."""

    name: str
    title: str
    """The programs that read it."""
    versions: str
    """Their versions."""
    needs: str
    """Requirements on the tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFormat(TreeFormat):
    """A format that is read and written, with its name in `treeopt export --to`."""

    text: bool
    """Whether its files are text."""
    write: Callable[[TokenTree, WriteOptions, str], Written]
    """Returns the file of a tree, given options and the suffix of its path; raises InfeasibleError for unsuitable trees."""
    takes: tuple[str, ...] = ()
    """Fields of the options that have an effect."""


def short(value: object) -> str:
    r"""Return a value in at most 80 characters of one line.

    >>> short([0, 1, 0]), short("two\nlines")
    ('[0, 1, 0]', "'two\\nlines'")
    """
    try:
        text = _REPR.repr(value) if isinstance(value, _PLAIN) else type(value).__name__
    except ValueError:  # an integer of more digits than Python is willing to write
        text = "a number of thousands of digits"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def label(name: str) -> str:
    """Return a name from a file: unchanged if it is an identifier, else quoted and shortened."""
    return name if name.isidentifier() and len(name) <= _LONGEST else short(name)


def difference(found: Array, expected: Array) -> str | None:
    """Return the first difference between two arrays as a sentence, or None if they are equal."""
    if found.shape != expected.shape:
        return f"expected shape {expected.shape}. Got {short(found.shape)}."
    wrong = np.argwhere(found != expected)
    if not len(wrong):
        return None
    place = tuple(wrong[0].tolist())
    return f"expected {expected[place].item()} at {list(place)}. Got {found[place].item()}."
