"""Which format a file is in."""

from pathlib import Path

from treeopt.trees.formats.detection import found_in


def found_format(path: Path) -> str:
    """Return the name of the format of a file's content."""
    return found_in(path, path.read_bytes()).name
