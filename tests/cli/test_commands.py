"""The commands end to end, as a user types them, on the bundled pair with little of everything measured."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from treeopt import Profile, __version__, bundled
from treeopt.cli.main import main
from treeopt.files.serialization import serialize_record
from treeopt.trees import chain, load, load_file

MOST = 8
LITTLE = (
    *("--max-tokens", str(MOST), "--rounds", "2", "--positions", "96", "--context-tokens", "64"),
    *("--max-prompts", "8"),
)
BENCHED = ("--max-new-tokens", "16", "--repeats", "1", "--max-prompts", "8")


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture(scope="session")
def profile(greedy_profile: Path) -> Path:
    return greedy_profile


@pytest.fixture(scope="module")
def tree(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tree") / "tree.json"
    result = call("solve", "--profile", profile, "--output", path)
    assert result.exit_code == 0, result.output
    return path


class TestProfile:
    def test_file_holds_every_measurement_with_its_conditions(self, profile: Path) -> None:
        written = Profile.load(profile)

        assert written.pair.target == "bundled target"
        assert written.latency().verify.max_tokens == MOST
        assert all(len(timing.samples_s) >= 2 for timing in written.latency().verify.timings)
        assert written.latency().context_tokens == 64
        assert written.acceptance().table.standard_error is not None

    def test_checkpoint_is_gone_once_the_profile_is_written(self, profile: Path) -> None:
        assert not profile.with_name("profile.yaml.partial").exists()

    def test_resume_needs_a_checkpoint(self, tmp_path: Path) -> None:
        result = call("profile", "--output", tmp_path / "profile.yaml", "--resume", *LITTLE)

        assert result.exit_code == 1
        assert "no such file" in result.output


class TestSolve:
    def test_table_shows_plain_and_other_candidates_once_with_one_choice(self, profile: Path, tmp_path: Path) -> None:
        result = call("solve", "--profile", profile, "--budget", 8, "--output", tmp_path / "tree.json")

        lines = result.stdout.splitlines()
        assert sum(line.startswith("*") for line in lines) == 1
        kinds = [line[2:].split()[0] for line in lines if line[2:].startswith(("plain", "chain", "tree"))]
        assert kinds[0] == "plain"
        assert len(kinds) == len(set(kinds))
        assert load(tmp_path / "tree.json").nodes <= 8

    def test_tree_file_carries_the_promise(self, profile: Path, tree: Path) -> None:
        from treeopt import plan

        content = load_file(tree)

        assert content.reach is not None
        assert content.provenance is not None
        assert content.provenance.rule == "sequoia"
        promised = plan(Profile.load(profile), MOST).choice
        assert content.tree == promised.tree
        assert content.provenance.tokens_per_step == pytest.approx(promised.tokens_per_step.value, rel=1e-4)

    def test_dash_writes_only_the_tree_to_standard_output(self, profile: Path) -> None:
        result = call("solve", "--profile", profile, "--output", "-")

        assert json.loads(result.stdout)["format"] == "treeopt-tree"

    def test_budget_beyond_the_measured_says_what_to_do(self, profile: Path, tmp_path: Path) -> None:
        result = call("solve", "--profile", profile, "--budget", 512, "--output", tmp_path / "tree.json")

        assert result.exit_code == 0
        assert "Profile with --max-tokens 512 to plan for more." in result.stderr
        assert load_file(tmp_path / "tree.json").tree.nodes <= MOST


class TestShow:
    def test_text_diagram(self, tree: Path) -> None:
        result = call("show", tree)

        assert result.exit_code == 0
        assert "depth" in result.stdout

    @pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
    def test_picture(self, tree: Path, tmp_path: Path, suffix: str, magic: bytes) -> None:
        path = tmp_path / f"tree{suffix}"
        result = call("show", tree, "--output", path)

        assert result.exit_code == 0, result.output
        assert path.read_bytes().startswith(magic)


class TestRun:
    def test_text_is_that_of_plain_decoding(self, tmp_path: Path) -> None:
        plain, bushy = tmp_path / "plain.json", tmp_path / "bushy.json"
        chain(0).save(plain)
        load_tree = [-1, 0, 0, 0, 1, 1, 4]
        from treeopt.trees import TokenTree

        TokenTree(load_tree).save(bushy)
        texts = [call("run", path, "--prompt", "import os\n", "--max-new-tokens", 60).stdout for path in (plain, bushy)]

        assert texts[0] == texts[1]
        assert texts[0].startswith("import os\n")
        assert len(texts[0]) == len("import os\n") + 60 + 1

    def test_the_end_token_counts_and_is_not_printed(self, tree: Path, tmp_path: Path) -> None:
        model = Path(shutil.copytree(bundled.TARGET, tmp_path / "target"))
        config = json.loads((model / "config.json").read_text("utf-8"))
        (model / "config.json").write_text(json.dumps(config | {"eos_token_id": ord("\n")}), "utf-8")
        command = ("run", tree, "--prompt", "import", "--max-new-tokens", 60)
        whole = call(*command).stdout
        first_line = whole[: whole.index("\n")]

        ended = call(*command, "--target", model, "--draft", bundled.DRAFT, "--force")

        assert ended.stdout == first_line + "\n"  # that of the terminal
        assert ended.stderr.splitlines()[-1].startswith(f"{len(first_line) - len('import') + 1} tokens in ")

    def test_speed_goes_to_standard_error(self, tree: Path) -> None:
        result = call("run", tree, "--prompt", "x", "--max-new-tokens", 8)

        assert "per second" in result.stderr
        assert "per second" not in result.stdout

    def test_seed_repeats_the_text_above_temperature_0(self, tree: Path) -> None:
        command = ("run", tree, "--prompt", "def f", "--max-new-tokens", 40, "--temperature", "0.8", "--seed")
        first, again, other = (call(*command, seed).stdout for seed in (1, 1, 2))

        assert first == again
        assert first != other


class TestBench:
    def test_prediction_stands_beside_measurement(
        self, tree: Path, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("treeopt.report.bench_text.MAX_PACE", 1.0)  # any other pace is a warning
        path = tmp_path / "bench.json"
        result = call("bench", "tree", tree, "--profile", profile, *BENCHED, "--output", path)
        report = json.loads(path.read_text())

        assert result.exit_code == 0, result.output
        assert report["measured"]["divergences"] == []
        assert " tokens decoded. All outputs are identical to plain decoding" in result.stdout
        assert report["tool"] == f"treeopt {__version__}"
        assert report["pair"] == serialize_record(Profile.load(profile).pair)
        assert report["machine"] == serialize_record(Profile.load(profile).machine)
        for name in ("speedup", "tokens_per_step", "step_s"):
            assert report["predicted"][name] > 0
            assert report["measured"][name] > 0
        assert "predicted" in result.stdout
        assert result.stderr.count("than in the profile, so the tree may not be the fastest here.") == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("solve", "--budget", "0"), 2, "--budget"),
            (("solve", "--budget", "many"), 2, "--budget"),
            (("nonsense",), 2, "nonsense"),
            (("solve", "--profile", "missing.yaml"), 1, "treeopt profile"),
            (("show", "missing.json"), 1, "missing.json"),
            (("run", "missing.json", "--prompt", "x"), 1, "missing.json"),
            (("bench", "tree", "missing.json"), 1, "missing.json"),
            (("profile", "--output", "missing/profile.yaml"), 1, "missing"),
            (("profile", "--device", "cuda:99"), 1, "cuda:99"),
            (("profile", "--target", "missing"), 1, "tokenizer.json"),
            (("profile", "--draft", "missing"), 1, "--target"),
            (("profile", "--target", "missing", "--draft", "missing"), 1, "tokenizer.json"),
            (("profile", "--temperature", "nan"), 2, "--temperature"),
        ],
    )
    def test_one_clear_line_and_the_right_exit_code(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, said: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        result = call(*arguments)

        assert result.exit_code == code
        assert said in result.stderr
        assert "Traceback" not in result.output
        assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("content", ["", "{}", "[1]", "nonsense: [", "format: treeopt-profile\nversion: 99\n"])
    def test_malformed_profile_names_the_file(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "profile.yaml"
        path.write_text(content)
        result = call("solve", "--profile", path, "--output", tmp_path / "tree.json")

        assert result.exit_code == 1
        assert "profile.yaml" in result.stderr
        assert not (tmp_path / "tree.json").exists()

    def test_bench_without_a_profile_says_how_to_make_one(self, tree: Path, tmp_path: Path) -> None:
        result = call("bench", "tree", tree, "--profile", tmp_path / "missing.yaml")

        assert result.exit_code == 1
        assert "treeopt profile" in result.stderr

    def test_output_is_checked_before_any_long_work(self, tree: Path, tmp_path: Path) -> None:
        start_s = time.perf_counter()
        result = call("bench", "tree", tree, "--output", tmp_path / "missing" / "bench.json")

        assert result.exit_code == 1
        assert "missing" in result.stderr
        assert time.perf_counter() - start_s < 2

    def test_draft_of_another_vocabulary_is_refused(self, tmp_path: Path) -> None:
        from treeopt import bundled

        draft = tmp_path / "draft"
        draft.mkdir()
        for file in bundled.DRAFT.iterdir():
            (draft / file.name).write_bytes(file.read_bytes())
        tokenizer = json.loads((draft / "tokenizer.json").read_text())
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
        result = call("profile", "--target", bundled.TARGET, "--draft", draft, "--output", tmp_path / "p.yaml")

        assert result.exit_code == 1
        assert "expected the target's tokenizer" in result.stderr

    def test_debug_shows_the_traceback(self) -> None:
        result = call("--debug", "show", "missing.json")

        assert result.exit_code == 1
        assert result.exception is not None
        assert "no such file" in str(result.exception)


@pytest.mark.parametrize("command", ["solve", "show"])
def test_help_loads_nothing_heavy(command: str) -> None:
    code = (
        "import sys\nfrom treeopt.cli.main import main\n"
        f"try:\n    main('{command} --help'.split())\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'numba', 'matplotlib', 'scipy', 'yaml'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "Usage: " in result.stdout
    assert result.stderr.strip() == "[]"
