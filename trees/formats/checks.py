"""What the readers share: how values are told in an error, and where two arrays differ."""

import reprlib

import numpy as np

from treeopt.arrays import Array

MASK_NODES = 4096
"""Most nodes in formats that hold an n x n mask."""

_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = 8
_REPR.maxstring = _REPR.maxother = 60
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))
_LONGEST = 80


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
    """Return a name from a file as it stands where it is a plain word, quoted and cut where it is not."""
    return name if name.isidentifier() and len(name) <= _LONGEST else short(name)


def difference(found: Array, expected: Array) -> str | None:
    """Return what is wrong with an array that should equal another of the same meaning; None where nothing is."""
    if found.shape != expected.shape:
        return f"expected shape {expected.shape}. Got {short(found.shape)}."
    wrong = np.argwhere(found != expected)
    if not len(wrong):
        return None
    place = tuple(wrong[0].tolist())
    return f"expected {expected[place].item()} at {list(place)}. Got {found[place].item()}."
