"""Several rules end to end, on the bundled pair with small amounts."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.invented import call, refused, succeed
from tests.profiler.bench.test_divergence import accept_the_second_likeliest
from treeopt import Profile
from treeopt.planner import for_new_tokens, step_model
from treeopt.planner.request import PlanRequest
from treeopt.trees import Provenance, TokenTree, TreeFile, load_file

BUSHY = TokenTree([-1, 0, 0, 0, 1, 1, 4])
PROMPT = "def add(a, b):\n"
BENCH_TOKENS = 8


def tree_for(folder: Path, rule: str | None) -> Path:
    """Return the path of a tree that was planned for a rule."""
    path = folder / f"{rule}.json"
    TreeFile(tree=BUSHY, provenance=None if rule is None else Provenance(tool="test", rule=rule)).save(path)
    return path


def run(*arguments: object, tokens: int = 40) -> Result:
    return call("run", *arguments, "--prompt", PROMPT, "--max-new-tokens", tokens)


def bench(folder: Path, rule: str | None, profile: Path, *options: object) -> tuple[Result, dict]:
    """Return the result and the report of a benchmark of a tree that was planned for a rule."""
    amounts = ("--max-new-tokens", BENCH_TOKENS, "--repeats", 1, "--max-prompts", 8)
    path = folder / "bench.json"
    command = ("bench", "tree", tree_for(folder, rule), "--profile", profile, "--output", path)
    result = succeed(*command, *amounts, *options)
    return result, json.loads(path.read_text())


class TestProfile:
    def test_file_and_summary_contain_every_rule_in_order(self, rules_profile: Path) -> None:
        profile, rules = Profile.load(rules_profile), ["sequoia", "target", "traversal", "typical"]
        assert [acceptance.rule for acceptance in profile.acceptances] == rules
        assert {acceptance.temperature for acceptance in profile.acceptances} == {0.6}
        assert [overhead.rule for overhead in profile.latencies[0].rule_overheads] == rules
        output = rules_profile.with_suffix(".out").read_text()
        for rule in rules[:-1]:
            assert f"acceptance, {rule} at temperature 0.6, 48" in output
        assert "acceptance, typical (lossy: the output's distribution changes) at temperature 0.6" in output
        overhead = next(line for line in output.splitlines() if line.startswith("overhead of a step"))
        assert all(f"{rule} " in overhead for rule in rules)

    def test_solve_compares_lossless_rules(self, rules_profile: Path, tmp_path: Path) -> None:
        succeed("solve", "--profile", rules_profile, "--output", tmp_path / "tree.json")
        provenance = load_file(tmp_path / "tree.json").provenance
        assert provenance is not None
        assert provenance.rule in ("sequoia", "target", "traversal")
        assert provenance.temperature == 0.6


class TestRun:
    def test_the_planned_rule_is_the_default(self, tmp_path: Path) -> None:
        def text(planned: str | None, *options: object) -> str:
            return run(tree_for(tmp_path, planned), "--temperature", "0.9", *options, tokens=20).stdout

        outputs = {rule: text(rule) for rule in ("target", "sequoia")}
        assert outputs["target"] != outputs["sequoia"]
        assert text("sequoia", "--rule", "target") == outputs["target"]
        assert text(None) == text("target", "--rule", "sequoia") == outputs["sequoia"]

    def test_stop_text_ends_the_output(self, tmp_path: Path) -> None:
        tree = tree_for(tmp_path, None)
        whole = run(tree).stdout[len(PROMPT) : -1]
        assert len(whole) == 40
        for stop in (whole[17:20], whole[5]):
            expected = PROMPT + whole[: whole.index(stop) + len(stop)] + "\n"
            assert run(tree, "--stop", "this does not occur", "--stop", stop).stdout == expected
        assert run(tree, "--stop", "this does not occur").stdout == PROMPT + whole + "\n"

    def test_lossy_rule_is_reported_above_temperature_0(self, tmp_path: Path) -> None:
        tree = tree_for(tmp_path, "typical")
        warm, greedy = run(tree, "--lossy", "--temperature", "0.8"), run(tree, "--lossy")
        assert "Rule typical is lossy: this text does not follow the target's distribution." in warm.stderr
        assert "lossy" not in warm.stdout
        assert greedy.exit_code == 0
        assert "lossy" not in greedy.stderr
        assert greedy.stdout == run(tree, "--rule", "sequoia").stdout
        assert "lossy" not in run(tree_for(tmp_path, "target"), "--lossy", "--temperature", "0.8").stderr


class TestBench:
    @pytest.mark.parametrize(
        ("planned", "options", "rule"),
        [
            ("traversal", (), "traversal"),
            ("specinfer", (), "sequoia"),  # not in the profile: the first that is
            ("target", ("--rule", "traversal"), "traversal"),
            ("typical", ("--lossy",), "typical"),
        ],
    )
    def test_rule_is_that_of_the_tree_if_measured(
        self, rules_profile: Path, tmp_path: Path, planned: str, options: tuple[str, ...], rule: str
    ) -> None:
        result, report = bench(tmp_path, planned, rules_profile, *options)
        assert (report["rule"], report["temperature"]) == (rule, 0.6)
        assert "divergences" not in report["measured"]
        short = for_new_tokens(Profile.load(rules_profile), BENCH_TOKENS)
        predicted = step_model(short, PlanRequest(rule=rule)).predict(BUSHY)
        assert report["predicted"]["tokens_per_step"] == pytest.approx(predicted.tokens_per_step.value)
        assert "Outputs are not compared above temperature 0." in result.stdout
        lossy = "Rule typical is lossy: outputs do not follow the target's distribution"
        assert (lossy in result.stdout) == (rule == "typical")

    def test_lossy_and_unmeasured_rules_are_refused(self, rules_profile: Path, tmp_path: Path) -> None:
        lossy = ("bench", "tree", tree_for(tmp_path, "typical"), "--profile", rules_profile)
        assert "--lossy" in refused(*lossy, code=2)
        line = refused("bench", "tree", tree_for(tmp_path, None), "--profile", rules_profile, "--rule", "specinfer")
        assert "rule specinfer" in line
        assert "Measured: sequoia at 0.6, target at 0.6" in line

    def test_diverging_outputs_are_reported(
        self, greedy_profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from treeopt.runtime.decoding.acceptance import Acceptance

        monkeypatch.setattr(Acceptance, "__call__", accept_the_second_likeliest)
        result, report = bench(tmp_path, None, greedy_profile)
        assert "DIFFERS" in result.stdout
        divergences = report["measured"]["divergences"]
        assert [divergence["prompt"] for divergence in divergences] == [0, 1]
        assert {divergence["near_tie"] for divergence in divergences} == {False}
        assert all(divergence["gap"] > 0 and divergence["position"] == 0 for divergence in divergences)
