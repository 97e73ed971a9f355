"""Medusa's choices: a list of paths (Cai et al., 2024, `medusa_choices.py`); Hydra, EAGLE-1 and Spec-Bench read it too."""

import ast
import json
import keyword
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypeGuard

from treeopt.errors import FormatError, InfeasibleError, InvalidValueError, TreeoptWarning
from treeopt.files.fields import quote_name
from treeopt.trees.formats.paths import paths_from_tree, tree_from_paths
from treeopt.trees.formats.python_text import MAX_CHARS, assignments, literal
from treeopt.trees.formats.topology import TopologyFormat, TreeFormat
from treeopt.trees.token_tree import TokenTree

TOP_K = 10
"""Candidates per head; a higher rank would read those of the next head."""
USUAL_HEADS = 5
CONFIG_KEYS = ("medusa_choices", "eagle_choices")
KEYS = ("choices", *CONFIG_KEYS)


def write(
    tree: TokenTree, *, suffix: str = ".json", list_name: str | None = None, max_depth: int | None = None
) -> bytes:
    """Return a JSON list, or a Python module with one named list.

    Args:
        tree: the tree.
        suffix: of the file; `.json` is JSON.
        list_name: of the list in a module.
        max_depth: heads of the model, the depth of its deepest tree; None if unknown.

    Raises InvalidValueError for a name that is no Python name, and for a name of a JSON list, which has none;
    InfeasibleError for ranks of 10 and more, and trees deeper than the model's heads; warns of deep trees if the
    number of heads is unknown.
    """
    paths = [list(path) for path in paths_from_tree(tree)]
    _check_fits(tree, max_depth)
    if max_depth is None and tree.max_depth > USUAL_HEADS:
        warnings.warn(
            TreeoptWarning(
                f"the tree needs a model with {tree.max_depth} heads; with fewer the program that reads it fails. "
                f"Check the model, or solve again with --depth {USUAL_HEADS}."
            ),
            stacklevel=2,
        )
    if suffix == ".json":
        if list_name is not None:
            raise InvalidValueError(
                f"list_name: expected a Python module, because a JSON list has no name. Got {suffix}: write a .py file.",
                field="list_name",
            )
        return f"{json.dumps(paths)}\n".encode()
    name = list_name or f"treeopt_{len(paths)}"
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidValueError(
            f"list_name: expected a Python name such as treeopt_63. Got {name!r:.60}.", field="list_name"
        )
    lines = textwrap.fill(f"{json.dumps(paths)[1:-1]},", 100, initial_indent="    ", subsequent_indent="    ")
    text = f"{name} = [\n{lines}\n]\n"
    if len(text) > MAX_CHARS:
        raise InfeasibleError(
            f"tree: expected at most {MAX_CHARS} characters of Python. Got {len(text)}: write a .json file."
        )
    return text.encode()


def read_object(path: Path, content: Mapping[str, object]) -> dict[str, TokenTree]:
    """Return the trees of a JSON object: under `choices`, `medusa_choices` or `eagle_choices`, or else all lists of paths.

    Raises FormatError naming the file, the path and the reason.
    """
    inner = content.get("choices")
    if isinstance(inner, dict):
        return _trees(path, inner)
    lists = {key: content[key] for key in KEYS if key in content}
    return _trees(path, lists or {name: value for name, value in content.items() if looks_like_paths(value)})


def read_python(path: Path, module: ast.Module) -> dict[str, TokenTree]:
    """Return the trees of all lists of paths, or dicts of them, that a Python module assigns; nothing is executed.

    Raises FormatError naming the file, the path and the reason.
    """
    lists: dict[str, object] = {}
    for name, value in assignments(module).items():
        if looks_like_paths(value):
            lists[name] = value
        elif isinstance(value, dict):
            lists |= {key: item for key, item in value.items() if isinstance(key, str) and looks_like_paths(item)}
    return _trees(path, lists)


def looks_like_paths(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    """Return whether a value may be a list of paths, correct or not."""
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], list | tuple)


def _trees(path: Path, lists: Mapping[str, object]) -> dict[str, TokenTree]:
    """Return the trees of lists of paths; a list may be text, as on command lines."""
    if not lists:
        raise FormatError(path, "content", "expected a list of paths such as [[0], [1], [0, 0]]. Got none.")
    trees = {}
    for name, value in lists.items():
        field = quote_name(name)
        trees[name] = tree_from_paths(path, field, literal(path, field, value) if isinstance(value, str) else value)
    return trees


def _check_fits(tree: TokenTree, max_depth: int | None) -> None:
    widest = int(tree.child_counts.max())
    if widest > TOP_K:
        raise InfeasibleError(
            f"tree: expected at most {TOP_K} children of a node, the candidates of a head. Got {widest}: "
            f"solve again with --level-width {TOP_K}."
        )
    if max_depth is not None and tree.max_depth > max_depth:
        raise InfeasibleError(
            f"tree: expected at most {max_depth} levels, the model's heads. Got {tree.max_depth}: "
            f"solve again with --depth {max_depth}."
        )


CONFIG_FORMAT = TreeFormat(
    name="choices-config",
    title="configuration of an engine, such as TensorRT-LLM's, or a list of paths (YAML)",
    versions="read only",
    needs=f"a list of paths, alone or as {', '.join(KEYS)} at any depth",
)
FORMAT = TopologyFormat(
    name="medusa",
    title="Medusa, Hydra, EAGLE-1, Spec-Bench (choices)",
    versions="any version",
    needs=f"at most {TOP_K} children of a node, no more levels than the model has heads",
    text=True,
    write=write,
    takes=("suffix", "list_name", "max_depth"),
    drafters=("medusa", "eagle"),
)
