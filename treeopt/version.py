"""The version that is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("treeopt")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+source"

TOOL = f"treeopt {__version__}"
"""Name and version of the program in the files that it writes."""
