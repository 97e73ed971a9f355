"""`treeopt profile` with several conditions, a time budget, imported curves, and kills at any moment."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.invented import call
from treeopt import Profile, bundled
from treeopt.cli.options.profile import ProfileOptions

LITTLE = ("--max-tokens", "4", "--rounds", "2", "--positions", "240", "--context-tokens", "16")
CURVES = ("--latency", "v.csv", "--draft-latency", "d.csv")
IMPORTS = (*CURVES, "--acceptance", "a.json")


@pytest.fixture
def curves(folder: Path) -> Path:
    (folder / "v.csv").write_text("tokens,seconds\n1,0.010\n8,0.011\n64,0.030\n")
    (folder / "d.csv").write_text("tokens,seconds\n1,0.0010\n8,0.0011\n64,0.0030\n")
    (folder / "a.json").write_text('{"conditional": [0.7, 0.6, 0.5]}')
    return folder


class TestBadValues:
    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("--context-tokens", "many"), 2, "--context-tokens"),
            (("--context-tokens", "64,64"), 2, "--context-tokens"),
            (("--batch-sizes", "0"), 2, "--batch-sizes"),
            (("--batch-sizes", "2,4"), 2, "--batch-sizes: expected 1 among them"),
            (("--temperature", "0,0"), 2, "--temperature"),
            (("--temperature", "0,hot"), 2, "--temperature"),
            (("--time-budget", "0s"), 2, "--time-budget"),
            (("--time-budget", "soon"), 2, "--time-budget"),
            (("--time-budget", "9" * 400), 2, "--time-budget"),
            (("--temperature", "0.6,1", "--draft-top-k", "5"), 2, "expected --draft-temperature with several"),
            (("--temperature", "0", "--draft-temperature", "0.6"), 2, "at temperature 0 the draft takes its likeliest"),
            (("--latency", "v.csv"), 2, "--latency: expected --draft-latency too"),
            ((*IMPORTS, "--record"), 2, "--record: expected a draft model"),
            ((*IMPORTS, "--max-tokens", "8"), 2, "--max-tokens: expected something to measure"),
            (("--context-tokens", "64,999999"), 1, "takes 1024 tokens, its trained length"),
        ],
    )
    def test_are_one_clear_line(self, curves: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
        before = sorted(curves.iterdir())
        result = call("profile", *arguments)
        assert result.exit_code == code, result.output
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error")]
        assert said in line
        assert "Traceback" not in result.output
        assert sorted(curves.iterdir()) == before

    @pytest.mark.parametrize("other", ["d.csv", "v.csv"])
    def test_a_curve_of_another_context_names_the_option_of_the_missing_one(self, curves: Path, other: str) -> None:
        for name, context in (("d.csv", 256), ("v.csv", 256), (other, 544)):
            (curves / name).write_text(f"tokens,seconds,context\n1,0.001,{context}\n8,0.0011,{context}\n")
        result = call("profile", *IMPORTS)
        assert result.exit_code == 1
        assert "Error: --draft-latency: expected times of drafting for" in result.stderr

    @pytest.mark.parametrize(
        ("content", "options"),
        [
            ("tokens,ms,pass\n1,10,\n8,11,verify\n1,1,draft\n8,1.1,draft\n", ()),
            ("tokens,ms,pass\n1,10,verify\n8,11,verify\n1,1,draft\n8,1.1,draft\n", ("--draft-latency", "all.csv")),
            ("tokens,verify_ms,draft_ms\n1,10,1\n8,11,1.1\n", ()),
        ],
        ids=["pass", "twice", "columns"],
    )
    def test_one_file_of_all_times_is_as_good_as_two(
        self, curves: Path, content: str, options: tuple[str, ...]
    ) -> None:
        (curves / "all.csv").write_text(content)
        for name, column in (("v.csv", "10,11"), ("d.csv", "1,1.1")):
            first, last = column.split(",")
            (curves / name).write_text(f"tokens,ms\n1,{first}\n8,{last}\n")
        acceptance = ("--acceptance", "a.json", "--force")
        times = []
        for number, files in enumerate((CURVES, ("--latency", "all.csv", *options))):
            result = call("profile", *files, *acceptance, "-o", f"{number}.yaml")
            assert result.exit_code == 0, result.output
            latency = Profile.load(f"{number}.yaml").latency()
            times.append((latency.verify, latency.draft))
        assert times[0] == times[1]

    def test_a_context_that_the_files_do_not_name(self, curves: Path) -> None:
        """One curve names its context and the other none: both hold there, and nowhere else."""
        (curves / "d.csv").write_text("tokens,seconds,context\n1,0.001,544\n8,0.0011,544\n")
        result = call("profile", *IMPORTS, "--context-tokens", "1024")
        assert result.exit_code == 2
        assert "--context-tokens: expected 544, which the files name. Got 1024: leave it out." in result.stderr
        assert call("profile", *IMPORTS, "--context-tokens", "544").exit_code == 0
        assert call("profile", *IMPORTS, "--force").exit_code == 0
        assert Profile.load(curves / "profile.yaml").latency().context_tokens == 544

    @pytest.mark.usefixtures("folder")
    def test_what_limits_a_text_is_named(self) -> None:
        """A sliding window limits no text."""
        folder = Path(shutil.copytree(bundled.TARGET, "target"))
        content = json.loads((folder / "config.json").read_text("utf-8"))
        kind = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "max_position_embeddings": 128}
        (folder / "config.json").write_text(json.dumps({**content, **kind, "sliding_window": 64}), "utf-8")
        result = call("profile", "--target", "target", "--context-tokens", "200")
        assert result.exit_code == 1
        assert "target takes 128 tokens, its trained length: use a shorter context, or another model" in result.stderr

    @pytest.mark.usefixtures("folder")
    def test_one_sampling_is_for_other_commands(self) -> None:
        result = call("run", "tree.json", "--prompt", "x", "--temperature", "0,0.6")
        assert result.exit_code == 2
        assert "'--temperature': expected 0, which is greedy, or a number" in result.stderr


@pytest.mark.usefixtures("folder")
class TestConditions:
    @pytest.mark.parametrize(
        ("temperatures", "ways"),
        [([0.7], ["sampling"]), pytest.param([0.0, 0.7], ["greedy", "sampling"], marks=pytest.mark.slow)],
    )
    def test_all_are_measured_and_planned_with(self, temperatures: list[float], ways: list[str]) -> None:
        several = (
            "--context-tokens",
            "16,48",
            "--batch-sizes",
            "1,2",
            "--temperature",
            ",".join(map(str, temperatures)),
        )
        few = ("--rounds", "1", "--max-tokens", "2", "--positions", "96", "--max-prompts", "4")
        result = call("profile", *several, *few)
        assert result.exit_code == 0, result.output
        written = Profile.load("profile.yaml")
        places = {(each.context_tokens, each.batch_size, each.sampled) for each in written.latencies}
        assert len(written.latencies) == len(places) == 4 * len(ways)
        counted = [(each.context_tokens, each.temperature) for each in written.acceptances]
        assert counted == [(context, each) for context in (16, 48) for each in temperatures]
        for way in ways:
            assert f"48 tokens of context, batch of 2, {way}" in result.stdout
        solved = call("solve", "--temperature", "0.7", "--json")
        assert solved.exit_code == 0, solved.output

    @pytest.mark.slow
    def test_a_time_budget_takes_the_place_of_rounds(self) -> None:
        result = call(
            "profile", "--max-tokens", "4", "--context-tokens", "16", "--time-budget", "0.2s", "--max-prompts", "4"
        )
        assert result.exit_code == 0, result.output
        written = Profile.load("profile.yaml")
        assert written.latency().verify.max_tokens == 4
        assert written.acceptance().positions >= 64 * 2
        lines = result.stderr.splitlines()
        (spent,) = [line for line in lines if line.startswith("Spent ")]
        assert all(f"{part} " in spent for part in ("verification passes", "whole steps", "acceptance"))
        assert sum("chance that the plan is within 1 % of the fastest" in line for line in lines) == 1


class TestBudget:
    """How long a profile measures by default."""

    @pytest.mark.parametrize(
        ("arguments", "budget_s"),
        [
            ((), 45.0),
            (("--target", "t", "--draft", "d"), 300.0),
            (("--target", "t", "--draft", "d", "--time-budget", "90s"), 90.0),
            (("--rounds", "25"), None),
            (("--positions", "4096"), None),
            (("--target", "t", "--rounds", "9", "--positions", "96"), None),
        ],
    )
    @pytest.mark.usefixtures("folder")
    def test_default(self, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], budget_s: float | None) -> None:
        budgets_s: list[float | None] = []

        def measure_profile(args: ProfileOptions) -> None:
            budgets_s.append(args.settings().time_budget_s)

        monkeypatch.setattr("treeopt.cli.profile_run.measure_profile", measure_profile)
        result = call("profile", *arguments)
        assert result.exit_code == 0, result.output
        assert budgets_s == [budget_s]

    @pytest.mark.parametrize("amount", ["--rounds", "--positions"])
    @pytest.mark.usefixtures("folder")
    def test_a_fixed_amount_and_a_budget_are_refused_together(self, amount: str) -> None:
        result = call("profile", amount, "9", "--time-budget", "9s")
        assert result.exit_code == 2
        assert "--time-budget: expected without --rounds and --positions" in result.stderr

    @pytest.mark.usefixtures("folder")
    def test_an_interrupted_profile_goes_on_with_the_time_that_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        little = ("--max-tokens", "4", "--context-tokens", "16", "--time-budget", "1h", "--max-prompts", "4")

        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("treeopt.planner.certainty.certainty", interrupt)
            assert call("profile", *little).exit_code != 0
        kept = Path("profile.yaml.partial").read_text().splitlines()
        assert sum('"spent verify"' in line for line in kept) == 1
        monkeypatch.setattr("treeopt.profiler.refinement.CERTAIN", 0.0)
        result = call("profile", *little[:-4], "--time-budget", "2h", "--max-prompts", "4", "--resume")
        assert result.exit_code == 0, result.output
        samples = [json.loads(line) for line in kept if line.startswith('["verify 16x1')]
        written = Profile.load("profile.yaml").latency().verify
        for tokens in {key for _, key, _ in samples}:
            (timing,) = [each for count, each in zip(written.tokens, written.timings, strict=True) if count == tokens]
            first = [values[0] for _, key, values in samples if key == tokens]
            assert timing.samples_s[: len(first)].tolist() == pytest.approx(first, rel=1e-3)


class TestImports:
    def test_a_profile_of_imports_alone_needs_no_torch(self, curves: Path) -> None:
        code = (
            "import sys\nfrom treeopt.cli.main import main\n"
            f"try:\n    main({['profile', *IMPORTS]!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
            "print(sorted({'torch', 'numba', 'transformers'} & set(sys.modules)))"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=curves)
        assert result.stdout.splitlines()[-1] == "[]"
        assert "Written to profile.yaml" in result.stdout
        written = Profile.load(curves / "profile.yaml")
        assert written.latency().verify.tokens.tolist() == [1, 8, 64]
        assert written.acceptance().table.p[:, 0].tolist() == pytest.approx([0.7, 0.6, 0.5])

    @pytest.mark.usefixtures("curves")
    def test_solve_says_what_was_imported(self) -> None:
        assert call("profile", *IMPORTS).exit_code == 0
        result = call("solve", "--budget", "8")
        assert result.exit_code == 0, result.output
        for part in ("verify times: imported from v.csv", "draft times: imported from d.csv", "from a.json"):
            assert part in result.stdout

    @pytest.mark.usefixtures("curves")
    def test_imported_curves_are_not_timed_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from treeopt.profiler import MonotonicClock

        monkeypatch.setattr(MonotonicClock, "time_s", lambda *_: pytest.fail("timed"))
        result = call("profile", *CURVES, "--positions", "96", "--max-prompts", "4")
        assert result.exit_code == 0, result.output
        written = Profile.load("profile.yaml")
        assert written.latency().verify.tokens.tolist() == [1, 8, 64]
        assert written.acceptance().positions == 96


@pytest.mark.slow
@pytest.mark.process
class TestKilled:
    """A profile that is killed at any moment and resumed is the profile that was not."""

    def start(self, folder: Path, *more: str) -> "subprocess.Popen[bytes]":
        quiet = "from treeopt.profiler.latency.load import CpuLoadReader; CpuLoadReader.read = lambda _: None"
        code = f"{quiet}; from treeopt.cli.main import main; main()"
        command = [sys.executable, "-c", code, "profile", "--temperature", "0,0.8", *LITTLE, *more]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill_when_long(self, folder: Path, lines: int) -> list[str]:
        """Start, kill once the checkpoint has so many lines, and return them."""
        checkpoint = folder / "profile.yaml.partial"
        process = self.start(folder)
        until_s = time.monotonic() + 60
        while not (checkpoint.exists() and checkpoint.read_bytes().count(b"\n") >= lines):
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < until_s
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return checkpoint.read_text().split("\n")[:-1]

    def test_it_goes_on_and_ends_the_same(self, tmp_path: Path) -> None:
        whole, killed = tmp_path / "whole", tmp_path / "killed"
        for folder in (whole, killed):
            folder.mkdir()
        assert self.start(whole).wait(60) == 0
        kept = self.kill_when_long(killed, 46)  # among the texts
        assert self.start(killed, "--resume").wait(60) == 0
        assert not (killed / "profile.yaml.partial").exists()
        parts = [(folder / "profile.yaml").read_bytes().partition(b"\nacceptance:")[2] for folder in (killed, whole)]
        assert parts[0] == parts[1] != b""
        resumed, plain = (Profile.load(folder / "profile.yaml") for folder in (killed, whole))
        samples: dict[tuple[str, int], list[float]] = {}
        for kind, key, values in map(json.loads, kept[1:]):
            samples.setdefault((kind, key), []).extend(values)
        compared = 0
        for one, other in zip(resumed.latencies, plain.latencies, strict=True):
            way = "sampled" if one.sampled else "greedy"
            assert len(one.overhead.samples_s) == len(other.overhead.samples_s)
            for name in ("verify", "draft"):
                table = getattr(one, name)
                assert table.tokens.tolist() == getattr(other, name).tokens.tolist() == [1, 2, 3, 4]
                for tokens, timing in zip(table.tokens.tolist(), table.timings, strict=True):
                    assert len(timing.samples_s) == 2
                    before = samples.get((f"{name} 16x1 {way}", tokens), [])
                    assert timing.samples_s[: len(before)].tolist() == pytest.approx(before, rel=1e-5)
                    compared += len(before)
        assert compared == 2 * 2 * 4 * 2  # the last kill came after all passes
