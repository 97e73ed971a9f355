"""Which compiled functions a changed file can reach, so that no stale one hides a fault.

numba keeps what it compiled beside the time and the size of the function's own file.  A constant or a function that
comes from another file is compiled in, and when that file changes numba does not notice.  So whatever depends on a
changed file, by its own lines or by what they import, is taken out of the cache before a fault in it is tried.
"""

import ast
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

DECORATOR = "njit"


def compiled_files(root: Path, files: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return the files with compiled functions, each with all files that these may depend on.

    Args:
        root: folder of the project.
        files: its Python files, relative to the root.
    """
    trees = {file: ast.parse((root / file).read_bytes()) for file in files if not (root / file).is_symlink()}
    modules = {_module(file): file for file in trees}
    imports = {file: dict(_imports(tree, modules)) for file, tree in trees.items()}
    found = {}
    for file, tree in trees.items():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_compiled(node)]
        if functions:
            used = {name.id for each in functions for name in ast.walk(each) if isinstance(name, ast.Name)}
            direct = {target for name, target in imports[file].items() if name in used}
            found[file] = frozenset({file} | _closure(direct, imports))
    return found


def seeded_cache(warm: Path, cache: Path, dependencies: Mapping[str, frozenset[str]], changed: Sequence[str]) -> bool:
    """Make `cache` a copy of a warm one without what the changed files reach; return False where they reach nothing.

    Files of a cache begin with the stem of the file that holds the function.
    """
    stale = {Path(file).stem for file, needed in dependencies.items() if not needed.isdisjoint(changed)}
    if not stale:
        return False
    if warm.exists():
        shutil.copytree(warm, cache, ignore=lambda _, names: [name for name in names if name.split(".")[0] in stale])
    return True


def _module(file: str) -> str:
    """Return the name by which a file of this project is imported: `cli`, `profiler` and `trees` are linked below."""
    parts = Path(file).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(parts if parts[:1] in (("treeopt",), ("tests",)) else ("treeopt", *parts))


def _imports(tree: ast.Module, modules: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the names that a module imports from files of the project, each with the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                for module in (f"{node.module}.{alias.name}", node.module):
                    if module in modules:
                        yield alias.asname or alias.name, modules[module]
                        break
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    yield alias.asname or alias.name.split(".")[0], modules[alias.name]


def _is_compiled(function: ast.FunctionDef) -> bool:
    return any(DECORATOR in ast.dump(decorator) for decorator in function.decorator_list)


def _closure(files: set[str], imports: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Return some files and all that they import, directly or not."""
    found: set[str] = set()
    pending = list(files)
    while pending:
        file = pending.pop()
        if file not in found:
            found.add(file)
            pending.extend(imports[file].values())
    return found
