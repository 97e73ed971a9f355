"""The commands end to end, as a user types them, on the bundled pair with small amounts."""

import json
import shutil
import time
from pathlib import Path

import pytest
import torch

from tests.cli.invented import call, refused, succeed
from treeopt import Profile, __version__, bundled
from treeopt.files.serialization import serialize_record
from treeopt.runtime.models import memory
from treeopt.trees import TokenTree, chain, describe_tree, k_ary

MAX_TOKENS = 8
BENCH = ("--max-new-tokens", "16", "--repeats", "1", "--max-prompts", "8")


@pytest.fixture(scope="module")
def tree(greedy_profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tree") / "tree.json"
    succeed("solve", "--profile", greedy_profile, "--output", path)
    return path


def test_profile_contains_every_measurement_with_its_conditions(greedy_profile: Path) -> None:
    written = Profile.load(greedy_profile)
    assert written.pair.target == "bundled target"
    assert written.latencies[0].verify.max_tokens == MAX_TOKENS
    assert all(len(timing.samples_s) >= 2 for timing in written.latencies[0].verify.timings)
    assert written.latencies[0].context_tokens == 64
    assert written.acceptance().table.standard_error is not None
    assert not greedy_profile.with_name("profile.yaml.partial").exists()


class TestRun:
    def test_text_is_that_of_plain_decoding(self, tmp_path: Path) -> None:
        plain, bushy = tmp_path / "plain.json", tmp_path / "bushy.json"
        chain(0).save(plain)
        TokenTree([-1, 0, 0, 0, 1, 1, 4]).save(bushy)
        results = [call("run", path, "--prompt", "import os\n", "--max-new-tokens", 60) for path in (plain, bushy)]
        text = results[0].stdout
        assert text == results[1].stdout
        assert text.startswith("import os\n")
        assert len(text) == len("import os\n") + 60 + 1
        assert "per second" in results[1].stderr

    def test_end_token_counts_and_is_not_printed(self, tree: Path, tmp_path: Path) -> None:
        model = Path(shutil.copytree(bundled.TARGET, tmp_path / "target"))
        config = json.loads((model / "config.json").read_text("utf-8"))
        (model / "config.json").write_text(json.dumps(config | {"eos_token_id": ord("\n")}), "utf-8")
        command = ("run", tree, "--prompt", "import", "--max-new-tokens", 60)
        whole = call(*command).stdout
        first_line = whole[: whole.index("\n")]
        ended = call(*command, "--target", model, "--draft", bundled.DRAFT, "--force")
        assert ended.stdout == first_line + "\n"  # that of the terminal
        assert ended.stderr.splitlines()[-1].startswith(f"{len(first_line) - len('import') + 1} tokens in ")

    def test_default_length_is_the_room_in_the_context(self, tree: Path) -> None:
        result = succeed("run", tree, "--prompt", "x" * 1015)
        assert 1 <= int(result.stderr.splitlines()[-1].split()[0]) <= 9

    def test_tree_that_does_not_fit_into_memory_is_refused(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        k_ary(2, 15).save(folder / "large.json")
        monkeypatch.setattr(memory, "free_bytes", lambda _: 16_000_000_000)
        line = refused("run", "large.json", "--prompt", "def ", "--threads", "1")
        assert line.startswith("Error: memory: expected room for a decoder of trees of 65535 nodes")


def test_bench_reports_predictions_and_measurements(
    tree: Path, greedy_profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treeopt.report.bench_text.MAX_PACE", 1.0)  # any other pace is a warning
    path, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    result = succeed("bench", "tree", tree, "--profile", greedy_profile, *BENCH, "--output", path, "--plot", plot)
    report, profile = json.loads(path.read_text()), Profile.load(greedy_profile)
    assert report["measured"]["divergences"] == []
    assert " tokens decoded. All outputs are identical to plain decoding" in result.stdout
    assert report["tool"] == f"treeopt {__version__}"
    assert report["pair"] == serialize_record(profile.pair)
    assert report["machine"] == serialize_record(profile.machine)
    for name in ("speedup", "tokens_per_step", "step_s"):
        assert report["predicted"][name] > 0
        assert report["measured"][name] > 0
    assert "predicted" in result.stdout
    assert "Trees, predicted and measured" in plot.read_text()
    assert result.stderr.count("than in the profile, so the tree may not be the fastest here.") == 1


def test_output_is_checked_before_any_long_work(tree: Path, tmp_path: Path) -> None:
    start_s = time.perf_counter()
    assert "missing" in refused("bench", "tree", tree, "--output", tmp_path / "missing" / "bench.json")
    assert time.perf_counter() - start_s < 2


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (MemoryError(), True),
        (RuntimeError("a fault of the program"), False),
    ],
)
def test_failed_allocations_are_errors_of_one_line(
    error: Exception, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("treeopt.cli.show.read_any_tree", fail)
    result = call("show", "tree.json")
    assert result.exit_code == 1
    assert ("memory" in result.stderr, isinstance(result.exception, SystemExit)) == (known, known)


def test_debug_shows_the_traceback() -> None:
    result = call("--debug", "show", "missing.json")
    assert result.exit_code == 1
    assert "no such file" in str(result.exception)


FEW = ("--max-new-tokens", "4", "--repeats", "1", "--max-prompts", "4")


def test_every_tree_is_a_row_of_table_and_json(greedy_profile: Path, tmp_path: Path) -> None:
    path, plot = tmp_path / "grid.json", tmp_path / "grid.svg"
    result = succeed("bench", "grid", "--profile", greedy_profile, "--output", path, "--plot", plot, *FEW)
    report = json.loads(path.read_text())
    trees = [TokenTree(row["parents"]) for row in report["trees"]]
    lines = [line for line in result.stdout.splitlines() if line[2:].startswith(("tree of", "chain of"))]
    assert len(lines) == len(trees) >= 5
    assert [line.startswith("*") for line in lines] == [True] + [False] * (len(lines) - 1)
    assert chain(4) in trees
    assert (report["rule"], report["temperature"]) == ("sequoia", 0.0)
    assert report["tool"] == f"treeopt {__version__}"
    for row, tree, line in zip(report["trees"], trees, lines, strict=True):
        measured = row["measured"]
        assert describe_tree(tree) in line
        assert measured["divergences"] == []
        assert 1 <= measured["tokens_per_step"] <= tree.max_depth + 1
        low, high = measured["speedup_interval"]
        assert 0 < low <= measured["speedup"] <= high
        assert row["predicted"]["speedup"] > 0
    assert "All outputs are identical to plain decoding, token by token." in result.stdout
    assert plot.read_bytes().startswith(b"<?xml")


@pytest.mark.slow
def test_standard_output_has_the_json_alone_above_temperature_0(rules_profile: Path) -> None:
    result = succeed("bench", "grid", "--profile", rules_profile, "--temperature", "0.6", "-o", "-", *FEW)
    report = json.loads(result.stdout)
    assert report["temperature"] == 0.6
    assert list(report)[:4] == ["tool", "created", "machine", "pair"]
    assert not [row for row in report["trees"] if "divergences" in row["measured"]]
    assert "tokens per step" in result.stderr
