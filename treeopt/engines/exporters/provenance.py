"""The provenance file next to an export: its inputs, measurements and predictions, since engines refuse unknown keys."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from treeopt.engines.exporters import speculation_profile
from treeopt.engines.exporters.engine import Engine, Json
from treeopt.engines.exporters.setting import Setting
from treeopt.records.profile import Profile, collect_imported
from treeopt.trees import TokenTree, TreeFile, chain
from treeopt.trees.formats.topology import TopologyFormat
from treeopt.version import TOOL


def setting_provenance(
    engine: Engine, setting: Setting, inputs: dict[str, Path], files: dict[str, bytes], profile: Profile | None
) -> str:
    """Return the provenance of an engine's setting.

    Args:
        engine: the engine.
        setting: its setting.
        inputs: files that the setting was made from, by kind.
        files: the exported files, by path relative to the provenance file.
        profile: the profile, if there is one.
    """
    request = setting.request
    return _write_provenance(
        {"engine": {"name": engine.name, "versions": engine.versions}},
        inputs,
        files,
        {
            **({} if profile is None else _describe_measurement(profile)),
            "setting": _describe_size(chain(0)) if request is None else asdict(request.tree) | {"root_counted": True},
            "predictions": [{"label": label, **asdict(value)} for label, value in setting.predictions.items()],
            "notes": [*setting.notes, *map(str, setting.warnings)],
        },
    )


def acceptance_provenance(inputs: dict[str, Path], files: dict[str, bytes], profile: Profile) -> str:
    """Return the provenance of a profile's acceptance as a speculation profile."""
    program = {"format": {"name": speculation_profile.NAME, "versions": speculation_profile.VERSIONS}}
    return _write_provenance(program, inputs, files, _describe_measurement(profile))


def topology_provenance(
    target: TopologyFormat, content: TreeFile, inputs: dict[str, Path], files: dict[str, bytes]
) -> str:
    """Return the provenance of a tree in another program's format."""
    provenance = {} if content.provenance is None else asdict(content.provenance)
    return _write_provenance(
        {"format": {"name": target.name, "versions": target.versions}},
        inputs,
        files,
        {
            "setting": _describe_size(content.tree),
            **({} if content.drafter is None else {"drafter": content.drafter.description}),
            "tree": {key: value for key, value in provenance.items() if value is not None},
        },
    )


def _write_provenance(program: Json, inputs: dict[str, Path], files: dict[str, bytes], content: Json) -> str:
    provenance = {
        "tool": TOOL,
        **program,
        "files": {name: {"sha256": _sha256(data)} for name, data in files.items()},
        "inputs": {name: {"path": str(path), "sha256": _sha256(path.read_bytes())} for name, path in inputs.items()},
        **content,
    }
    return json.dumps(provenance, indent=2) + "\n"


def _describe_measurement(profile: Profile) -> Json:
    """Return which models were measured, where and when, and which parts another program measured."""
    measurement: Json = {
        "pair": asdict(profile.pair),
        "machine": asdict(profile.machine),
        "created": profile.created,
    }
    parts = [part for acceptance in profile.acceptances for part in collect_imported(profile.latencies, acceptance)]
    if parts:
        measurement["imported"] = [asdict(part) for part in dict.fromkeys(parts)]
    categories = {name for acceptance in profile.acceptances for name in acceptance.categories}
    if len(categories) == 1 and categories != {""}:
        (measurement["category"],) = categories
    return measurement


def _describe_size(tree: TokenTree) -> Json:
    return {"nodes": tree.nodes, "depth": tree.max_depth, "root_counted": True}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
