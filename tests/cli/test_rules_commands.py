"""Several rules end to end, as a user types them, on the bundled pair with little of everything measured."""

import json
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.invented import call
from tests.profiler.bench.test_divergence import accept_the_second_likeliest
from treeopt import Profile
from treeopt.planner import for_new_tokens, step_model
from treeopt.trees import Provenance, TokenTree, TreeFile, load_file

LITTLE = (
    *("--max-tokens", "8", "--rounds", "1", "--positions", "48", "--context-tokens", "32"),
    *("--max-prompts", "4"),
)
BUSHY = TokenTree([-1, 0, 0, 0, 1, 1, 4])
PROMPT = "def add(a, b):\n"
BENCHED_TOKENS = 12


@pytest.fixture(scope="session")
def profile(rules_profile: Path) -> Path:
    return rules_profile


def tree_for(folder: Path, rule: str | None, tree: TokenTree = BUSHY) -> Path:
    """Return the path of a tree that was planned for a rule."""
    path = folder / f"{rule}.json"
    provenance = None if rule is None else Provenance(tool="test", rule=rule)
    TreeFile(tree=tree, provenance=provenance).save(path)
    return path


def run(*arguments: object, tokens: int = 40) -> Result:
    return call("run", *arguments, "--prompt", PROMPT, "--max-new-tokens", tokens)


def bench(*arguments: object) -> Result:
    return call("bench", "tree", *arguments, "--max-new-tokens", BENCHED_TOKENS, "--repeats", 1, "--max-prompts", 12)


class TestProfile:
    def test_it_holds_every_rule_in_the_order_asked_for(self, profile: Path) -> None:
        written = Profile.load(profile)

        rules = ["sequoia", "target", "traversal", "typical"]
        assert [each.rule for each in written.acceptances] == rules
        assert {each.temperature for each in written.acceptances} == {0.6}
        assert [each.rule for each in written.latency().rule_overheads] == rules

    def test_the_summary_shows_every_rule_and_labels_the_lossy_one(self, profile: Path) -> None:
        said = profile.with_suffix(".said").read_text()

        for rule in ("sequoia", "target", "traversal"):
            assert f"acceptance, {rule} at temperature 0.6, 48" in said
        assert "acceptance, typical (lossy: the text's distribution changes) at temperature 0.6" in said
        overhead = next(line for line in said.splitlines() if line.startswith("overhead of a step"))
        assert all(f"{rule} " in overhead for rule in ("sequoia", "target", "traversal", "typical"))

    def test_how_the_draft_samples_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "profile.yaml"
        sampling = ("--temperature", "0.8", "--top-p", "0.9", "--top-k", "50")
        draft = ("--draft-temperature", "1.2", "--draft-top-p", "0.95", "--draft-top-k", "40")
        result = call("profile", "--output", path, *sampling, *draft, *LITTLE)

        assert result.exit_code == 0, result.output
        found = Profile.load(path).acceptance()
        assert (found.temperature, found.top_p, found.top_k) == (0.8, 0.9, 50)
        assert found.draft_sampling is not None
        own = found.draft_sampling
        assert (own.temperature, own.top_p, own.top_k) == (1.2, 0.95, 40)

    def test_solve_compares_them_and_leaves_the_lossy_one_out(self, profile: Path, tmp_path: Path) -> None:
        path = tmp_path / "tree.json"
        result = call("solve", "--profile", profile, "--output", path)

        assert result.exit_code == 0, result.output
        planned = load_file(path).provenance
        assert planned is not None
        assert planned.rule in ("sequoia", "target", "traversal")
        assert planned.temperature == 0.6

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("--rules", "best"), 2, "--rules: expected one of sequoia, "),
            (("--rules", "sequoia,,target", "--temperature", "1"), 2, "Got ''"),
            (("--rules", "sequoia,typical", "--temperature", "1"), 2, "--lossy"),
            (("--rules", "typical"), 2, "--lossy"),
            (("--draft-temperature", "0.5"), 2, "--draft-temperature"),
            (("--draft-top-k", "5"), 2, "--draft-top-k"),
            (("--draft-temperature", "0", "--temperature", "1"), 2, "--draft-temperature"),
            (("--top-p", "0"), 2, "--top-p"),
            (("--rules", "sequoia,target"), 2, "--rules: expected one at temperature 0"),
            (("--rules", "target,target", "--temperature", "1"), 2, "each once"),
        ],
    )
    def test_one_clear_line_for_what_cannot_be_measured(
        self, folder: Path, arguments: tuple[str, ...], code: int, said: str
    ) -> None:
        result = call("profile", *arguments)

        assert result.exit_code == code
        assert said in result.stderr
        assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1
        assert list(folder.iterdir()) == []


class TestRun:
    def test_the_rule_is_the_one_that_the_tree_was_planned_for(self, tmp_path: Path) -> None:
        said = {
            rule: run(tree_for(tmp_path, rule), "--temperature", "0.9", tokens=20).stdout
            for rule in ("target", "sequoia")
        }

        assert said["target"] != said["sequoia"]
        for planned in ("target", "sequoia", None):
            for asked in ("target", "sequoia"):
                found = run(tree_for(tmp_path, planned), "--rule", asked, "--temperature", "0.9", tokens=20)
                assert found.stdout == said[asked]
        assert run(tree_for(tmp_path, None), "--temperature", "0.9", tokens=20).stdout == said["sequoia"]

    @pytest.mark.parametrize("rule", ["target", "traversal"])
    def test_the_seed_repeats_the_text(self, tmp_path: Path, rule: str) -> None:
        command = (tree_for(tmp_path, rule), "--temperature", "0.9", "--seed")
        first, again, other = (run(*command, seed).stdout for seed in (3, 3, 4))

        assert first == again != other

    def test_a_stop_text_ends_it(self, tmp_path: Path) -> None:
        tree = tree_for(tmp_path, None)
        whole = run(tree).stdout[len(PROMPT) : -1]
        assert len(whole) == 40
        for stop in (whole[17:20], whole[5], whole[30:35]):
            expected = whole[: whole.index(stop) + len(stop)]
            assert run(tree, "--stop", stop).stdout == PROMPT + expected + "\n"
        stops = ("--stop", "this does not occur", "--stop", whole[17:20])
        assert run(tree, *stops).stdout == run(tree, *stops[2:]).stdout
        assert run(tree, "--stop", "this does not occur").stdout == PROMPT + whole + "\n"

    def test_an_empty_stop_text_is_refused(self, tmp_path: Path) -> None:
        result = run(tree_for(tmp_path, None), "--stop", "")

        assert result.exit_code == 2
        assert "--stop: expected a text" in result.stderr
        assert result.stdout == ""

    def test_a_lossy_rule_is_labelled_where_it_is_lossy(self, tmp_path: Path) -> None:
        tree = tree_for(tmp_path, "typical")
        refused, warm, greedy = run(tree), run(tree, "--lossy", "--temperature", "0.8"), run(tree, "--lossy")

        assert refused.exit_code == 2
        assert "--lossy" in refused.stderr
        assert refused.stdout == ""
        assert "Rule typical is lossy: this text does not follow the target's distribution." in warm.stderr
        assert "lossy" not in warm.stdout
        assert greedy.exit_code == 0
        assert "lossy" not in greedy.stderr
        assert greedy.stdout == run(tree, "--rule", "sequoia").stdout

    def test_a_lossless_rule_is_not_labelled(self, tmp_path: Path) -> None:
        result = run(tree_for(tmp_path, "target"), "--lossy", "--temperature", "0.8")

        assert result.exit_code == 0
        assert "lossy" not in result.stderr

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--rule", "best"), "'--rule': 'best' is not one of 'sequoia', "),
            (("--draft-temperature", "0.5"), "--draft-temperature"),
        ],
    )
    def test_bad_options_are_one_line(self, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
        result = run(tree_for(tmp_path, None), *arguments)

        assert result.exit_code == 2
        assert said in result.stderr
        assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1


class TestBench:
    @pytest.mark.parametrize(
        ("planned", "arguments", "rule"),
        [
            ("traversal", (), "traversal"),
            ("specinfer", (), "sequoia"),  # not in the profile: the first that is
            ("target", ("--rule", "traversal"), "traversal"),
        ],
    )
    def test_it_takes_the_rule_of_the_tree_where_that_was_measured(
        self, profile: Path, tmp_path: Path, planned: str | None, arguments: tuple[str, ...], rule: str
    ) -> None:
        path = tmp_path / "bench.json"
        result = bench(tree_for(tmp_path, planned), "--profile", profile, "--output", path, *arguments)

        assert result.exit_code == 0, result.output
        report = json.loads(path.read_text())
        assert (report["rule"], report["temperature"]) == (rule, 0.6)
        assert "divergences" not in report["measured"]
        short = for_new_tokens(Profile.load(profile), BENCHED_TOKENS)
        predicted = step_model(short, rule=rule).predict(BUSHY)
        assert report["predicted"]["tokens_per_step"] == pytest.approx(predicted.tokens_per_step.value)
        assert "Outputs are not compared above temperature 0." in result.stdout

    def test_a_lossy_rule_is_asked_for_and_labelled(self, profile: Path, tmp_path: Path) -> None:
        path, tree = tmp_path / "bench.json", tree_for(tmp_path, "typical")
        refused = bench(tree, "--profile", profile, "--output", path)
        allowed = bench(tree, "--profile", profile, "--output", path, "--lossy")

        assert refused.exit_code == 2
        assert "--lossy" in refused.stderr
        assert allowed.exit_code == 0, allowed.output
        report = json.loads(path.read_text())
        assert report["rule"] == "typical"
        assert "Rule typical is lossy: outputs do not follow the target's distribution" in allowed.stdout

    def test_a_rule_that_was_not_measured_is_refused(self, profile: Path, tmp_path: Path) -> None:
        result = bench(tree_for(tmp_path, None), "--profile", profile, "--rule", "specinfer")

        assert result.exit_code == 1
        assert "rule specinfer" in result.stderr
        assert "Measured: sequoia at 0.6, target at 0.6" in result.stderr

    def test_at_temperature_0_the_text_is_plain_decodings(self, greedy_profile: Path, tmp_path: Path) -> None:
        path = tmp_path / "bench.json"
        result = bench(tree_for(tmp_path, "target"), "--profile", greedy_profile, "--output", path)

        assert result.exit_code == 0, result.output
        report = json.loads(path.read_text())
        assert (report["rule"], report["temperature"]) == ("sequoia", 0.0)
        assert report["measured"]["divergences"] == []
        assert "All outputs are identical to plain decoding, token by token." in result.stdout

    def test_a_text_that_differs_is_shouted(
        self, greedy_profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from treeopt.runtime.decoding.acceptance import GreedyAcceptance

        path = tmp_path / "bench.json"
        monkeypatch.setattr(GreedyAcceptance, "__call__", accept_the_second_likeliest)
        result = bench(tree_for(tmp_path, None), "--profile", greedy_profile, "--output", path)

        report = json.loads(path.read_text())
        assert "DIFFERS" in result.stdout
        divergences = report["measured"]["divergences"]
        assert [each["prompt"] for each in divergences] == [0, 1, 2]
        assert {each["near_tie"] for each in divergences} == {False}
        assert all(each["gap"] > 0 and each["place"] == 0 for each in divergences)
