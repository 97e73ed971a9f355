"""Tree files of other programs; each module reads and writes formats of one kind."""

from treeopt.errors import InvalidValueError
from treeopt.trees.formats.detection import FORMATS, READABLE, parse
from treeopt.trees.formats.growmap import MAX_BYTES
from treeopt.trees.formats.topology import TopologyFormat, WriteOptions

__all__ = ["FORMATS", "MAX_BYTES", "READABLE", "TopologyFormat", "WriteOptions", "format_named", "parse"]


def format_named(name: str) -> TopologyFormat:
    r"""Return a format that is written; raises InvalidValueError listing all names.

    >>> from treeopt.trees import TokenTree
    >>> format_named("nxdi").write(TokenTree([-1, 0, 0, 1]), WriteOptions())
    b'{"0": [1, 2], "1": [3]}\n'
    """
    formats = {tree_format.name: tree_format for tree_format in FORMATS}
    if name not in formats:
        raise InvalidValueError(f"format: expected one of {', '.join(formats)}. Got {name!r}.")
    return formats[name]
