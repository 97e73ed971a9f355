"""`treeopt run --adapt`: the same text, what it reports and writes, and weights that change with `--learn`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.invented import call, refused, succeed
from tests.cli.test_learning import files  # noqa: F401 - a fixture
from tests.support.invented_machines import latency, seconds
from treeopt.adaptation import recalibration
from treeopt.adaptation.averages import StepTimes
from treeopt.records.latency import Timing
from treeopt.records.measured_drafter import DecodedSequences, MeasuredDrafter, MeasuredSetting, MeasuredSettings
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import load_model
from treeopt.runtime.learning import learner
from treeopt.runtime.models.weights import named_tensors
from treeopt.trees import TreeFile, chain, level_widths
from treeopt.trees.drafter_setting import drafter_setting

PROMPT = "import os\n\n\ndef main(arguments):\n    "
MACHINE = seconds(lambda n: 1e-3 * (0.9 + 0.06 * n), lambda w: 1e-4 * (1 + 0.02 * w), 5e-5)


def run(*options: object, tokens: int = 160) -> Result:
    return call("run", "tree.json", "--prompt", PROMPT, "--temperature", 0, "--max-new-tokens", tokens, *options)


def logged_changes() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("log.jsonl").read_text("utf-8").splitlines()]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch to another strategy at every second check, and check after every four steps."""
    monkeypatch.setattr(recalibration, "CHECK_STEPS", 4)
    monkeypatch.setattr(recalibration, "NEXT_CHECK_STEPS", 4)
    monkeypatch.setattr(recalibration, "HEAD_START_S", 1000.0)
    monkeypatch.setattr(recalibration, "MIN_GAIN", -0.5)
    fastest = recalibration.Recalibration._fastest

    def fastest_other(self: recalibration.Recalibration, predictions: Any = None) -> Any:
        predictions = dict(predictions or self._predictions())
        predictions.pop(self.strategy)
        return fastest(self, predictions)

    monkeypatch.setattr(recalibration.Recalibration, "_fastest", fastest_other)


@pytest.fixture
def quiet_profile(monkeypatch: pytest.MonkeyPatch, greedy_profile: Path) -> Path:
    """Return the path of a profile of an invented machine; re-calibration ignores the times of real steps."""
    profile = Profile.load(greedy_profile)
    invented = latency(MACHINE, context_tokens=profile.latencies[0].context_tokens)
    monkeypatch.setattr(StepTimes, "add", lambda *_: None)
    path = Path("quiet.yaml")
    replace(profile, latencies=(invented,), prefill=None).save(path)
    return path


@pytest.mark.usefixtures("folder", "eager")
def test_text_stays_and_every_change_is_a_line_of_json(quiet_profile: Path) -> None:
    level_widths([2, 1]).save("tree.json")
    plain = run()
    adapted = run("--adapt", "--profile", quiet_profile, "--adapt-log", "log.jsonl", "--save-profile", "new.yaml")
    assert (adapted.exit_code, adapted.stdout) == (0, plain.stdout), adapted.output
    changes = logged_changes()
    assert {"step", "why", "from", "to", "predicted_gain"} <= changes[0].keys()
    assert changes[0]["from"]["parents"] == [-1, 0, 0, 1]
    assert changes[0]["to"] != changes[0]["from"]
    assert f"re-calibration: {len(changes)} change" in adapted.stderr
    updated, before = Profile.load("new.yaml").acceptances[0], Profile.load(quiet_profile).acceptances[0]
    assert updated.table.p.shape != before.table.p.shape
    assert updated.accepted_ranks is None
    succeed("solve", "--profile", "new.yaml", "--budget", 2, "-o", "new.json")


@pytest.fixture
def lookup_profile(greedy_profile: Path) -> Path:
    """Return the path of a profile with prompt lookup, of whose drafts half were right."""
    profile = Profile.load(greedy_profile)

    def decoded(tokens: int, seconds: float, passes: dict[int, int]) -> DecodedSequences:
        return DecodedSequences(
            tokens=(tokens,) * 4,
            pass_tokens=tuple(passes),
            passes=(tuple(passes.values()),) * 4,
            seconds=Timing([seconds] * 4),
        )

    settings = tuple(
        MeasuredSetting(
            values=drafter_setting("prompt-lookup", ngram=ngram, length=2).values,
            max_tokens=3,
            decoded=decoded(80, 0.11, {1: 15, 3: 25}),
        )
        for ngram in (2, 4)
    )
    decodes = MeasuredSettings(
        sampling=Sampling(), context_tokens=64, plain=decoded(40, 0.1, {1: 40}), settings=settings
    )
    path = Path("with-lookup.yaml")
    invented = latency(
        MACHINE, context_tokens=profile.latencies[0].context_tokens
    )  # measured ones depend on other load
    drafters = (MeasuredDrafter(setting=drafter_setting("prompt-lookup"), decodes=(decodes,)),)
    replace(profile, latencies=(invented,), prefill=None, drafters=drafters).save(path)
    TreeFile(tree=chain(2), drafter=drafter_setting("prompt-lookup", ngram=4, length=2)).save("tree.json")
    return path


@pytest.mark.usefixtures("folder", "eager")
def test_adaptation_leaves_and_resumes_prompt_lookup(lookup_profile: Path) -> None:
    plain = run()
    adapted = run("--adapt", "--profile", lookup_profile, "--adapt-log", "log.jsonl")
    assert (adapted.exit_code, adapted.stdout) == (0, plain.stdout), adapted.output
    lookup = {"drafter": "prompt-lookup", "kind": "chain", "nodes": 3, "depth": 2, "ngram": 4, "length": 2}
    assert logged_changes()[0]["from"] == lookup


@pytest.mark.usefixtures("folder")
def test_prompt_lookup_adapts_single_sequences_only(lookup_profile: Path) -> None:
    Path("prompts.txt").write_text(PROMPT)
    prompts = ("--temperature", 0, "--prompts", "prompts.txt", "--max-new-tokens", 8)
    command = ("run", "tree.json", *prompts, "--adapt", "--profile", lookup_profile)
    assert "batch 8 was not measured" in refused(*command)
    succeed(*command, "--batch-size", 1)


@pytest.mark.usefixtures("folder")
def test_too_little_text_leaves_no_profile(greedy_profile: Path) -> None:
    chain(2).save("tree.json")
    result = run("--adapt", "--profile", greedy_profile, "--save-profile", "new.yaml", tokens=6)
    assert result.exit_code == 1
    assert "decode more text" in result.stderr
    assert not Path("new.yaml").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (drafter_setting("prompt-lookup", ngram=3, length=8), "Profile with --drafter prompt-lookup"),
        (
            drafter_setting("lookahead", window=2, ngram=3, candidates=2),
            "a decoder whose draft model fills static trees",
        ),
    ],
    ids=["unmeasured lookup", "lookahead"],
)
def test_drafters_that_cannot_adapt_are_refused(greedy_profile: Path, setting: Any, reason: str) -> None:
    TreeFile(tree=chain(setting.longest_draft), drafter=setting).save("tree.json")
    command = ("run", "tree.json", "--temperature", 0, "--prompt", PROMPT, "--adapt", "--profile", greedy_profile)
    assert reason in refused(*command)


@pytest.mark.usefixtures("folder")
def test_profile_of_other_models_needs_force(greedy_profile: Path) -> None:
    profile = Profile.load(greedy_profile)
    replace(profile, pair=replace(profile.pair, draft="other", draft_digest="1")).save("other.yaml")
    chain(2).save("tree.json")
    options = ("--adapt", "--profile", "other.yaml")
    assert "other.yaml: expected its own models, bundled target + other." in run(*options).stderr
    assert run(*options, "--force", tokens=6).exit_code == 0


SAVING = ("--save-profile", "new.yaml", "--save-draft", "new-draft")


def assert_both_saved() -> None:
    assert Profile.load("new.yaml").acceptances
    assert named_tensors(load_model("new-draft"))


@pytest.mark.slow
@pytest.mark.usefixtures("files", "eager")
def test_text_stays_and_both_are_saved(quiet_profile: Path) -> None:
    plain = run(tokens=100)
    result = run("--learn", "--adapt", "--profile", quiet_profile, "--adapt-log", "log.jsonl", *SAVING, tokens=100)
    assert (result.exit_code, result.stdout) == (0, plain.stdout), result.output
    assert "re-calibration: " in result.stderr
    assert "learning: " in result.stderr
    assert Path("log.jsonl").read_text("utf-8")
    assert_both_saved()


def interrupt(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Interrupt decoding after `steps` steps."""
    call_learner, count = learner.Learner.__call__, 0

    def interrupted(self: learner.Learner, step: Any) -> None:
        nonlocal count
        call_learner(self, step)
        count += 1
        if count == steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(learner.Learner, "__call__", interrupted)


@pytest.mark.usefixtures("files", "eager")
@pytest.mark.parametrize("several", [False, True])
def test_interrupted_run_saves_both_whole(quiet_profile: Path, monkeypatch: pytest.MonkeyPatch, several: bool) -> None:
    interrupt(monkeypatch, 40)
    options = ("--learn", "--adapt", "--profile", quiet_profile, *SAVING)
    if several:
        Path("prompts.txt").write_text("import os\n", encoding="utf-8")
        prompts = ("--prompts", "prompts.txt", "--batch-size", 1, "-o", "out.jsonl")
        result = call("run", "tree.json", *prompts, "--temperature", 0, "--max-new-tokens", 400, *options)
    else:
        result = run(*options, tokens=400)
    assert result.exit_code == 130, result.output
    assert_both_saved()


@pytest.mark.usefixtures("folder")
def test_run_that_is_interrupted_at_once_saves_nothing(greedy_profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level_widths([2, 1]).save("tree.json")
    interrupt(monkeypatch, 1)
    result = run("--learn", "--adapt", "--profile", greedy_profile, *SAVING)
    assert result.exit_code == 130, result.output
    assert "decode more text" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["tree.json"]
