"""Which treeopt is tested: the one of this checkout, or one that is installed elsewhere."""

from pathlib import Path

import treeopt


def misplaced(folder: Path) -> str | None:
    """Return what is wrong where the tested package does not lie in a folder, None where it does."""
    file = Path(str(treeopt.__file__)).resolve()
    if file.is_relative_to(folder.resolve()):
        return None
    return f"treeopt: expected in {folder}. Got {file}: run the tests where its source cannot be imported."
