"""YAML files without aliases, tags, merge keys and repeated keys."""

from pathlib import Path
from typing import Any

import yaml

from treeopt.errors import FormatError

MAX_NESTING = 16

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_Parser):  # type: ignore[misc]
    """The safe loader, but it refuses repeated keys and the merge key `<<`, which would hide fields."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if len(set(map(str, names))) != len(names):
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a field appears twice")
        if "<<" in names:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: merging with << is not allowed")
        result: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return result


def parse_yaml(path: Path | str, text: str, *, kind: str) -> Any:
    """Return the value of YAML text.

    Args:
        path: the file, for errors.
        text: the text.
        kind: the expected content for errors, such as `a profile`.

    Raises FormatError naming the line for invalid YAML and for refused features.
    """
    try:
        _refuse_unsafe(path, text)
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise FormatError(path, "content", f"expected YAML ({problem}). Is it {kind}?") from None


def yaml_text(content: dict[str, Any]) -> str:
    """Return content as YAML, in the order of its fields."""
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=120, default_flow_style=None))


def _refuse_unsafe(path: Path | str, text: str) -> None:
    """Refuse aliases, which can expand a small file without limit, tags, which name types, and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=_Parser):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            raise FormatError(path, _line(event), "anchors, aliases and tags are not allowed.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_NESTING:
            raise FormatError(path, _line(event), f"nested more than {MAX_NESTING} deep.")


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else "content"
