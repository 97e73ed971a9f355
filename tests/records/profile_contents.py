"""Contents of profile files with one value changed, and the schema of these files."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import yaml

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
VALIDATOR, ENGINE_VALIDATOR = (
    jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "reference" / f"{name}.schema.json").read_bytes()))
    for name in ("profile-file", "engine-profile")
)


def read_content(path: Path) -> Any:
    return yaml.load(path.read_bytes(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def write_content(content: object) -> bytes:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return yaml.dump(content, Dumper=dumper, sort_keys=False, default_flow_style=None).encode()


def changed(content: Any, *changes: tuple[str, Any]) -> Any:
    """Return a copy of the content with some values changed.

    Args:
        content: of a profile file.
        changes: path of each value, such as `latency[0].verify.tokens`, and the new value: `...` removes it, and a
            function is called with the old value.
    """
    content = copy.deepcopy(content)
    for path, value in changes:
        *keys, last = [int(key) if key.isdecimal() else key for key in re.findall(r"\w+", path)]
        holder = content
        for key in keys:
            holder = holder[key]
        if value is ...:
            del holder[last]
        else:
            holder[last] = value(holder[last]) if isinstance(value, Callable) else copy.deepcopy(value)
    return content


def repeat_first(items: list[Any]) -> list[Any]:
    """Return a list with its first item once more at the end."""
    return [*items, copy.deepcopy(items[0])]  # a copy, because YAML would have an alias
