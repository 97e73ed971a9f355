"""`treeopt simulate`: what it prints and refuses."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import STEEP, call, invented
from tests.planner.test_drafters import lookup, lookup_rows
from tests.scripts import ROOT
from treeopt.planner import PlanRequest
from treeopt.records.profile import Profile
from treeopt.simulation.settings import served_settings
from treeopt.simulation.step_times import StepTimes
from treeopt.trees.tree_schedule import load_schedule

LONG_TEXTS = ROOT / "docs" / "profiles" / "bundled-2-cores-surface.yaml"
LOAD = ("--rate", "2/s", "--prompt-tokens", "32-64", "--new-tokens", "16", "--duration", "10s")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    invented(conditions=[(256, 1), (256, 4)], tables=[STEEP]).save("profile.yaml")
    return tmp_path


@pytest.mark.usefixtures("served")
class TestPrinted:
    def test_every_setting_at_every_rate(self) -> None:
        found = call("simulate", *LOAD[2:], "--rate", "2/s,30/min")

        assert found.exit_code == 0, found.output
        assert "0.5 requests a second" in found.stdout
        assert "2 requests a second" in found.stdout
        for name in ("plain", "chain of 1 draft token", "chain of 4 draft tokens", "schedule"):
            assert found.stdout.partition("Next:")[0].count(f" {name} ") == 2
        assert found.stdout.count("* ") == 2

    def test_the_largest_rate_is_told_where_a_latency_is_asked_for(self) -> None:
        found = json.loads(call("simulate", *LOAD, "--first-token-within", "1s", "--json").stdout)
        rates = {each["name"]: each["rate_per_s"] for each in found["largest_rates"]}

        assert rates["schedule"] > rates["plain"] > 0

    def test_json_holds_what_was_simulated(self) -> None:
        found = json.loads(call("simulate", *LOAD, "--json", "--replicas", "2", "--max-batch-size", "3").stdout)

        assert (found["replicas"], found["batch_size_limit"]) == (2, 3)
        assert {each["name"] for each in found["outcomes"]} >= {"plain", "schedule"}
        assert all(each["time_per_token"]["p99_s"] >= each["time_per_token"]["median_s"] for each in found["outcomes"])
        assert found["largest_rates"] == []

    @pytest.mark.slow
    def test_the_command_that_writes_the_schedule_does(self) -> None:
        profile = Profile.load(LONG_TEXTS)
        short = ("--rate", "2/s", "--prompt-tokens", "32", "--new-tokens", "60-68", "--duration", "2s", "--budget", "8")
        found = call("simulate", "--profile", str(LONG_TEXTS), *short, "--temperature", "0.6")
        _, _, hint = found.stdout.partition("Next: treeopt ")
        times = StepTimes(profile, profile.acceptance(temperature=0.6))
        request = PlanRequest(temperature=0.6, max_nodes=8)
        simulated, whole = (served_settings(times, request, new_tokens=each)[-1] for each in (64, None))
        written = call(*shlex.split(hint))
        schedule = load_schedule(Path("schedule.json"))

        assert written.exit_code == 0, written.output
        assert "--new-tokens 64" in hint
        assert "sequences of 64 new tokens" in (schedule.provenance.source or "")
        assert simulated.trees == tuple(schedule.tree(texts) for texts in range(1, 5))
        assert simulated.trees != whole.trees  # negative control: the length of texts matters

    @pytest.mark.parametrize("change", [{"accepted_ranks": None}, {"context_tokens": 256}], ids=str)
    def test_the_command_does_not_ask_for_what_was_not_measured(self, change: dict[str, int | None]) -> None:
        profile = invented(conditions=[(256, 1), (256, 4)], tables=[STEEP])
        (acceptance,) = profile.acceptances
        replace(profile, acceptances=(replace(acceptance, **change),)).save("profile.yaml")
        _, _, hint = call("simulate", *LOAD).stdout.partition("Next: treeopt ")

        assert "--new-tokens" not in hint
        assert call(*shlex.split(hint)).exit_code == 0

    @pytest.mark.parametrize(("rule", "lossy"), [("sequoia", ()), ("typical", ("--lossy",))])
    def test_the_command_runs_for_lossy_rules_and_beside_other_drafters(
        self, rule: str, lossy: tuple[str, ...]
    ) -> None:
        profile = invented(conditions=[(256, 1), (256, 4)], tables=[STEEP], others={"typical": STEEP})
        replace(profile, drafters=(lookup(profile, lookup_rows()),)).save("profile.yaml")
        _, _, hint = call("simulate", *LOAD, "--rule", rule, *lossy).stdout.partition("Next: treeopt ")
        written = call(*shlex.split(hint))

        assert written.exit_code == 0, written.output
        assert load_schedule(Path("schedule.json")).provenance.rule == rule

    def test_no_command_where_no_context_was_measured_for_several_texts(self) -> None:
        made = invented(conditions=[(256, 1), (512, 4)], tables=[STEEP])
        made.save("profile.yaml")
        refused = call("schedule")

        found = call("simulate", *LOAD)

        assert found.exit_code == 0, found.output
        assert "at most 4 sequences at a time" in found.stdout
        assert "Next:" not in found.stdout
        assert refused.exit_code == 1  # so that the command would not run

    def test_a_picture(self, served: Path) -> None:
        found = call("simulate", *LOAD, "--plot", "load.svg")

        assert found.exit_code == 0, found.output
        text = (served / "load.svg").read_text("utf-8")
        assert all(word in text for word in ("Throughput", "Latency", "schedule", "plain"))

    def test_one_measured_text_at_a_time_is_said_with_what_to_do(self) -> None:
        invented().save("profile.yaml")
        found = call("simulate", *LOAD)

        assert found.exit_code == 0
        assert "at most 1 sequence at a time" in found.stdout
        assert "treeopt profile --batch-sizes 1,2,4,8" in found.stderr

    def test_of_an_engine_the_models_are_named(self) -> None:
        engine = Profile.load(ROOT / "tests" / "data" / "profile-engine.yaml")
        pair = replace(engine.pair, target_source="my models/t.gguf", draft_source="d.gguf")
        (one,) = (each for each in engine.chain_latencies if each.batch_size == 1)
        replace(engine, pair=pair, chain_latencies=(one,)).save("profile.yaml")
        found = call("simulate", *LOAD)

        assert found.exit_code == 0, found.output
        assert "--target 'my models/t.gguf' --draft d.gguf --batch-sizes 1,2,4,8" in found.stderr


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        (("--rate", "0"), 2, "rates above 0"),
        (("--rate", "-1/s"), 2, "rates above 0"),
        (("--rate", "fast"), 2, "rates above 0"),
        (("--new-tokens", "0"), 2, "a number of tokens, or a range"),
        (("--prompt-tokens", "9-3"), 2, "a number of tokens, or a range"),
        (("--replicas", "0"), 2, "1 to"),
        (("--max-batch-size", "5"), 1, "expected at most 4, the largest measured. Got 5"),
        (("--rule", "nothing"), 1, "nothing"),
        (("--plot", "load.txt"), 1, ".svg"),
        (("--profile", "none.yaml"), 1, "no such file"),
        (("--rate", "1000000/s"), 1, "at most 1000000 requests"),
    ],
)
def test_bad_input_is_one_line(changed: tuple[str, str], code: int, message: str) -> None:
    found = call("simulate", *LOAD, *changed)

    assert found.exit_code == code
    assert message in found.stderr
    assert "Traceback" not in found.stderr
    assert not found.stdout


@pytest.mark.slow
def test_the_page_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "guides" / "simulate.md").read_text("utf-8")
    command, _, shown = text.split("```console\n$ treeopt ")[1].split("\n```")[0].replace("\\\n", "").partition("\n")

    assert call(*shlex.split(command)).stdout.rstrip() == shown
