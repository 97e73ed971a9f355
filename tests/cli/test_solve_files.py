"""Outputs of `treeopt solve` and `treeopt schedule`: JSON, tree, solution, figure and schedule, whole or not at all."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.invented import (
    FOUR_CONDITIONS,
    NOISY,
    TABLE,
    call,
    invented,
    refused,
    saved,
    solved,
    solved_json,
    succeed,
)
from treeopt.planner import plan, schedule
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.solver import Solution, solve
from treeopt.trees import TokenTree, load
from treeopt.trees.tree_schedule import load_schedule


class TestJson:
    def test_one_object_contains_everything(self, folder: Path) -> None:
        report = solved_json(
            folder, invented(conditions=FOUR_CONDITIONS, tables=[NOISY], verify_noise=0.05), "--budget", 16
        )
        expected = plan(Profile.load(folder / "profile.yaml"), 16)  # numbers as the file rounds them
        conditions = ("rule", "temperature", "context_tokens", "batch_size", "extrapolated")
        assert [report[key] for key in conditions] == ["sequoia", 0.0, 256, 1, False]
        assert report["choice"] == expected.choice.kind
        assert report["candidates"].keys() == {"plain", "chain", "tree"}
        certificate = (expected.solution.certificate.method, expected.fastest.bound, expected.fastest.loss)
        assert tuple(report["certificate"][key] for key in ("method", "bound_on_speedup", "loss")) == certificate
        assert report["confidence"]["probability"] == expected.confidence.probability
        assert report["smoothing"] == {"changed": 4, "largest_change": pytest.approx(0.005), "kept": 0}
        assert len(report["schedule"]["plans"]) == 4
        assert (report["pair"]["target"], report["machine"]["processor"]) == ("big", "invented")
        assert solved_json(folder, invented(), "--raw", "--budget", 4)["smoothing"] is None

    def test_every_candidate_has_its_tree_and_intervals(self, folder: Path) -> None:
        report = solved_json(folder, invented(verify_noise=0.05), "--budget", 16)
        for candidate in (*report["candidates"].values(), *report["budgets"]):
            tree = TokenTree(candidate["parents"])
            assert (tree.nodes, tree.max_depth) == (candidate["nodes"], candidate["depth"])
            for name in ("tokens_per_step", "step_s", "speedup"):
                low, high = candidate[f"{name}_interval"]
                assert 0 < low <= candidate[name] <= high
        low, high = report["candidates"]["tree"]["speedup_interval"]
        assert low < high

    def test_warnings_are_in_the_object_and_on_standard_error(self, folder: Path) -> None:
        result = call("solve", "--profile", saved(folder, invented(verify_noise=0.3)), "--json")
        report = json.loads(result.stdout)
        assert load(folder / "tree.json").parents.tolist() == report["candidates"]["tree"]["parents"]
        assert len(report["warnings"]) == 1
        expected = [*(f"Warning: {warning}" for warning in report["warnings"]), "Written to tree.json"]
        assert result.stderr.splitlines() == expected


class TestFiles:
    def test_solution_contains_every_tree(self, folder: Path) -> None:
        output = solved(folder, invented(), "--save", "solution.npz")
        expected, solution = solve(TABLE, 32), Solution.load(folder / "solution.npz")
        assert "Written to tree.json, solution.npz. Next: " in output
        np.testing.assert_array_equal(solution.expected_tokens, expected.expected_tokens)
        assert all(solution.tree(n, d) == expected.tree(n, d) for n in (1, 7, 32) for d in range(5))

    @pytest.mark.parametrize(
        ("interrupted", "message", "names"),
        [
            ("treeopt.cli.plan_profile.requested_plan", "Nothing was written.", []),
            ("treeopt.trees.TreeFile.save", "Nothing was written.", []),
            ("treeopt.solver.Solution.save", "Written: tree.json. Run it again for the rest.", ["tree.json"]),
        ],
    )
    def test_interruption_names_the_complete_files(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, interrupted: str, message: str, names: list[str]
    ) -> None:
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        path = saved(folder, invented())
        monkeypatch.setattr(interrupted, interrupt)
        result = call("solve", "--profile", path, "--save", "solution.npz", "--plot", "plan.svg")
        assert (result.exit_code, result.stderr) == (130, f"Error: interrupted. {message}\n")
        assert sorted(folder.iterdir()) == [path, *(folder / name for name in names)]
        if names:
            assert load(folder / "tree.json") == plan(invented(), 32).choice.tree


class TestSchedule:
    def test_every_batch_size_has_its_tree(self, folder: Path) -> None:
        saved(folder, invented(conditions=FOUR_CONDITIONS))
        command = ("schedule", "--context-tokens", 4096)
        result = succeed(*command)
        assert (
            "Written to schedule.json. Next: treeopt run schedule.json --target MODEL --draft MODEL --prompts FILE"
            in result.stdout
        )
        assert not (folder / "tree.json").exists()
        written = load_schedule("schedule.json")
        planned = schedule(Profile.load(folder / "profile.yaml"), max_nodes=32).over_batch_sizes
        expected = {
            batch: segment.option.tree
            for segment in planned
            if segment.context_tokens[0] == 4096
            for batch in range(segment.batch_sizes[0], segment.batch_sizes[1] + 1)
        }
        assert {batch: written.tree(batch) for batch in expected} == expected
        assert len(set(expected.values())) > 1
        assert written.provenance is not None
        assert (written.provenance.rule, written.provenance.speedup) == ("sequoia", None)
        on_stdout = succeed(*command, "-o", "-")
        assert on_stdout.stdout == (folder / "schedule.json").read_text("utf-8")
        assert "What to run where" in on_stdout.stderr

    def test_contexts_between_measured_ones_and_extrapolation_are_refused(self, folder: Path) -> None:
        saved(folder, invented(conditions=FOUR_CONDITIONS))
        line = refused("schedule", "--context-tokens", 1000)
        assert "--context-tokens: expected 256, 4096, where several batch sizes were measured. Got 1000" in line
        assert "--extrapolate: schedules are for what was measured" in refused("schedule", "--extrapolate", code=2)

    def test_one_batch_size_is_refused(self, folder: Path) -> None:
        saved(folder, invented(conditions=FOUR_CONDITIONS))
        assert "--batch-size: a schedule has a tree for every" in refused("schedule", "--batch-size", 1, code=2)

    def test_only_the_rule_of_the_plan_is_scheduled(self, folder: Path) -> None:
        worse = AcceptanceTable([[0.3, 0.1]] * 4)
        saved(folder, invented(conditions=FOUR_CONDITIONS, others={"specinfer": worse}))
        succeed("schedule", "--context-tokens", 256, "--budget", 16)
        segments = schedule(Profile.load(folder / "profile.yaml"), max_nodes=16, rule="sequoia").over_batch_sizes
        expected = [segment.option.tree for segment in segments if segment.context_tokens[0] == 256]
        assert [entry.tree for entry in load_schedule("schedule.json").trees] == expected
