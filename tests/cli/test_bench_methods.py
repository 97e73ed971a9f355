"""`treeopt bench methods`: the table, the JSON, the figure, and the options; the benchmark itself is replaced."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import TABLE, call, invented, succeed
from tests.planner.test_drafters import lookup, lookup_rows
from treeopt import __version__
from treeopt import bundled as pair
from treeopt.cli.bench_methods import default_temperatures
from treeopt.methods import running
from treeopt.methods.names import NAMES
from treeopt.records.machine import Pair
from treeopt.records.results import MethodRow, NotRun
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts

KEYS = (
    *("method", "rule", "temperature", "tokens_per_step", "step_s", "tokens_per_s", "speedup", "predicted_speedup"),
    "lossless",
)
REASON = "heads: those are another target's"


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
        assumed=("host overhead is unchanged",) if method == "medusa" else (),
    )


ROWS = (
    row("plain", 0.0, 1.0),
    row("medusa", 0.0, 1.75),
    row("plain", 0.6, 1.0),
    row("medusa", 0.6, 0.8, lossless=False),
    NotRun(method="redrafter", temperature=0.6, reason=REASON),
)


@pytest.fixture
def arguments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict:  # noqa: ARG001 - files are named relative to it
    """Replace the benchmark; return the arguments that it receives."""
    received: dict = {}

    def run(models, measured, workload, **options):
        received.update(options, models=models, measured=measured, workload=workload)
        return ROWS

    monkeypatch.setattr(running, "run_methods", run)
    return received


def bench(*options: object):
    return succeed("bench", "methods", "--threads", 1, *options)


def test_table_file_and_figure_contain_every_row(arguments):
    result = bench("--methods", "medusa", "--output", "methods.json", "--plot", "methods.svg")
    assert (arguments["names"], arguments["temperatures"]) == (["medusa"], (0.0, 0.6))
    first, second = (line for line in result.stdout.splitlines() if line.startswith("medusa"))
    assert ("1.75" in first, "yes (reasons)" in first, "NO (reasons)" in second) == (True,) * 3
    assert f"redrafter     not run: {REASON}" in result.stdout
    assert "Predictions assume:\n  medusa: host overhead is unchanged" in result.stdout
    report = json.loads(Path("methods.json").read_text("utf-8"))
    assert report["tool"] == f"treeopt {__version__}"
    assert [{key: content[key] for key in KEYS} for content in report["rows"]] == [
        {key: getattr(method, key) for key in KEYS} for method in ROWS[:-1]
    ]
    assert [content.get("assumed") for content in report["rows"][:2]] == [None, ["host overhead is unchanged"]]
    assert report["not_run"] == [{"method": "redrafter", "temperature": 0.6, "reason": REASON}]
    figure = Path("methods.svg").read_text("utf-8")
    assert ">medusa: " in figure
    assert f">not run: {REASON}</text>" in figure


def test_every_option_reaches_the_benchmark(arguments):
    prompts = [f"prompt number {number} of mine" for number in range(9)]
    Path("mine.txt").write_text("\n".join(prompts))
    models = ("--target", pair.TARGET, "--draft", pair.DRAFT, "--dtype", "bfloat16")
    amounts = ("--prompts", "mine.txt", "--max-prompts", 6, "--max-new-tokens", 31, "--repeats", 4)
    bench("--methods", "chain", "--temperature", "0.3,0.9", *models, *amounts)
    encode = arguments["models"].tokenizer.encode
    assert arguments["temperatures"] == (0.3, 0.9)
    assert arguments["workload"].prompts == [encode(prompts[number]) for number in (0, 4)]  # of 0, 4 and 8
    assert arguments["measured"] == [encode(prompts[number]) for number in (1, 2, 5, 6)]  # of the six others
    assert (arguments["workload"].max_new_tokens, arguments["workload"].repeats) == (31, 4)
    assert (arguments["models"].target.name, arguments["models"].described.dtype) == ("target", "bfloat16")
    assert arguments["profile"] is None
    assert "no chat template" in call("bench", "methods", "--methods", "chain", "--chat", "--threads", 1).stderr


def test_defaults_are_the_bundled_prompts_without_a_profile(arguments):
    invented().save("profile.yaml")  # only --profile names one
    bench("--methods", "chain")
    encode = arguments["models"].tokenizer.encode
    assert arguments["measured"] == [encode(text) for text in profile_prompts(load_prompts())]
    assert arguments["workload"].prompts == [encode(text) for text in bench_prompts(load_prompts())]
    assert (arguments["workload"].max_new_tokens, arguments["workload"].repeats) == (192, 2)
    assert arguments["profile"] is None


def test_a_profile_sets_the_temperatures(arguments):
    bundled = Pair(target="bundled target", draft="bundled draft", dtype="float32")
    replace(invented(tables=(TABLE, TABLE)), pair=bundled).save("profile.yaml")
    bench("--methods", "chain", "--profile", "profile.yaml")
    assert [acceptance.temperature for acceptance in arguments["profile"].acceptances] == [0.0, 0.2]
    assert arguments["temperatures"] == (0.0, 0.2)


def test_a_profile_of_a_target_alone_has_the_temperatures_of_its_drafters():
    profile = invented()
    alone = replace(
        profile,
        pair=replace(profile.pair, draft=None),
        latencies=tuple(replace(latency, draft=None, overhead=None) for latency in profile.latencies),
        acceptances=(),
    )
    assert default_temperatures(alone) == (0.0,)
    lookups = lookup(profile, lookup_rows(), temperature=0.2)
    assert default_temperatures(replace(alone, drafters=(lookups,))) == (0.2,)


def test_standard_output_has_the_json_alone(arguments):
    result = bench("--temperature", "0.3", "-o", "-")
    content = json.loads(result.stdout)
    assert content["rows"][1]["method"] == "medusa"
    assert list(content) == ["tool", "created", "machine", "pair", "bench", "rows", "not_run"]
    assert result.stderr.count(f"{content['pair']['target']} + {content['pair']['draft']} on ") == 1  # above the table
    assert (arguments["names"], arguments["temperatures"]) == (["all"], (0.3,))


def test_help_lists_the_methods_in_the_order_of_the_table():
    assert f": {', '.join(NAMES)}." in " ".join(call("bench", "methods", "--help").stdout.split())
