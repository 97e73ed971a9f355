"""The sidecar: where an exported file came from and what was promised of it, outside files that take no unknown key."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treeopt.engines.engine import Engine
from treeopt.engines.settings.made import Setting
from treeopt.records.profile import Profile, all_imported
from treeopt.trees import TokenTree, TreeFile, chain
from treeopt.trees.formats.topology import TopologyFormat
from treeopt.version import TOOL

Json = dict[str, Any]


def setting_provenance(
    engine: Engine, setting: Setting, inputs: dict[str, Path], files: dict[str, bytes], profile: Profile | None
) -> str:
    """Return the sidecar's text for an engine's setting.

    Args:
        engine: what it is for.
        setting: what was emitted.
        inputs: the files it was made from, by what they are; each is named with its SHA-256.
        files: what is written, by its path below the sidecar's folder; named likewise.
        profile: what was measured, if anything was.
    """
    asked = setting.asked
    return _text(
        {
            "tool": TOOL,
            "engine": {"name": engine.name, "versions": engine.versions},
            "files": _listed(files),
            "inputs": _hashed(inputs),
            **({} if profile is None else _measured(profile)),
            "setting": _size(chain(0)) if asked is None else asdict(asked.tree) | {"root_counted": True},
            "predictions": [{"label": each.label, **asdict(each.prediction)} for each in setting.predictions],
            "remarks": [*setting.remarks, *map(str, setting.warnings)],
        }
    )


def acceptance_provenance(
    name: str, versions: str, inputs: dict[str, Path], files: dict[str, bytes], profile: Profile
) -> str:
    """Return the sidecar's text for the acceptance of a profile, `name` and `versions` those of the file's format."""
    return _text(
        {
            "tool": TOOL,
            "format": {"name": name, "versions": versions},
            "files": _listed(files),
            "inputs": _hashed(inputs),
            **_measured(profile),
        }
    )


def topology_provenance(
    written_as: TopologyFormat, content: TreeFile, inputs: dict[str, Path], files: dict[str, bytes]
) -> str:
    """Return the sidecar's text for a tree in another program's format; arguments as in `setting_provenance`."""
    known = {} if content.provenance is None else asdict(content.provenance)
    return _text(
        {
            "tool": TOOL,
            "format": {"name": written_as.name, "versions": written_as.versions},
            "files": _listed(files),
            "inputs": _hashed(inputs),
            "setting": _size(content.tree),
            **({} if content.drafter is None else {"drafter": content.drafter.words}),
            "tree": {key: value for key, value in known.items() if value is not None},
        }
    )


def _measured(profile: Profile) -> Json:
    """Return what was measured, where and when."""
    measured: Json = {"pair": asdict(profile.pair), "machine": asdict(profile.machine), "created": profile.created}
    if imported := _imported(profile):
        measured["imported"] = imported
    categories = {name for acceptance in profile.acceptances for name in acceptance.categories}
    if len(categories) == 1 and categories != {""}:
        (measured["category"],) = categories
    return measured


def _imported(profile: Profile) -> list[Json]:
    """Return what of a profile was measured elsewhere, and where it was read from."""
    found = [each for acceptance in profile.acceptances for each in all_imported(profile.latencies, acceptance)]
    return [asdict(each) for each in dict.fromkeys(found)]


def _size(tree: TokenTree) -> Json:
    return {"nodes": tree.nodes, "depth": tree.max_depth, "root_counted": True}


def _hashed(inputs: dict[str, Path]) -> Json:
    return {name: {"path": str(path), "sha256": checksum(path.read_bytes())} for name, path in inputs.items()}


def _listed(files: dict[str, bytes]) -> Json:
    return {name: {"sha256": checksum(data)} for name, data in files.items()}


def checksum(data: bytes) -> str:
    """Return the SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _text(content: Json) -> str:
    return json.dumps(content, indent=2) + "\n"
