"""`treeopt run --adapt`: the same text, what is told and left behind, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.invented import call
from tests.support.invented_machines import latency, seconds
from treeopt.adaptation import recalibration
from treeopt.adaptation.averages import StepTimes
from treeopt.records.latency import Timing
from treeopt.records.measured_drafter import DecodedSequences, MeasuredDrafter, MeasuredSetting, MeasuredSettings
from treeopt.records.profile import Profile
from treeopt.trees import TreeFile, chain, level_widths
from treeopt.trees.drafter_setting import drafter_setting
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

PROMPT = "import os\n\n\ndef main(arguments):\n    "
MACHINE = seconds(lambda n: 1e-3 * (0.9 + 0.06 * n), lambda w: 1e-4 * (1 + 0.02 * w), 5e-5)


def run(*more: object, tokens: int = 160) -> Any:
    how = ("--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", tokens)
    return call("run", "tree.json", *how, *more)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every other check switch, and none wait."""
    monkeypatch.setattr(recalibration, "CHECK_STEPS", 4)
    monkeypatch.setattr(recalibration, "NEXT_CHECK_STEPS", 4)
    monkeypatch.setattr(recalibration, "HEAD_START_S", 1000.0)
    monkeypatch.setattr(recalibration, "MIN_GAIN", -0.5)
    fastest = recalibration.Recalibration._fastest

    def another(self: recalibration.Recalibration, predictions: Any = None) -> Any:
        predictions = dict(predictions or self._predictions())
        predictions.pop(self.strategy)
        return fastest(self, predictions)

    monkeypatch.setattr(recalibration.Recalibration, "_fastest", another)


@pytest.fixture
def quiet_profile(monkeypatch: pytest.MonkeyPatch, greedy_profile: Path) -> Path:
    """Return the path of a profile of an invented machine, whose times steps have as far as re-calibration sees."""
    profile = Profile.load(greedy_profile)
    invented = latency(MACHINE, context_tokens=profile.latencies[0].context_tokens)
    monkeypatch.setattr(StepTimes, "add", lambda *_: None)
    path = Path("quiet.yaml")
    replace(profile, latencies=(invented,), prefill=None).save(path)
    return path


@pytest.mark.usefixtures("folder", "eager")
def test_the_text_stays_and_every_change_is_a_line_of_json(quiet_profile: Path) -> None:
    level_widths([2, 1]).save("tree.json")
    plain = run()
    found = run("--adapt", "--profile", quiet_profile, "--adapt-log", "log.jsonl", "--save-profile", "learnt.yaml")
    assert found.exit_code == 0, found.output
    assert found.stdout == plain.stdout
    lines = [json.loads(line) for line in Path("log.jsonl").read_text("utf-8").splitlines()]
    assert lines
    assert {"step", "why", "from", "to", "predicted_gain"} <= lines[0].keys()
    assert lines[0]["from"]["parents"] == [-1, 0, 0, 1]
    assert lines[0]["to"] != lines[0]["from"]
    assert f"re-calibration: {len(lines)} change" in found.stderr
    learnt, before = Profile.load("learnt.yaml"), Profile.load(quiet_profile)
    assert learnt.acceptances[0].table.p.shape != before.acceptances[0].table.p.shape
    assert learnt.acceptances[0].accepted_ranks is None
    again = run("--adapt", "--profile", quiet_profile, "--adapt-log", "log.jsonl")  # its own log is written over
    assert again.stdout == plain.stdout, again.output
    assert call("solve", "--profile", "learnt.yaml", "--budget", 2, "-o", "new.json").exit_code == 0


@pytest.fixture
def lookup_profile(greedy_profile: Path) -> Path:
    """Return the path of a profile that holds prompt lookup too, as if half of its drafts had been right."""
    profile = Profile.load(greedy_profile)

    def decoded(tokens: int, seconds: float) -> DecodedSequences:
        return DecodedSequences(tokens=(tokens,) * 4, steps=(40,) * 4, seconds=Timing([seconds] * 4))

    settings = tuple(
        MeasuredSetting(
            values=drafter_setting("prompt-lookup", ngram=ngram, length=2).values,
            max_tokens=3,
            decoded=decoded(80, 0.11),
            pass_tokens=(1, 3),
            passes=(60, 100),
        )
        for ngram in (2, 4)
    )
    decodes = MeasuredSettings(temperature=0.0, top_p=1.0, context_tokens=64, plain=decoded(40, 0.1), settings=settings)
    path = Path("with-lookup.yaml")
    invented = latency(MACHINE, context_tokens=profile.latencies[0].context_tokens)  # measured ones hang on other load
    drafters = (MeasuredDrafter(name="prompt-lookup", decodes=(decodes,)),)
    replace(profile, latencies=(invented,), prefill=None, drafters=drafters).save(path)
    return path


@pytest.mark.usefixtures("folder", "eager")
def test_a_plan_of_prompt_lookup_may_be_left_for_trees_and_taken_again(lookup_profile: Path) -> None:
    setting = drafter_setting("prompt-lookup", ngram=4, length=2)
    TreeFile(tree=chain(2), drafter=setting).save("tree.json")
    plain = run()
    found = run("--adapt", "--profile", lookup_profile, "--adapt-log", "log.jsonl", tokens=160)
    assert found.exit_code == 0, found.output
    assert found.stdout == plain.stdout
    drafters = [json.loads(line)["from"]["drafter"] for line in Path("log.jsonl").read_text("utf-8").splitlines()]
    assert drafters[0] == "prompt-lookup"
    assert json.loads(Path("log.jsonl").read_text("utf-8").splitlines()[0])["from"] == {
        "drafter": "prompt-lookup",
        "kind": "chain",
        "nodes": 3,
        "depth": 2,
        "ngram": 4,
        "length": 2,
    }


@pytest.mark.usefixtures("folder")
def test_prompt_lookup_is_for_single_texts(lookup_profile: Path) -> None:
    TreeFile(tree=chain(2), drafter=drafter_setting("prompt-lookup", ngram=4, length=2)).save("tree.json")
    Path("prompts.txt").write_text(PROMPT)
    how = (
        "--temperature",
        0,
        "--prompts",
        "prompts.txt",
        "--max-new-tokens",
        8,
        "--adapt",
        "--profile",
        lookup_profile,
    )
    found = call("run", "tree.json", *how)
    assert (found.exit_code, found.stdout) == (1, "")
    assert "batch 8 was not measured" in found.stderr
    assert call("run", "tree.json", *how, "--batch-size", 1).exit_code == 0


@pytest.mark.usefixtures("folder")
def test_too_little_text_leaves_no_profile(greedy_profile: Path) -> None:
    chain(2).save("tree.json")
    found = run("--adapt", "--profile", greedy_profile, "--save-profile", "learnt.yaml", tokens=6)
    assert found.exit_code == 1
    assert "decode more text" in found.stderr
    assert not Path("learnt.yaml").exists()


@pytest.mark.usefixtures("folder")
def test_refusals(greedy_profile: Path) -> None:
    chain(2).save("tree.json")
    for option in ("--adapt-log", "--save-profile", "--profile"):
        path = greedy_profile if option == "--profile" else "some.file"
        found = run(option, path)
        assert (found.exit_code, found.stdout) == (2, "")
        assert f"{option}: expected --adapt with it" in found.stderr
    found = run("--adapt", "--profile", greedy_profile, "--save-profile", greedy_profile)
    assert (found.exit_code, found.stdout) == (2, "")
    made = (ScheduledTree(first_texts=1, last_texts=1, tree=chain(2)),)
    TreeSchedule(trees=made).save("schedule.json")
    found = call("run", "schedule.json", "--prompt", PROMPT, "--adapt", "--profile", greedy_profile)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "--adapt: expected one tree" in found.stderr
    how = ("--temperature", 0, "--prompt", PROMPT, "--adapt", "--profile", greedy_profile)
    for setting, said in (
        (drafter_setting("prompt-lookup", ngram=3, length=8), "Profile with --drafter prompt-lookup"),
        (
            drafter_setting("lookahead", window=2, ngram=3, candidates=2),
            "a decoder whose draft model fills static trees",
        ),
    ):
        TreeFile(tree=chain(setting.longest_draft), drafter=setting).save("other.json")
        found = call("run", "other.json", *how)
        assert (found.exit_code, found.stdout) == (1, "")
        assert said in found.stderr
