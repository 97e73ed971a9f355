"""The text of a tree file: what every writer of one writes; docs/tree-file.md is its specification."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from treeopt.arrays import Float64, Int32
from treeopt.errors import InvalidValueError
from treeopt.files.record_form import written_record
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.trees.provenance import Provenance

FORMAT = "treeopt-tree"
VERSION = 1
MAX_NODES = 65_536


def tree_text(
    parents: Int32, reach: Float64 | None, provenance: Provenance | None, drafter: DrafterSetting | None = None
) -> str:
    """Return the text of a tree's file: one key a line, keys in a fixed order, so that equal trees give equal bytes.

    Args:
        parents: int32 (n,) of a tree, checked.
        reach: float64 (n,), checked.
        provenance: where it came from.
        drafter: what drafts it, checked; None is the draft model.
    """
    fields: list[tuple[str, Any]] = [
        ("format", FORMAT),
        ("version", VERSION),
        ("parents", parents.tolist()),
    ]
    if drafter is not None:
        fields.append(("drafter", written_record(drafter)))
    if reach is not None:
        fields.append(("reach", [float(f"{value:.6g}") for value in reach]))
    if provenance is not None:
        fields.append(("provenance", written_record(provenance)))
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in fields)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def check_size(nodes: int) -> None:
    """Raise InvalidValueError for more nodes than a file may have."""
    if nodes > MAX_NODES:
        raise InvalidValueError(f"expected at most {MAX_NODES} nodes. Got {nodes}.")


def checked_reach(parents: Int32, values: Sequence[float] | Float64) -> Float64:
    """Return float64 (n,), read-only: reach as a file may have it; raises InvalidValueError where it does not fit."""
    reach = np.array(values, np.float64)
    if reach.shape != parents.shape:
        raise InvalidValueError(f"expected {parents.size} numbers, one per node. Got shape {reach.shape}.")
    if not np.all((reach >= 0) & (reach <= 1)):
        raise InvalidValueError("expected probabilities from 0 to 1.")
    if reach[0] != 1:
        raise InvalidValueError(f"expected 1 for the root, which every step yields. Got {reach[0]}.")
    # Without any slack, because rounding keeps this order but not the order of values that are only nearly in it.
    if np.any(reach[1:] > reach[parents[1:]]):
        raise InvalidValueError("expected no node to be reached more often than its parent.")
    reach.flags.writeable = False
    return reach
