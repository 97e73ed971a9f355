"""The scripts beside the package, imported as Python runs them: their own folder comes first in the path."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "tools", "examples")


def scripts() -> list[Path]:
    """Return every script of these folders."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))


def together(folder: str, *names: str) -> tuple[ModuleType, ...]:
    """Return scripts of one folder as the modules as which they import each other."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        return tuple(map(importlib.import_module, names))
    finally:
        sys.path.remove(str(ROOT / folder))


def script(path: Path) -> ModuleType:
    """Return a script as a module, under a name that no other module has; what it imports beside it is forgotten."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    known = set(sys.modules)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
        beside = {each.stem for each in path.parent.glob("*.py")}
        for name in (set(sys.modules) - known) & beside:
            del sys.modules[name]
    return module
