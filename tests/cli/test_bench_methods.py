"""`treeopt bench methods`: the table, the JSON, the picture, and what is refused; the benchmark itself is replaced."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import TABLE, call, invented
from treeopt import __version__
from treeopt import bundled as pair
from treeopt.methods import running
from treeopt.methods.names import NAMES
from treeopt.records.machine import Pair
from treeopt.records.results import MethodRow, NotRun
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts

KEYS = (
    "method",
    "rule",
    "temperature",
    "tokens_per_step",
    "step_s",
    "tokens_per_s",
    "speedup",
    "predicted_speedup",
    "lossless",
)


def row(method: str, temperature: float, speedup: float, *, lossless: bool = True) -> MethodRow:
    return MethodRow(
        method=method,
        rule="target",
        temperature=temperature,
        setting="a setting",
        tokens_per_step=2.5,
        step_s=0.004,
        draft_s=0.001,
        verify_s=0.0025,
        overhead_s=0.0005,
        rounds=1000,
        tokens_per_s=625.0,
        speedup=speedup,
        predicted_speedup=1.9,
        lossless=lossless,
        evidence="reasons",
        assumed=("the rest is as ever",) if method == "medusa" else (),
    )


ROWS = (
    row("plain", 0.0, 1.0),
    row("medusa", 0.0, 1.75),
    row("plain", 0.6, 1.0),
    row("medusa", 0.6, 0.8, lossless=False),
    NotRun(method="redrafter", temperature=0.6, reason="heads: those are another target's"),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Replace the benchmark; return its arguments."""
    found: dict = {}

    def run(models, measured, workload, **options):
        found.update(options, models=models, measured=measured, workload=workload)
        return ROWS

    monkeypatch.setattr(running, "run_methods", run)
    return found


@pytest.mark.usefixtures("folder")
def test_a_table_a_file_and_a_picture(asked):
    result = call(
        "bench", "methods", "--methods", "medusa", "--output", "methods.json", "--plot", "methods.svg", "--threads", 1
    )
    assert result.exit_code == 0, result.output
    assert (asked["names"], asked["temperatures"]) == (["medusa"], (0.0, 0.6))
    lines = [line for line in result.stdout.splitlines() if line.startswith("medusa")]
    assert ["1.75" in lines[0], "yes (reasons)" in lines[0], "NO (reasons)" in lines[1]] == [True] * 3
    report = json.loads(Path("methods.json").read_text("utf-8"))
    rows = report["rows"]
    assert report["tool"] == f"treeopt {__version__}"
    both = [*rows, *report["not_run"]]
    assert [(each["method"], each["temperature"]) for each in both] == [(r.method, r.temperature) for r in ROWS]
    for each, made in zip(rows, ROWS[:-1], strict=True):
        assert {key: each[key] for key in KEYS} == {key: getattr(made, key) for key in KEYS}
    assert [each.get("assumed") for each in rows[:2]] == [None, ["the rest is as ever"]]
    assert ">medusa: " in Path("methods.svg").read_text("utf-8")


@pytest.mark.usefixtures("folder", "asked")
def test_what_did_not_run_has_its_reason_in_table_file_and_picture():
    result = call("bench", "methods", "--output", "methods.json", "--plot", "methods.svg", "--threads", 1)
    assert "redrafter     not run: heads: those are another target's" in result.stdout
    assert "Predictions assume:\n  medusa: the rest is as ever" in result.stdout
    assert json.loads(Path("methods.json").read_text("utf-8"))["not_run"][-1] == {
        "method": "redrafter",
        "temperature": 0.6,
        "reason": "heads: those are another target's",
    }
    assert ">not run: heads: those are another target's</text>" in Path("methods.svg").read_text("utf-8")


@pytest.mark.usefixtures("folder")
def test_every_option_is_honoured(asked):
    texts = [f"prompt number {number} of mine" for number in range(9)]
    Path("mine.txt").write_text("\n".join(texts))
    own = ("--target", pair.TARGET, "--draft", pair.DRAFT, "--dtype", "bfloat16", "--threads", 1)
    amounts = ("--prompts", "mine.txt", "--max-prompts", 6, "--max-new-tokens", 31, "--repeats", 4)
    result = call("bench", "methods", "--methods", "chain", "--temperature", "0.3,0.9", *own, *amounts)
    assert result.exit_code == 0, result.output
    models = asked["models"]
    encode = models.tokenizer.encode
    assert asked["temperatures"] == (0.3, 0.9)
    assert asked["workload"].prompts == [encode(texts[number]) for number in (0, 4)]  # of 0, 4 and 8
    assert asked["measured"] == [encode(texts[number]) for number in (1, 2, 5, 6)]  # of the six others
    assert (asked["workload"].max_new_tokens, asked["workload"].repeats) == (31, 4)
    assert (models.target.name, models.described.dtype) == ("target", "bfloat16")
    assert asked["profile"] is None
    assert "no chat template" in call("bench", "methods", "--methods", "chain", "--chat", "--threads", 1).stderr


@pytest.mark.usefixtures("folder")
def test_what_is_taken_without_options(asked):
    assert call("bench", "methods", "--methods", "chain", "--threads", 1).exit_code == 0
    encode = asked["models"].tokenizer.encode
    assert asked["measured"] == [encode(text) for text in profile_prompts(load_prompts())]
    assert asked["workload"].prompts == [encode(text) for text in bench_prompts(load_prompts())]
    assert (asked["workload"].max_new_tokens, asked["workload"].repeats, asked["profile"]) == (192, 2, None)


@pytest.mark.usefixtures("folder")
def test_a_profile_that_is_named_is_planned_from_at_its_own_temperatures(asked):
    bundled = Pair(target="bundled target", draft="bundled draft", dtype="float32")
    made = replace(invented(tables=(TABLE, TABLE)), pair=bundled)
    made.save("profile.yaml")
    assert call("bench", "methods", "--methods", "chain", "--threads", 1).exit_code == 0
    assert asked["profile"] is None, "it lies there, but it was not named"
    result = call("bench", "methods", "--methods", "chain", "--profile", "profile.yaml", "--threads", 1)
    assert result.exit_code == 0, result.output
    assert [each.temperature for each in asked["profile"].acceptances] == [0.0, 0.2]
    assert asked["temperatures"] == (0.0, 0.2)


@pytest.mark.usefixtures("folder")
def test_only_json_on_standard_output(asked):
    result = call("bench", "methods", "--temperature", "0.3", "-o", "-", "--threads", 1)
    content = json.loads(result.stdout)
    assert content["rows"][1]["method"] == "medusa"
    assert list(content) == ["tool", "created", "machine", "pair", "bench", "rows", "not_run"]
    assert result.stderr.count(f"{content['pair']['target']} + {content['pair']['draft']} on ") == 1  # above the table
    assert (asked["names"], asked["temperatures"]) == (["all"], (0.3,))


@pytest.mark.usefixtures("folder", "asked")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tree.json",), "unexpected extra argument"),
        (("--methods", "jacobi"), "Got 'jacobi'"),
        (("--methods", "all", "--temperature", "warm"), "expected temperatures of at least 0"),
        (("--methods", "all", "--temperature", "-1"), "expected temperatures of at least 0"),
        (("--methods", "chain", "--force"), "--force: expected --profile"),
    ],
)
def test_what_is_wrong_is_a_usage_error(arguments, said):
    result = call("bench", "methods", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_help_lists_the_methods_in_the_order_of_the_table():
    assert f": {', '.join(NAMES)}." in " ".join(call("bench", "methods", "--help").stdout.split())
