"""`treeopt profile` with several conditions, time budgets and imported measurements."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.invented import refused, succeed
from treeopt import Profile, bundled
from treeopt.cli.options.profile import ProfileOptions
from treeopt.profiler.settings import Settings
from treeopt.records.sampling import Sampling

CURVES = ("--latency", "v.csv", "--draft-latency", "d.csv")
IMPORTS = (*CURVES, "--acceptance", "a.json")


@pytest.fixture
def curves(folder: Path) -> Path:
    (folder / "v.csv").write_text("tokens,seconds\n1,0.010\n8,0.011\n64,0.030\n")
    (folder / "d.csv").write_text("tokens,seconds\n1,0.0010\n8,0.0011\n64,0.0030\n")
    (folder / "a.json").write_text('{"conditional": [0.7, 0.6, 0.5]}')
    return folder


class TestImports:
    @pytest.mark.process
    def test_profile_of_imports_loads_no_torch_and_is_solved(self, curves: Path) -> None:
        code = (
            "import sys\nfrom treeopt.cli.main import main\n"
            f"try:\n    main({['profile', *IMPORTS]!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            "print(sorted({'torch', 'numba', 'transformers'} & set(sys.modules)))"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=curves)
        assert result.stdout.splitlines()[-1] == "[]"
        assert "Written to profile.yaml" in result.stdout
        profile = Profile.load(curves / "profile.yaml")
        assert profile.latencies[0].verify.tokens.tolist() == [1, 8, 64]
        assert profile.acceptance().table.p[:, 0].tolist() == pytest.approx([0.7, 0.6, 0.5])
        output = succeed("solve", "--budget", "8").output
        assert "imported without counts" in output
        assert "% chance" not in output
        for origin in ("verify times: imported from v.csv", "draft times: imported from d.csv", "from a.json"):
            assert origin in output

    @pytest.mark.usefixtures("curves")
    def test_imported_curves_are_not_timed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from treeopt.profiler import MonotonicClock

        monkeypatch.setattr(MonotonicClock, "time_s", lambda *_: pytest.fail("timed"))
        succeed("profile", *CURVES, "--positions", "48", "--max-prompts", "4")
        profile = Profile.load("profile.yaml")
        assert profile.latencies[0].verify.tokens.tolist() == [1, 8, 64]
        assert profile.acceptance().positions == 48

    @pytest.mark.usefixtures("curves")
    def test_drafting_is_imported_and_verification_measured(self) -> None:
        few = ("--rounds", "1", "--max-tokens", "2", "--positions", "24", "--max-prompts", "3")
        succeed("profile", "--draft-latency", "d.csv", *few)
        latency = Profile.load("profile.yaml").latencies[0]
        assert (latency.verify.tokens.tolist(), latency.draft.tokens.tolist()) == ([1, 2], [1, 8, 64])
        assert [(part.what, part.source) for part in latency.imported] == [("draft", "d.csv (CSV)")]

    @pytest.mark.parametrize(
        ("content", "options"),
        [
            ("tokens,ms,pass\n1,10,\n8,11,verify\n1,1,draft\n8,1.1,draft\n", ()),
            ("tokens,ms,pass\n1,10,verify\n8,11,verify\n1,1,draft\n8,1.1,draft\n", ("--draft-latency", "all.csv")),
            ("tokens,verify_ms,draft_ms\n1,10,1\n8,11,1.1\n", ()),
        ],
        ids=["pass", "twice", "columns"],
    )
    def test_one_file_of_all_times_equals_two(self, curves: Path, content: str, options: tuple[str, ...]) -> None:
        (curves / "all.csv").write_text(content)
        (curves / "v.csv").write_text("tokens,ms\n1,10\n8,11\n")
        (curves / "d.csv").write_text("tokens,ms\n1,1\n8,1.1\n")
        times = []
        for files in (CURVES, ("--latency", "all.csv", *options)):
            succeed("profile", *files, "--acceptance", "a.json")
            latency = Profile.load("profile.yaml").latencies[0]
            times.append((latency.verify, latency.draft))
        assert times[0] == times[1]

    @pytest.mark.parametrize("other", ["d.csv", "v.csv"])
    def test_curves_of_different_contexts_are_refused(self, curves: Path, other: str) -> None:
        for name, context in (("d.csv", 256), ("v.csv", 256), (other, 544)):
            (curves / name).write_text(f"tokens,seconds,context\n1,0.001,{context}\n8,0.0011,{context}\n")
        assert "Error: --draft-latency: expected times of drafting for" in refused("profile", *IMPORTS)

    def test_the_sampling_of_an_imported_acceptance_is_stored(self, curves: Path) -> None:
        succeed("profile", *IMPORTS, "--temperature", "0.6", "--top-p", "0.9", "--top-k", "50")
        assert Profile.load(curves / "profile.yaml").acceptance().sampling == Sampling(0.6, 0.9, 50)

    def test_a_context_in_one_curve_holds_for_both(self, curves: Path) -> None:
        (curves / "d.csv").write_text("tokens,seconds,context\n1,0.001,544\n8,0.0011,544\n")
        line = refused("profile", *IMPORTS, "--context-tokens", "1024", code=2)
        assert "--context-tokens: expected 544, which the files name. Got 1024: leave it out." in line
        for options in (("--context-tokens", "544"), ()):
            succeed("profile", *IMPORTS, *options)
            assert Profile.load(curves / "profile.yaml").latencies[0].context_tokens == 544


@pytest.mark.usefixtures("folder")
class TestConditions:
    @pytest.mark.slow
    def test_every_combination_is_measured_and_planned(self) -> None:
        temperatures, samplings = (0.0, 0.7), ("greedy", "sampling")
        several = ("--context-tokens", "16,48", "--batch-sizes", "1,2", "--temperature")
        few = ("--rounds", "1", "--max-tokens", "2", "--positions", "24", "--max-prompts", "3")
        result = succeed("profile", *several, ",".join(map(str, temperatures)), *few)
        profile = Profile.load("profile.yaml")
        conditions = {(latency.context_tokens, latency.batch_size, latency.sampled) for latency in profile.latencies}
        assert len(profile.latencies) == len(conditions) == 4 * len(samplings)
        counted = [(acceptance.context_tokens, acceptance.temperature) for acceptance in profile.acceptances]
        assert counted == [(context, temperature) for context in (16, 48) for temperature in temperatures]
        for sampling in samplings:
            assert f"48 tokens of context, batch of 2, {sampling}" in result.stdout
        succeed("solve", "--temperature", "0.7", "--json")

    def test_length_limit_is_that_of_training_in_spite_of_a_sliding_window(self) -> None:
        folder = Path(shutil.copytree(bundled.TARGET, "target"))
        content = json.loads((folder / "config.json").read_text("utf-8"))
        kind = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "max_position_embeddings": 128}
        (folder / "config.json").write_text(json.dumps({**content, **kind, "sliding_window": 64}), "utf-8")
        line = refused("profile", "--target", "target", "--context-tokens", "200", code=2)
        assert "target takes 128 tokens, its trained length: use a shorter context, or another model" in line


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Replace the measurement; return the settings that it receives."""
    received: list[Settings] = []

    def measure_profile(args: ProfileOptions) -> None:
        received.append(args.settings())

    monkeypatch.setattr("treeopt.cli.profile_run.measure_profile", measure_profile)
    return received


@pytest.mark.usefixtures("folder")
def test_conditions_and_sampling_reach_the_measurement(settings: list[Settings]) -> None:
    several = ("--context-tokens", "16,48", "--batch-sizes", "1,2", "--temperature", "0.8,0.9")
    draft = ("--draft-temperature", "1.2", "--draft-top-p", "0.95", "--draft-top-k", "40")
    succeed("profile", *several, "--top-p", "0.9", "--top-k", "50", *draft)
    (received,) = settings
    assert (received.context_tokens, received.batch_sizes) == ((16, 48), (1, 2))
    assert received.samplings == (Sampling(0.8, 0.9, 50), Sampling(0.9, 0.9, 50))
    assert received.draft_sampling == Sampling(1.2, 0.95, 40)


@pytest.mark.usefixtures("folder")
class TestBudget:
    @pytest.mark.parametrize(
        ("arguments", "budget_s"),
        [
            ((), 45.0),
            (("--target", "t", "--draft", "d"), 300.0),
            (("--target", "t", "--draft", "d", "--time-budget", "90s"), 90.0),
            (("--rounds", "25"), None),
            (("--positions", "4096"), None),
        ],
    )
    def test_default(self, settings: list[Settings], arguments: tuple[str, ...], budget_s: float | None) -> None:
        succeed("profile", *arguments)
        assert [received.time_budget_s for received in settings] == [budget_s]

    @pytest.mark.slow
    def test_budget_replaces_rounds(self) -> None:
        options = ("--max-tokens", "4", "--context-tokens", "16", "--time-budget", "0.2s", "--max-prompts", "4")
        result = succeed("profile", *options)
        profile = Profile.load("profile.yaml")
        assert profile.latencies[0].verify.max_tokens == 4
        assert profile.acceptance().positions >= 64 * 2
        lines = result.stderr.splitlines()
        (spent,) = [line for line in lines if line.startswith("Spent ")]
        assert all(f"{part} " in spent for part in ("verification passes", "whole steps", "acceptance"))
        assert sum("chance that the plan is within 1 % of the fastest" in line for line in lines) == 1
