"""`treeopt bench --systems`: the table, the JSON, the picture, and what is refused; the contest itself is replaced."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import call
from treeopt.systems import running
from treeopt.systems.bench import Row

KEYS = (
    "system",
    "rule",
    "temperature",
    "tokens_per_step",
    "step_s",
    "tokens_per_s",
    "speedup",
    "predicted_speedup",
    "lossless",
)


def row(system: str, temperature: float, speedup: float, *, lossless: bool = True) -> Row:
    return Row(
        system=system,
        rule="target",
        temperature=temperature,
        setting="a setting",
        tokens_per_step=2.5,
        step_s=0.004,
        draft_s=0.001,
        verify_s=0.0025,
        rest_s=0.0005,
        tokens_per_s=625.0,
        speedup=speedup,
        predicted_speedup=1.9,
        lossless=lossless,
        evidence="reasons",
    )


ROWS = (
    row("plain", 0.0, 1.0),
    row("medusa", 0.0, 1.75),
    row("plain", 0.6, 1.0),
    row("medusa", 0.6, 0.8, lossless=False),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Replace the contest; return what it was asked for."""
    found: dict = {}

    def contest(*_, names, temperatures, **__):
        found.update(names=names, temperatures=temperatures)
        return ROWS

    monkeypatch.setattr(running, "run_contest", contest)
    return found


@pytest.mark.usefixtures("folder")
def test_a_table_a_file_and_a_picture(asked):
    result = call("bench", "--systems", "medusa", "--output", "systems.json", "--plot", "systems.svg", "--threads", 1)
    assert result.exit_code == 0, result.output
    assert asked == {"names": ["medusa"], "temperatures": [0.0, 0.6]}
    lines = [line for line in result.stdout.splitlines() if line.startswith("medusa")]
    assert ["1.75" in lines[0], "yes (reasons)" in lines[0], "NO (reasons)" in lines[1]] == [True] * 3
    rows = json.loads(Path("systems.json").read_text("utf-8"))["rows"]
    assert [(each["system"], each["temperature"]) for each in rows] == [(r.system, r.temperature) for r in ROWS]
    for each, made in zip(rows, ROWS, strict=True):
        assert {key: each[key] for key in KEYS} == {key: getattr(made, key) for key in KEYS}
    assert "<!-- medusa -->" in Path("systems.svg").read_text("utf-8")


@pytest.mark.usefixtures("folder")
def test_only_json_on_standard_output(asked):
    result = call("bench", "--systems", "all", "--temperatures", "0.3", "-o", "-", "--threads", 1)
    assert json.loads(result.stdout)["rows"][1]["system"] == "medusa"
    assert asked == {"names": ["all"], "temperatures": [0.3]}


@pytest.mark.usefixtures("folder", "asked")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "expected one of them"),
        (("tree.json", "--systems", "all"), "expected one of them"),
        (("--systems", "jacobi"), "Got 'jacobi'"),
        (("--systems", "all", "--temperatures", "warm"), "expected numbers"),
        (("--systems", "all", "--temperatures", "-1"), "at least 0"),
    ],
)
def test_what_is_wrong_is_a_usage_error(arguments, said):
    result = call("bench", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
