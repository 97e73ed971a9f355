"""Detection of a file's format by its content, not its name."""

import ast
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import abbreviate, quote_name
from treeopt.files.foreign_text import decode_text, describe_bytes
from treeopt.files.json_file import MAX_BYTES, parse_json
from treeopt.files.yaml_file import parse_yaml
from treeopt.trees import token_tree, tree_file
from treeopt.trees.formats import adjacency, arrays, growmap, medusa, paths
from treeopt.trees.formats.python_text import MAX_CHARS, syntax_tree, value_of
from treeopt.trees.formats.topology import TopologyFormat, TreeFormat
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import Provenance, TreeFile

FORMATS: tuple[TopologyFormat, ...] = (
    growmap.SEQUOIA,
    growmap.UMBRELLA,
    medusa.FORMAT,
    adjacency.NXDI,
    arrays.NPZ,
    arrays.SAFETENSORS,
)
READABLE: tuple[TreeFormat, ...] = (*FORMATS, paths.VLLM, medusa.CONFIG_FORMAT, adjacency.PARENTS, adjacency.ADJACENCY)
"""All formats that are read."""
MAX_TEXT_BYTES = 20_000_000
MAX_OBJECTS = 1000
YAML_TREE = re.compile(
    rf"^(?:[ \t-]*[\"']?(?:{'|'.join((*medusa.KEYS, paths.VLLM_TREE, adjacency.ADJACENCY_KEY))})[\"']?:|- *[\[-])",
    re.MULTILINE,
)
"""A YAML key with a tree, or an item of a list of paths."""


@dataclass(frozen=True, slots=True)
class Reader:
    """The format of a file, None for treeopt's own, and the function that reads it."""

    tree_format: TreeFormat | None
    read: Callable[[], TreeFile | TokenTree | dict[str, TokenTree]]
    """Returns the tree, or all trees of the file by their names."""


def parse(path: Path | str, data: bytes) -> dict[str | None, TreeFile]:
    """Return every tree of a file's bytes by its name, which is None in formats without names.

    The provenance of another program's tree is that program. Nothing in the file is executed.

    Raises FormatError naming the file, the field and the reason.
    """
    reader = detect(Path(path), data)
    content = reader.read()
    if isinstance(content, TreeFile):
        return {None: content}
    provenance = Provenance(source=str(path), tool=reader.tree_format.title if reader.tree_format else None)
    trees = content if isinstance(content, dict) else {None: content}
    return {name: TreeFile(tree=tree, provenance=provenance) for name, tree in trees.items()}


def detect(path: Path, data: bytes) -> Reader:
    """Return the reader of a file's bytes; raises FormatError for an unknown format."""
    # First, because a safetensors file starts with the length of its JSON header, which may look like any other format.
    if data[4:9] == b"\x00\x00\x00\x00{":
        return Reader(arrays.SAFETENSORS, partial(arrays.read_safetensors, path, data))
    if data[:2] == b"PK":
        return _detect_archive(path, data)
    if data[:1] == b"\x80":  # the first byte of every binary pickle
        return Reader(growmap.SEQUOIA, partial(growmap.read_sequoia, path, data))
    if len(data) > MAX_TEXT_BYTES:
        raise FormatError(path, "content", f"expected at most {MAX_TEXT_BYTES} bytes of text. Got {len(data)}.")
    text = decode_text(data)
    if text is None or not text.strip():
        raise _unknown_format(path, describe_bytes(data))
    return _detect_text(path, text)


def _detect_archive(path: Path, data: bytes) -> Reader:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        reason = f"expected a numpy archive or a torch file ({abbreviate(str(error))}). Is it complete?"
        raise FormatError(path, "content", reason) from None
    if any(name.endswith(".npy") for name in names):
        return Reader(arrays.NPZ, partial(arrays.read_npz, path, data))
    return Reader(growmap.SEQUOIA, partial(growmap.read_sequoia, path, data))


def _detect_text(path: Path, text: str) -> Reader:
    start = text.lstrip()[:1]
    if start == "{":
        return _detect_object(path, text, parse_json(path, text, unique_keys=True))
    if start == "[":
        try:
            return _detect_list(path, parse_json(path, text, unique_keys=True))
        except FormatError:  # it may be a Python list: tuples, a trailing comma
            if len(text) > MAX_CHARS:
                raise
    if YAML_TREE.search(text):
        content = _read_yaml(path, text)
        if isinstance(content, dict | list):
            reader = _detect_list(path, content) if isinstance(content, list) else _detect_object(path, text, content)
            return replace(reader, tree_format=medusa.CONFIG_FORMAT) if reader.tree_format is medusa.FORMAT else reader
    return _detect_python(path, text)


def _read_yaml(path: Path, text: str) -> object:
    """Return the value of YAML with all keys as text; None for Python."""
    try:
        lines = syntax_tree(text).body
    except InvalidValueError:
        lines = []
    if not all(map(_may_be_yaml, lines)):
        return None
    if len(text) > MAX_BYTES:
        raise FormatError(path, "content", f"expected at most {MAX_BYTES} characters of YAML. Got {len(text)}.")
    return _with_text_keys(parse_yaml(path, text, kind="an engine's configuration with a tree"))


def _may_be_yaml(line: ast.stmt) -> bool:
    """Return whether a line of Python may be a key of YAML, an annotation, or an item, which is negated."""
    match line:
        case ast.AnnAssign(value=None) | ast.Expr(value=ast.UnaryOp()):
            return True
    return False


def _with_text_keys(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(item) for key, item in value.items()}
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


def _detect_object(path: Path, text: str, content: dict[str, Any]) -> Reader:
    name = content.get("format")
    if name == token_tree.FORMAT:
        return Reader(None, partial(tree_file.parse, path, text))
    for detect_object in (_detect_by_names, _detect_by_content):
        matches = list(_outermost(path, content, detect_object))
        if len(matches) > 1:
            (first, _), (second, _) = matches[:2]
            reason = (
                f"expected trees in one place. Got trees under {first} and {second}: save one to a file of its own."
            )
            raise FormatError(path, "content", reason)
        if matches:
            return matches[0][1]
    actual = f"a file of the format {abbreviate(name)}" if name else f"JSON with the keys {abbreviate(list(content))}"
    raise _unknown_format(path, actual)


def _detect_list(path: Path, content: Sequence[object]) -> Reader:
    """Return the reader of parents, of tuples as vLLM reads them, or of paths."""
    if adjacency.is_parents(content):
        return Reader(adjacency.PARENTS, partial(adjacency.read_parents, path, content))
    if content and isinstance(content[0], tuple):
        return Reader(paths.VLLM, partial(paths.tree_from_paths, path, paths.VLLM_TREE, content))
    return Reader(medusa.FORMAT, partial(paths.tree_from_paths, path, "choices", content))


def _detect_by_names(path: Path, content: dict[str, Any]) -> Reader | None:
    """Return the reader of an object with a field that only trees have, or None."""
    if len(content.keys() & set(growmap.KEYS)) > 1:
        return Reader(growmap.UMBRELLA, partial(growmap.read_umbrella, path, content))
    if paths.VLLM_TREE in content:
        return Reader(paths.VLLM, partial(paths.read_vllm_config, path, content))
    if adjacency.ADJACENCY_KEY in content:
        return Reader(adjacency.ADJACENCY, partial(adjacency.read_adjacency, path, content[adjacency.ADJACENCY_KEY]))
    if any(key in content for key in medusa.CONFIG_KEYS):
        return Reader(medusa.FORMAT, partial(medusa.read_object, path, content))
    return None


def _detect_by_content(path: Path, content: dict[str, Any]) -> Reader | None:
    """Return the reader of an object whose fields may be those of a tree or of another configuration, or None."""
    if paths.VLLM_COUNT in content:
        return Reader(paths.VLLM, partial(paths.read_vllm_config, path, content))
    if "0" in content:
        return Reader(adjacency.NXDI, partial(adjacency.read_nxdi, path, content))
    if any(key in content for key in medusa.KEYS) or any(map(medusa.looks_like_paths, content.values())):
        return Reader(medusa.FORMAT, partial(medusa.read_object, path, content))
    if adjacency.PARENTS_KEY in content:
        return Reader(adjacency.PARENTS, partial(adjacency.read_parents, path, content[adjacency.PARENTS_KEY]))
    return None


def _outermost(
    path: Path, content: dict[str, Any], detect_object: Callable[[Path, dict[str, Any]], Reader | None]
) -> Iterator[tuple[str, Reader]]:
    """Yield field and reader of every object with a tree that is not inside another such object."""
    objects = [("", content)]
    for field, fields in objects:  # grows during the loop
        if reader := detect_object(path, fields):
            yield field, reader
            continue
        for key, value in fields.items():
            name = f"{field}.{quote_name(key)}" if field else quote_name(key)
            items = (
                [(f"{name}[{i}]", item) for i, item in enumerate(value)] if isinstance(value, list) else [(name, value)]
            )
            objects += [(name, item) for name, item in items if isinstance(item, dict)][: MAX_OBJECTS - len(objects)]


def _detect_python(path: Path, text: str) -> Reader:
    if match := re.match(r"format: *(treeopt-[\w-]+)", text):
        raise _unknown_format(path, f"a file of the format {match[1]!r}")
    try:
        module = syntax_tree(text)
    except InvalidValueError as error:
        raise _unknown_format(path, f"text that is no JSON, no YAML with choices, and {error}") from None
    value = value_of(module)
    if isinstance(value, list | tuple):
        return _detect_list(path, value)
    if any(isinstance(line, ast.Assign | ast.AnnAssign) for line in module.body):
        return Reader(medusa.FORMAT, partial(medusa.read_python, path, module))
    raise _unknown_format(path, "text without a list of paths")


def _unknown_format(path: Path, actual: str) -> FormatError:
    names = ", ".join(["treeopt", *(tree_format.name for tree_format in READABLE)])
    return FormatError(path, "content", f"expected a tree as one of {names} (treeopt import --list). Got {actual}.")
