"""Tree files of other programs; each module reads and writes formats of one kind."""

from treeopt.trees.formats.detection import FORMATS, READABLE, parse
from treeopt.trees.formats.growmap import MAX_BYTES
from treeopt.trees.formats.topology import TopologyFormat

__all__ = ["FORMATS", "MAX_BYTES", "READABLE", "TopologyFormat", "parse"]
