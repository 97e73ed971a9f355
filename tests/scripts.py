"""Sources of the repository, and scripts imported as Python runs them, with their folder first in the path."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "tools", "examples")
PACKAGES = {"treeopt": "treeopt", "trees": "treeopt.trees", "profiler": "treeopt.profiler", "cli": "treeopt.cli"}


def scripts() -> list[Path]:
    """Return the paths of all scripts."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))


def modules() -> dict[str, Path]:
    """Return the path of every module by its dotted name; symbolic links are not followed."""
    paths = {}
    for folder, package in PACKAGES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            inner = path.relative_to(ROOT / folder).with_suffix("")
            if not any((ROOT / folder / above).is_symlink() for above in inner.parents if above.name):
                paths[".".join((package, *inner.parts)).removesuffix(".__init__")] = path
    return paths


def together(folder: str, *names: str) -> tuple[ModuleType, ...]:
    """Return scripts of one folder as the modules that they import."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        return tuple(map(importlib.import_module, names))
    finally:
        sys.path.remove(str(ROOT / folder))


def script(path: Path) -> ModuleType:
    """Return a script as a module of a unique name; modules of its folder that it imports are removed again."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.modules[spec.name] = module  # dataclasses need it
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        neighbours = {neighbour.stem for neighbour in path.parent.glob("*.py")}
        for name in (set(sys.modules) - before) & neighbours:
            del sys.modules[name]
    return module
