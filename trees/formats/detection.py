"""Which format a file is in, told from its content; its name says nothing."""

import ast
import io
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.json_file import parse_json
from treeopt.files.yaml_file import parse_yaml
from treeopt.trees import tree_file
from treeopt.trees.formats import adjacency, medusa, npz, nxdi, parents, safetensors_file, sequoia, umbrella, vllm_tree
from treeopt.trees.formats.checks import short
from treeopt.trees.formats.growmap import KEYS
from treeopt.trees.formats.python_text import MAX_CHARS, parse, value_of
from treeopt.trees.formats.topology import NamedTree, TopologyFormat, TreeFormat

FORMATS: tuple[TopologyFormat, ...] = (
    sequoia.FORMAT,
    umbrella.FORMAT,
    medusa.FORMAT,
    nxdi.FORMAT,
    npz.FORMAT,
    safetensors_file.FORMAT,
    vllm_tree.FORMAT,
)
READABLE: tuple[TreeFormat, ...] = (*FORMATS, medusa.CONFIG_FORMAT, parents.FORMAT, adjacency.FORMAT)
"""All that trees are read from."""
OWN = "treeopt"
"""What treeopt's own tree file is called here."""
MAX_TEXT_BYTES = 20_000_000
MAX_OBJECTS = 1000
CONFIG = re.compile(rf"^[ \t-]*[\"']?(?:{'|'.join((*medusa.KEYS, vllm_tree.TREE))})[\"']?:", re.MULTILINE)
"""A line of YAML that holds a tree."""


@dataclass(frozen=True, slots=True)
class Found:
    """The format that a file is in, and how to read it."""

    name: str
    read: Callable[[], tuple[NamedTree, ...]]


def found_in(path: Path, data: bytes) -> Found:
    """Return the format of a file's bytes; raises FormatError when it is none of those known."""
    # First, because it begins with a length, which may look like anything: here of less than 4 GB, and then JSON.
    if data[4:9] == b"\x00\x00\x00\x00{":
        return Found("safetensors", partial(safetensors_file.read, path, data))
    if data[:2] == b"PK":
        return _found_in_archive(path, data)
    if data[:1] == b"\x80":  # how every binary pickle begins
        return Found("sequoia", partial(sequoia.read, path, data))
    return _found_in_text(path, _text(path, data))


def _found_in_archive(path: Path, data: bytes) -> Found:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        reason = f"expected a numpy archive or a torch file ({short(str(error))}). Is it complete?"
        raise FormatError(path, "content", reason) from None
    if any(name.endswith(".npy") for name in names):
        return Found("npz", partial(npz.read, path, data))
    return Found("sequoia", partial(sequoia.read, path, data))


def _text(path: Path, data: bytes) -> str:
    if len(data) > MAX_TEXT_BYTES:
        raise FormatError(path, "content", f"expected at most {MAX_TEXT_BYTES} bytes of text. Got {len(data)}.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unknown(path, f"bytes that are no text (byte {error.start})") from None


def _found_in_text(path: Path, text: str) -> Found:
    start = text.lstrip()[:1]
    if start == "{":
        return _found_in_object(path, text, parse_json(path, text, unique_keys=True))
    if start == "[":
        try:
            content = parse_json(path, text, unique_keys=True)
            if parents.is_parents(content):
                return Found("parents", partial(parents.read, path, content))
            return Found("medusa", partial(medusa.read_list, path, content))
        except FormatError:  # a Python list may still be one: tuples, a comma at the end
            if len(text) > MAX_CHARS:
                raise
    if CONFIG.search(text):
        content = parse_yaml(path, text, kind="an engine's configuration with a tree")
        if isinstance(content, dict):
            found = _found_in_object(path, text, content)
            return replace(found, name=medusa.CONFIG_FORMAT.name) if found.name == medusa.FORMAT.name else found
    return _found_in_python(path, text)


def _found_in_object(path: Path, text: str, content: dict[str, Any]) -> Found:
    own = content.get("format")
    if own == tree_file.FORMAT:
        return Found(OWN, partial(_read_own, path, text))
    for inner in _objects(content):
        if found := _found_in_fields(path, inner):
            return found
    what = f"JSON with the keys {short(list(content))}" if own is None else f"a file of the format {short(own)}"
    raise _unknown(path, what)


def _found_in_fields(path: Path, content: dict[str, Any]) -> Found | None:
    """Return the format of an object's own fields, None where they hold no tree."""
    if len(content.keys() & set(KEYS)) > 1:
        return Found("umbrella", partial(umbrella.read, path, content))
    if vllm_tree.TREE in content or vllm_tree.COUNT in content:
        return Found("vllm-tree", partial(vllm_tree.read_config, path, content))
    if adjacency.KEY in content:
        return Found("tree-adj", partial(adjacency.read, path, content[adjacency.KEY]))
    if "0" in content:
        return Found("nxdi", partial(nxdi.read, path, content))
    if any(key in content for key in medusa.KEYS) or any(map(medusa.looks_like_paths, content.values())):
        return Found("medusa", partial(medusa.read_object, path, content))
    if parents.KEY in content:
        return Found("parents", partial(parents.read, path, content[parents.KEY]))
    return None


def _objects(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an object and those inside of it, as configurations nest them, the outer ones first."""
    found = [content]
    for each in found:  # grows while it is read
        if len(found) < MAX_OBJECTS:
            found += [value for value in each.values() if isinstance(value, dict)]
    return found


def _read_own(path: Path, text: str) -> tuple[NamedTree, ...]:
    content = tree_file.parse(path, text)
    return (NamedTree(None, content.tree, content.provenance, content.drafter),)


def _found_in_python(path: Path, text: str) -> Found:
    own = re.match(r"format: *(treeopt-[\w-]+)", text)
    if own:
        raise _unknown(path, f"a file of the format {own[1]!r}")
    try:
        module = parse(text)
    except InvalidValueError as error:
        raise _unknown(path, f"text that is no JSON and {error}") from None
    value = value_of(module)
    if isinstance(value, list | tuple) and value and isinstance(value[0], tuple):
        return Found("vllm-tree", partial(vllm_tree.read_list, path, value))
    if isinstance(value, list | tuple):
        return Found("medusa", partial(medusa.read_list, path, value))
    if any(isinstance(line, ast.Assign | ast.AnnAssign) for line in module.body):
        return Found("medusa", partial(medusa.read_python, path, module))
    raise _unknown(path, "text without a list of paths")


def _unknown(path: Path, what: str) -> FormatError:
    names = ", ".join([OWN, *(each.name for each in READABLE)])
    return FormatError(path, "content", f"expected a tree in one of the formats {names}. Got {what}.")
