"""`treeopt simulate`: its output, its warnings, and the command that it proposes."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import STEEP, call, invented, succeed
from tests.planner.test_drafters import lookup, lookup_rows
from tests.planner.test_new_tokens import TEXTS, measured
from tests.scripts import ROOT
from treeopt.planner import PlanRequest, for_new_tokens
from treeopt.records.profile import Profile
from treeopt.simulation import arrivals
from treeopt.simulation.settings import served_settings
from treeopt.simulation.step_times import StepTimes
from treeopt.trees.tree_schedule import load_schedule

LONG_TEXTS = ROOT / "docs" / "profiles" / "bundled-2-cores-surface.yaml"
LOAD = ("--prompt-tokens", "32-64", "--new-tokens", "16", "--duration", "5s", "--budget", "8")


def profile(**changes: object) -> Profile:
    return invented(**({"conditions": [(256, 1), (256, 4)], "tables": [STEEP]} | changes))


@pytest.fixture(autouse=True)
def served(folder: Path) -> Path:
    profile().save(folder / "profile.yaml")
    return folder


def simulate(*options: object):
    return succeed("simulate", "--rate", "2/s", *LOAD, *options)


def proposed(*options: object) -> list[str]:
    """Return the words of the proposed command after `treeopt`; none if there is no proposal."""
    return shlex.split(simulate(*options).stdout.partition("Next: treeopt ")[2])


def test_every_setting_is_a_row_at_every_rate() -> None:
    output = simulate("--rate", "2/s,30/min", "--plot", "load.svg").stdout
    assert "0.5 requests a second" in output
    assert "2 requests a second" in output
    for name in ("plain", "chain of 1 draft token", "chain of 4 draft tokens", "schedule"):
        assert output.partition("Next:")[0].count(f" {name} ") == 2
    assert output.count("* ") == 2
    figure = Path("load.svg").read_text("utf-8")
    assert all(word in figure for word in ("Throughput", "Latency", "schedule", "plain"))


def test_sequences_beyond_the_timed_contexts_are_warned_about() -> None:
    warning = "steps were timed up to 256 tokens of context; longer sequences take as long a step"
    long = ("--prompt-tokens", "300", "--prompt-time", "1ms")
    assert warning in simulate(*long).stderr
    assert any(warning in entry for entry in json.loads(simulate(*long, "--json").stdout)["warnings"])
    assert warning not in simulate("--prompt-time", "1ms").stderr


def test_rates_are_drawn_up_to_what_can_be_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MAX_REQUESTS", 11)  # 5 s at 2 requests per second have 10
    simulate("--plot", "load.svg")
    assert "schedule" in Path("load.svg").read_text("utf-8")


def test_outputs_of_one_step_are_drawn() -> None:
    result = json.loads(simulate("--json", "--new-tokens", "2", "--plot", "load.svg").stdout)
    assert 0 in {outcome["time_per_token"]["median_s"] for outcome in result["outcomes"]}
    assert "schedule" in Path("load.svg").read_text("utf-8")


def test_json_contains_outcomes_and_largest_rates() -> None:
    limits = ("--first-token-within", "1s", "--replicas", "2", "--max-batch-size", "3")
    report = json.loads(simulate("--json", *limits).stdout)
    assert (report["replicas"], report["batch_size_limit"]) == (2, 3)
    assert report["pair"]["target"] == profile().pair.target
    assert {outcome["name"] for outcome in report["outcomes"]} >= {"plain", "schedule"}
    for outcome in report["outcomes"]:
        assert outcome["time_per_token"]["p99_s"] >= outcome["time_per_token"]["median_s"]
    rates = {row["name"]: row["rate_per_s"] for row in report["largest_rates"]}
    assert rates["schedule"] > rates["plain"] > 0
    assert json.loads(simulate("--json").stdout)["largest_rates"] == []


class TestProposedCommand:
    @pytest.mark.slow
    def test_it_writes_the_simulated_schedule(self) -> None:
        measured = Profile.load(LONG_TEXTS)
        short = ("--rate", "2/s", "--prompt-tokens", "32", "--new-tokens", "60-68", "--duration", "2s", "--budget", "8")
        output = succeed("simulate", "--profile", LONG_TEXTS, *short, "--temperature", "0.6").stdout
        _, _, command = output.partition("Next: treeopt ")
        times = StepTimes(measured, measured.acceptance(temperature=0.6))
        request = PlanRequest(temperature=0.6, max_nodes=8)
        simulated, whole = (
            served_settings(times, request, profile=profile)[-1] for profile in (for_new_tokens(measured, 64), None)
        )
        succeed(*shlex.split(command))
        schedule = load_schedule(Path("schedule.json"))
        assert "--new-tokens 64" in command
        assert "sequences of 64 new tokens" in (schedule.provenance.source or "")
        assert simulated.trees == tuple(schedule.tree(sequences) for sequences in range(1, 5))
        assert simulated.trees != whole.trees  # negative control: the length of outputs matters

    @pytest.mark.parametrize("change", [{"accepted_ranks": None}, {"context_tokens": 256}], ids=str)
    def test_it_names_no_length_that_was_not_measured(self, change: dict[str, int | None]) -> None:
        (acceptance,) = profile().acceptances
        replace(profile(), acceptances=(replace(acceptance, **change),)).save("profile.yaml")
        command = proposed()
        assert "--new-tokens" not in command
        succeed(*command)

    def test_it_names_no_length_with_too_few_measured_positions(self) -> None:
        replace(profile(), acceptances=(measured(TEXTS[:6]),)).save("profile.yaml")
        assert "--new-tokens" in proposed()
        command = proposed("--new-tokens", "2")
        assert "--new-tokens" not in command
        succeed(*command)

    @pytest.mark.parametrize(("rule", "lossy"), [("sequoia", ()), ("typical", ("--lossy",))])
    def test_it_runs_for_lossy_rules_and_with_other_drafters(self, rule: str, lossy: tuple[str, ...]) -> None:
        several = profile(others={"typical": STEEP})
        replace(several, drafters=(lookup(several, lookup_rows()),)).save("profile.yaml")
        succeed(*proposed("--rule", rule, *lossy))
        assert load_schedule(Path("schedule.json")).provenance.rule == rule

    def test_it_is_left_out_if_it_would_fail(self) -> None:
        profile(conditions=[(256, 1), (512, 4)]).save("profile.yaml")
        assert proposed() == []
        assert call("schedule").exit_code == 1


def test_one_measured_batch_size_is_a_warning() -> None:
    invented().save("profile.yaml")
    result = simulate()
    assert "at most 1 sequence at a time" in result.stdout
    assert "treeopt profile --target MODEL --draft MODEL --batch-sizes 1,2,4,8" in result.stderr


def test_models_of_an_engine_are_named_in_the_warning() -> None:
    engine = Profile.load(ROOT / "tests" / "data" / "profile-engine.yaml")
    pair = replace(engine.pair, target_source="my models/t.gguf", draft_source="d.gguf")
    (one,) = (latency for latency in engine.chain_latencies if latency.batch_size == 1)
    replace(engine, pair=pair, chain_latencies=(one,)).save("profile.yaml")
    assert "--target 'my models/t.gguf' --draft d.gguf --batch-sizes 1,2,4,8" in simulate().stderr


@pytest.mark.slow
def test_guide_shows_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "guides" / "simulate.md").read_text("utf-8")
    command, _, shown = text.split("```console\n$ treeopt ")[1].split("\n```")[0].replace("\\\n", "").partition("\n")
    assert call(*shlex.split(command)).stdout.rstrip() == shown
