"""Medusa's choices: a list of paths (Cai et al., 2024, `medusa_choices.py`); Hydra, EAGLE-1 and Spec-Bench read it too."""

import ast
import json
import keyword
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

from treeopt.errors import FormatError, InfeasibleError, InvalidValueError, Warning
from treeopt.trees.formats.paths import paths_of_tree, tree_of_paths
from treeopt.trees.formats.python_text import MAX_CHARS, assignments, literal
from treeopt.trees.formats.topology import TopologyFormat, TreeFormat, WriteOptions, Written, label
from treeopt.trees.token_tree import TokenTree

TOP_K = 10
"""Candidates of every head; a higher rank would read those of the next head."""
USUAL_HEADS = 5
CONFIG_KEYS = ("medusa_choices", "eagle_choices")
KEYS = ("choices", *CONFIG_KEYS)


def write(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return a JSON list for `.json`, else a Python module with one named list.

    Raises InfeasibleError for ranks of 10 and more, and trees deeper than the model's heads.
    """
    paths = [list(path) for path in paths_of_tree(tree)]
    _check_fits(tree, options)
    warnings = _warnings(tree) if options.max_depth is None else ()
    if suffix == ".json":
        return Written(data=f"{json.dumps(paths)}\n".encode(), warnings=warnings)
    name = options.name or f"treeopt_{len(paths)}"
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidValueError(f"name: expected a Python name such as treeopt_63. Got {name!r}.", field="name")
    lines = textwrap.fill(f"{json.dumps(paths)[1:-1]},", 100, initial_indent="    ", subsequent_indent="    ")
    text = f"{name} = [\n{lines}\n]\n"
    if len(text) > MAX_CHARS:
        raise InfeasibleError(
            f"tree: expected at most {MAX_CHARS} characters of Python. Got {len(text)}: write a .json file."
        )
    return Written(data=text.encode(), warnings=warnings)


def read_list(path: Path, content: object) -> TokenTree:
    """Return the tree of a bare list of paths; raises FormatError naming the file, the path and the reason."""
    return tree_of_paths(path, "choices", content)


def read_object(path: Path, content: Mapping[str, object]) -> dict[str, TokenTree]:
    """Return the trees of a JSON object: under `choices`, `medusa_choices` or `eagle_choices`, or else all lists of paths.

    Raises FormatError naming the file, the path and the reason.
    """
    inner = content.get("choices")
    if isinstance(inner, dict):
        return _trees(path, inner)
    known = {key: content[key] for key in KEYS if key in content}
    return _trees(path, known or {name: value for name, value in content.items() if looks_like_paths(value)})


def read_python(path: Path, module: ast.Module) -> dict[str, TokenTree]:
    """Return the trees of all lists of paths, or dicts of them, that a Python module assigns; nothing is executed.

    Raises FormatError naming the file, the path and the reason.
    """
    named: dict[str, object] = {}
    for name, value in assignments(module).items():
        if looks_like_paths(value):
            named[name] = value
        elif isinstance(value, dict):
            named |= {key: each for key, each in value.items() if isinstance(key, str) and looks_like_paths(each)}
    return _trees(path, named)


def looks_like_paths(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    """Return whether a value is meant as a list of paths, correct or not."""
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], list | tuple)


def _trees(path: Path, named: Mapping[str, object]) -> dict[str, TokenTree]:
    if not named:
        raise FormatError(path, "content", "expected a list of paths such as [[0], [1], [0, 0]]. Got none.")
    return {name: _tree(path, label(name), value) for name, value in named.items()}


def _tree(path: Path, field: str, value: object) -> TokenTree:
    """Return the tree of a list of paths, or of such a list as text, as on command lines."""
    return tree_of_paths(path, field, literal(path, field, value) if isinstance(value, str) else value)


def _check_fits(tree: TokenTree, options: WriteOptions) -> None:
    widest = int(tree.child_counts.max())
    if widest > TOP_K:
        raise InfeasibleError(
            f"tree: expected at most {TOP_K} children of a node, the candidates of a head. Got {widest}: "
            f"solve again with --level-width {TOP_K}."
        )
    if options.max_depth is not None and tree.max_depth > options.max_depth:
        raise InfeasibleError(
            f"tree: expected at most {options.max_depth} levels, the model's heads. Got {tree.max_depth}: "
            f"solve again with --depth {options.max_depth}."
        )


def _warnings(tree: TokenTree) -> tuple[Warning, ...]:
    if tree.max_depth <= USUAL_HEADS:
        return ()
    return (
        Warning(
            f"the tree needs a model with {tree.max_depth} heads; with fewer the program that reads it fails.",
            f"Check the model, or solve again with --depth {USUAL_HEADS}.",
        ),
    )


CONFIG_FORMAT = TreeFormat(
    name="choices-config",
    title="configuration of an engine, such as TensorRT-LLM's (YAML)",
    versions="read only",
    needs=f"{', '.join(KEYS)} with a list of paths, at any depth",
)
FORMAT = TopologyFormat(
    name="medusa",
    title="Medusa, Hydra, EAGLE-1, Spec-Bench (choices)",
    versions="all",
    needs=f"at most {TOP_K} children of a node, no more levels than the model has heads",
    text=True,
    write=write,
    takes=("name", "max_depth"),
)
