"""What `treeopt solve` writes: the JSON object, the tree, the solution, the picture, and nothing by half."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import FOUR_CONDITIONS, NOISY, TABLE, call, invented, saved, solved, solved_json
from treeopt.planner import plan, schedule
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.solver import Solution, solve
from treeopt.trees import TokenTree, load
from treeopt.trees.tree_schedule import load_schedule


class TestJson:
    def test_everything_is_in_one_object(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS, tables=[NOISY], verify_noise=0.05)
        found = solved_json(folder, profile, "--budget", 16)

        made = plan(Profile.load(folder / "profile.yaml"), 16)  # numbers as the file rounds them
        assert found["choice"] == made.choice.kind
        assert found["candidates"].keys() == {"plain", "chain", "tree"}
        assert (found["rule"], found["temperature"], found["context_tokens"], found["batch_size"]) == (
            "sequoia",
            0.0,
            256,
            1,
        )
        assert found["extrapolated"] is False
        assert found["certificate"]["method"] == made.solution.certificate.method
        assert found["certificate"]["bound_on_speedup"] == made.fastest.bound
        assert found["certificate"]["loss"] == made.fastest.loss
        assert found["confidence"]["probability"] == made.confidence.probability
        assert found["smoothing"] == {"changed": 4, "largest_change": pytest.approx(0.005), "kept": 0}
        assert len(found["schedule"]["plans"]) == 4
        assert found["pair"]["target"] == "big"
        assert found["machine"]["processor"] == "invented"

    def test_every_candidate_has_its_tree_and_intervals(self, folder: Path) -> None:
        found = solved_json(folder, invented(verify_noise=0.05), "--budget", 16)

        for candidate in (*found["candidates"].values(), *found["budgets"]):
            tree = TokenTree(candidate["parents"])
            assert (tree.nodes, tree.max_depth) == (candidate["nodes"], candidate["depth"])
            for name in ("tokens_per_step", "step_s", "speedup"):
                low, high = candidate[f"{name}_interval"]
                assert 0 < low <= candidate[name] <= high
        low, high = found["candidates"]["tree"]["speedup_interval"]
        assert low < high

    def test_the_tree_is_written_and_the_rest_goes_to_standard_error(self, folder: Path) -> None:
        result = call("solve", "--profile", saved(folder, invented(verify_noise=0.3)), "--json")

        found = json.loads(result.stdout)
        assert load(folder / "tree.json").parents.tolist() == found["candidates"]["tree"]["parents"]
        assert [f"Warning: {warning}" for warning in found["warnings"]] == result.stderr.splitlines()[:-1]
        assert len(found["warnings"]) == 1
        assert result.stderr.splitlines()[-1] == "Written to tree.json"

    def test_raw_has_no_smoothing(self, folder: Path) -> None:
        assert solved_json(folder, invented(), "--raw")["smoothing"] is None


class TestFiles:
    def test_saved_solution_holds_every_tree(self, folder: Path) -> None:
        said = solved(folder, invented(), "--save", "solution.npz")

        expected, kept = solve(TABLE, 32), Solution.load(folder / "solution.npz")
        assert "Written to tree.json, solution.npz. Next: " in said
        np.testing.assert_array_equal(kept.expected_tokens, expected.expected_tokens)
        assert all(kept.tree(n, d) == expected.tree(n, d) for n in (1, 7, 32) for d in range(5))

    @pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")])
    def test_plot(self, folder: Path, suffix: str, magic: bytes) -> None:
        solved(folder, invented(), "--budget", 8, "--plot", f"plan{suffix}")

        assert (folder / f"plan{suffix}").read_bytes().startswith(magic)

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (("--json", "--output", "-"), 2, "--json and --output -"),
            (("--save", "-"), 2, "'--save': expected a file. Got -, standard output."),
            (("--plot", "-"), 2, "'--plot': expected a file. Got -, standard output."),
            (("--save", "tree.json"), 2, "a different file for each"),
            (("--output", "profile.yaml"), 2, "is read, and would be overwritten"),
            (("--output", "a.svg", "--plot", "./a.svg"), 2, "a different file for each"),
            (("--objective", "beauty"), 2, "--objective"),
            (("--level-width", "0"), 2, "--level-width"),
            (("--batch-size", "0"), 2, "--batch-size"),
            (("--context-tokens", "some"), 2, "--context-tokens"),
            (("--plot", "plan.jpg"), 1, ".svg, .png, .pdf"),
            (("--save", "missing/solution.npz"), 1, "missing"),
            (("--plot", "missing/plan.svg"), 1, "missing"),
            (("--depth", "5"), 1, "measured to depth 4"),
            (("--rule", "target"), 1, "target"),
            (
                ("--rule", "typical"),
                2,
                "--rule typical: it changes the distribution of the output. Allow that with --lossy.",
            ),
            (("--rule", "typical", "--lossy"), 1, "rule typical was not measured. Measured: sequoia at 0."),
        ],
        ids=str,
    )
    def test_bad_input_is_one_clear_line_and_leaves_nothing(
        self, folder: Path, arguments: tuple[str, ...], code: int, said: str
    ) -> None:
        path = saved(folder, invented())
        before = path.read_bytes()
        result = call("solve", "--profile", path, *arguments)

        assert result.exit_code == code, result.output
        (error,) = (line for line in result.stderr.splitlines() if line.startswith("Error"))
        assert said in error
        assert result.stdout == ""
        assert list(folder.iterdir()) == [path]
        assert path.read_bytes() == before

    @pytest.mark.parametrize("where", ["treeopt.cli.plan_profile.requested_plan", "treeopt.trees.TreeFile.save"])
    def test_interrupted_before_the_first_file_writes_nothing(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
    ) -> None:
        def interrupted(*_arguments: object, **_options: object) -> None:
            raise KeyboardInterrupt

        path = saved(folder, invented())
        monkeypatch.setattr(where, interrupted)
        result = call("solve", "--profile", path, "--save", "solution.npz", "--plot", "plan.svg")

        assert result.exit_code == 130
        assert result.stderr == "Error: interrupted. Nothing was written.\n"
        assert list(folder.iterdir()) == [path]

    def test_interrupted_while_writing_names_what_is_there(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_arguments: object) -> None:
            raise KeyboardInterrupt

        path = saved(folder, invented())
        monkeypatch.setattr(Solution, "save", interrupted)
        result = call("solve", "--profile", path, "--save", "solution.npz", "--plot", "plan.svg")

        assert result.exit_code == 130
        assert result.stderr == "Error: interrupted. Written: tree.json. Run it again for the rest.\n"
        assert sorted(folder.iterdir()) == [path, folder / "tree.json"]
        assert load(folder / "tree.json") == plan(invented(), 32).choice.tree


class TestSchedule:
    def test_a_tree_for_every_number_of_texts(self, folder: Path) -> None:
        saved(folder, invented(conditions=FOUR_CONDITIONS))
        found = call("schedule", "--context-tokens", 4096, "--batch-size", 1)
        assert found.exit_code == 0, found.output
        assert "Written to schedule.json. Next: treeopt run schedule.json --prompts FILE" in found.stdout
        assert not (folder / "tree.json").exists()
        made = load_schedule("schedule.json")
        planned = schedule(Profile.load(folder / "profile.yaml"), 32).over_batch_sizes
        expected = {
            texts: each.option.tree
            for each in planned
            if each.context_tokens[0] == 4096
            for texts in range(each.batch_sizes[0], each.batch_sizes[1] + 1)
        }
        assert {texts: made.tree(texts) for texts in expected} == expected
        assert len(set(expected.values())) > 1
        assert made.provenance is not None
        assert (made.provenance.rule, made.provenance.speedup) == ("sequoia", None)

    def test_one_batch_size_is_one_line_and_nothing_is_written(self, folder: Path) -> None:
        saved(folder, invented())
        found = call("schedule", "-o", "mine.json")
        assert found.exit_code == 1
        assert "schedule: expected several batch sizes at 256 tokens of context" in found.stderr
        assert [path.name for path in folder.iterdir()] == ["profile.yaml"]

    def test_of_several_rules_the_plans_own_is_scheduled_alone(self, folder: Path) -> None:
        worse = AcceptanceTable([[0.3, 0.1]] * 4)
        saved(folder, invented(conditions=FOUR_CONDITIONS, others={"specinfer": worse}))
        found = call("schedule", "--context-tokens", 256, "--batch-size", 1)
        assert found.exit_code == 0, found.output
        of_rule = schedule(Profile.load(folder / "profile.yaml"), 32, rule="sequoia").over_batch_sizes
        made = load_schedule("schedule.json")
        expected = [each.option.tree for each in of_rule if each.context_tokens[0] == 256]
        assert [each.tree for each in made.trees] == expected

    def test_it_is_for_speed(self, folder: Path) -> None:
        saved(folder, invented(conditions=FOUR_CONDITIONS))
        found = call("schedule", "--objective", "tokens")
        assert found.exit_code == 2
        assert "--objective tokens: schedules are for speed" in found.stderr
        assert [path.name for path in folder.iterdir()] == ["profile.yaml"]

    def test_standard_output_has_the_schedule_alone(self, folder: Path) -> None:
        saved(folder, invented(conditions=FOUR_CONDITIONS))
        assert call("schedule").exit_code == 0
        found = call("schedule", "-o", "-")
        assert found.exit_code == 0
        assert found.stdout == (folder / "schedule.json").read_text("utf-8")
        assert "What to run where" in found.stderr
