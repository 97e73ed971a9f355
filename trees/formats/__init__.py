"""Trees in the files of other programs; each module writes and reads the formats of one kind."""

from treeopt.errors import InvalidValueError
from treeopt.trees.formats.detection import FORMATS, READABLE, parse
from treeopt.trees.formats.growmap import MAX_BYTES
from treeopt.trees.formats.topology import TopologyFormat, WriteOptions, Written

__all__ = ["FORMATS", "MAX_BYTES", "READABLE", "TopologyFormat", "WriteOptions", "Written", "format_named", "parse"]


def format_named(name: str) -> TopologyFormat:
    r"""Return a format by its name; raises InvalidValueError listing all names.

    >>> from treeopt.trees import TokenTree
    >>> format_named("nxdi").write(TokenTree([-1, 0, 0, 1]), WriteOptions(), ".json").data
    b'{"0": [1, 2], "1": [3]}\n'
    """
    for each in FORMATS:
        if each.name == name:
            return each
    raise InvalidValueError(f"format: expected one of {', '.join(each.name for each in FORMATS)}. Got {name!r}.")
