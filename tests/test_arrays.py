"""Array types are defined once."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("treeopt", "trees", "profiler", "cli", "tools", "benchmarks", "examples")
NAMED = re.compile(r"^(\w+)(?:: \w+)? = .*\bNDArray\[(\w+\.)?(\w+)", re.MULTILINE)
STRUCTURED = {"void"}
"""Arrays of records have a name for each kind of record."""


def names_in(text: str) -> list[str]:
    return [match[1] for match in NAMED.finditer(text) if match[3] not in STRUCTURED]


@pytest.mark.source
def test_no_module_names_an_array_type_again():
    paths = {path.resolve() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    named = {path.name: names for path in paths if (names := names_in(path.read_text("utf-8")))}
    assert named.keys() == {"arrays.py"}
    assert len(set(named["arrays.py"])) == len(named["arrays.py"])


def test_another_name_is_found():
    assert names_in("FloatArray = npt.NDArray[np.float64]\nx = np.zeros(3)\n") == ["FloatArray"]
