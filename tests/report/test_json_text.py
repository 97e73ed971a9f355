"""Records as JSON: order of keys, estimates with intervals, inline records."""

import json
from dataclasses import dataclass, field

import pytest

from treeopt.files.serialization import in_file
from treeopt.records.latency import Estimate
from treeopt.report.json_text import json_lines, json_text


@dataclass(frozen=True, kw_only=True)
class Inner:
    nodes: int
    speedup: Estimate


@dataclass(frozen=True, kw_only=True)
class Outer:
    kind: str
    inner: Inner = field(metadata=in_file(inline=True))
    others: tuple[Inner, ...] = ()
    none: None = None
    parents: tuple[int, ...] = (-1, 0)


INNER = Inner(nodes=3, speedup=Estimate(2.0, 1.5, 2.5))
RECORD = Outer(kind="tree", inner=INNER, others=(INNER,))
EXPECTED = {
    "kind": "tree",
    "nodes": 3,
    "speedup": 2.0,
    "speedup_interval": [1.5, 2.5],
    "others": [{"nodes": 3, "speedup": 2.0, "speedup_interval": [1.5, 2.5]}],
    "none": None,
    "parents": [-1, 0],
}


def test_both_write_the_same_object_in_the_order_of_the_fields() -> None:
    for write in (json_text, json_lines):
        found = json.loads(write(RECORD))
        assert found == EXPECTED
        assert list(found) == list(EXPECTED)


def test_number_of_lines() -> None:
    assert len(json_lines(RECORD).splitlines()) == 2 + len(EXPECTED)
    assert json_lines(RECORD).splitlines()[1] == '  "kind": "tree",'
    assert json_text(INNER) == json.dumps(EXPECTED["others"][0], indent=2)


def test_json_lines_refuses_nan() -> None:
    wrong = Inner(nodes=1, speedup=Estimate(float("nan"), 0.0, 1.0))
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_lines(wrong)
