"""`treeopt solve` as a user types it, on invented machines whose plans are known."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invented import FOUR_CONDITIONS, NOISY, TABLE, call, invented, saved, solved, solved_json
from treeopt.planner import Confidence, plan, schedule
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.report.plan_text import conclusions
from treeopt.report.plan_warnings import plan_warnings
from treeopt.report.text import percent_floor
from treeopt.solver import solve
from treeopt.trees import load, load_file

RISING = AcceptanceTable([[0.3, 0.05, 0.6], [0.6, 0.05, 0.06]], standard_error=np.full((2, 3), 0.02))


class TestTable:
    def test_verdict_bound_and_confidence_follow_the_table(self, folder: Path) -> None:
        lines = solved(folder, invented()).splitlines()

        chosen = plan(invented(), 32).choice
        start = lines.index(
            f"Fastest: a tree of {chosen.tree.nodes} nodes, depth {chosen.tree.max_depth}, "
            f"{chosen.speedup.value:.2f}x plain decoding."
        )
        assert lines[start - 2].startswith("* tree")
        assert lines[start + 1 : start + 4] == [
            "No tree of up to 32 nodes and depth 4 is faster.",
            "More than 99 % chance that this is within 1 % of the fastest.",
            "",
        ]
        assert lines[0] == "big + small on invented (2 threads): sequoia at temperature 0, 256 tokens of context"

    def test_one_condition_prints_no_schedule(self, folder: Path) -> None:
        assert "What to run where" not in solved(folder, invented())

    def test_default_budget_is_what_was_measured_at_the_condition(self, folder: Path) -> None:
        assert "up to 32 nodes" in solved(folder, invented(conditions=[(256, 4)]))

    def test_no_levels_is_plain_decoding(self, folder: Path) -> None:
        assert "Plain decoding is the fastest" in solved(folder, invented(), "--depth", 0)

    def test_tree_to_standard_output_leaves_the_table_to_standard_error(self, folder: Path) -> None:
        result = call("solve", "--profile", saved(folder, invented()), "--output", "-")

        assert json.loads(result.stdout)["parents"] == plan(invented(), 32).choice.tree.parents.tolist()
        assert "Fastest: " in result.stderr


class TestBound:
    def test_what_may_be_missing_is_rounded_up(self) -> None:
        found = plan(invented(), 16)
        loose = replace(found.fastest, bound=1.0041 * found.fastest.speedup)

        assert conclusions(replace(found, fastest=loose))[1] == (
            "No tree of up to 16 nodes and depth 4 can be more than 0.5 % faster."
        )

    def test_width_limits_are_part_of_the_claim(self, folder: Path) -> None:
        said = solved(folder, invented(), "--level-width", 2)

        assert "No tree of up to 32 nodes, 2 to a level, and depth 4 " in said
        assert load(folder / "tree.json").level_widths.max() == 2
        assert load(folder / "tree.json") == plan(invented(), 32, level_widths=2).choice.tree


class TestConfidence:
    @pytest.mark.parametrize(
        ("profile", "source", "remedy"),
        [
            (invented(verify_noise=0.3), "verification time", "--rounds"),
            (
                invented(tables=[AcceptanceTable(TABLE.p, standard_error=np.full((4, 3), 0.1))]),
                "acceptance",
                "--positions",
            ),
        ],
        ids=["verify", "acceptance"],
    )
    def test_a_doubtful_choice_is_warned_of_with_what_to_measure(
        self, folder: Path, profile: Profile, source: str, remedy: str
    ) -> None:
        result = call("solve", "--profile", saved(folder, profile))

        (warning,) = result.stderr.splitlines()
        found = plan(profile, 32).confidence
        assert found.probability < 0.9
        assert result.exit_code == 0
        assert warning.startswith("Warning: ")
        assert f"is only {int(100 * found.probability)} %." in warning
        assert f"if {source} were known exactly" in warning
        assert warning.endswith(f"Profile with a longer --time-budget, or more {remedy}.")

    @pytest.mark.parametrize(
        ("weakest", "remedy"),
        [
            ("acceptance", "--positions"),
            ("verify", "--rounds"),
            ("draft", "--rounds"),
            ("overhead", "--rounds"),
        ],
    )
    def test_every_source_has_its_remedy(self, weakest: str, remedy: str) -> None:
        unsure = Confidence(probability=0.5, weakest=weakest, without_weakest=0.75)
        (warning,) = plan_warnings(replace(plan(invented(), 8), confidence=unsure))

        assert "75 %" in str(warning)
        assert warning.action.endswith(f"{remedy}.")

    @pytest.mark.parametrize(("probability", "said"), [(0.9, 0), (0.899, 1)])
    def test_nine_in_ten_is_sure_enough(self, probability: float, said: int) -> None:
        sure = Confidence(probability=probability, weakest="draft", without_weakest=1.0)

        assert len(plan_warnings(replace(plan(invented(), 8), confidence=sure))) == said

    def test_probabilities_are_never_rounded_up(self) -> None:
        assert [percent_floor(p) for p in (0.0, 0.29, 0.8999, 0.99, 0.9901, 1.0)] == [
            "0 %",
            "29 %",
            "89 %",
            "99 %",
            "more than 99 %",
            "more than 99 %",
        ]


class TestSmoothing:
    def test_it_is_told_and_raw_leaves_it_out(self, folder: Path) -> None:
        smoothed, raw = solved(folder, invented(tables=[NOISY])), solved(folder, invented(tables=[NOISY]), "--raw")

        line = "Smoothed 4 acceptance entries that increased by rank through noise (largest change 0.005); --raw uses them as measured."
        assert line in smoothed.splitlines()
        assert "moothed" not in raw

    def test_raw_plans_with_the_measured_table(self, folder: Path) -> None:
        profile = invented(tables=[NOISY])
        solved(folder, profile, "--raw", "--objective", "tokens")

        assert load_file(folder / "tree.json").reach == pytest.approx(
            NOISY.reach(solve(NOISY, 32).tree(32, 2)), rel=1e-5
        )

    def test_what_noise_does_not_explain_is_told_too(self, folder: Path) -> None:
        said = solved(folder, invented(tables=[RISING]))

        assert "Kept 1 increase of acceptance by rank that noise does not explain." in said.splitlines()

    def test_falling_rows_need_no_word(self, folder: Path) -> None:
        assert "rank" not in solved(folder, invented())


class TestObjective:
    def test_tokens_ignores_what_they_cost(self, folder: Path) -> None:
        said = solved(folder, invented(), "--objective", "tokens")

        most = solve(TABLE, 32)
        tree = most.tree(32, 4)
        assert load(folder / "tree.json") == tree
        assert (
            f"Most tokens: a tree of {tree.nodes} nodes, depth 4, {most.expected_tokens[4, 32]:.2f} per step." in said
        )
        assert "No tree of up to 32 nodes and depth 4 yields more." in said
        assert "chance" not in said


class TestPadding:
    def test_a_faster_padded_pass_is_told(self, folder: Path) -> None:
        slow_in_between = invented(verify=lambda n, _context, _batch: 0.02 if 8 < n < 16 else 0.01 + 1e-5 * n)
        said = solved(folder, slow_in_between, "--budget", 12)

        assert "tree of 12 nodes" in said
        assert "Run the verification pass padded to 16 tokens: that is faster." in said


class TestConditions:
    def test_between_measured_conditions_nothing_is_warned_of(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS, contexts=(256, 4096))
        said = call("solve", "--profile", saved(folder, profile), "--context-tokens", 1000, "--batch-size", 3)

        assert said.stderr == ""
        assert said.stdout.splitlines()[0].endswith("sequoia at temperature 0, 1000 tokens of context, batch of 3")

    @pytest.mark.parametrize(
        "asked",
        [("--context-tokens", 9999), ("--batch-size", 64)],
        ids=["context", "batch"],
    )
    def test_beyond_them_it_needs_leave_and_is_marked(self, folder: Path, asked: tuple[str, int]) -> None:
        path = saved(folder, invented(conditions=FOUR_CONDITIONS, contexts=(256, 9999)))
        refused = call("solve", "--profile", path, *asked)
        left = sorted(folder.iterdir())
        allowed = call("solve", "--profile", path, *asked, "--extrapolate")

        assert (refused.exit_code, left) == (1, [path])
        assert refused.stderr.startswith("Error: ")
        assert allowed.exit_code == 0, allowed.output
        assert allowed.stdout.splitlines()[0].endswith("(extrapolated)")
        (warning,) = allowed.stderr.splitlines()
        assert warning.startswith("Warning: ")
        assert "Profile " in warning
        assert warning.endswith("before you rely on them.")

    @pytest.mark.parametrize(
        "command",
        [
            "solve -o -",
            "schedule -o -",
            "export --to sequoia -o tree.json",
            "export --to vllm -o -",
            "simulate --rate 1/s --prompt-tokens 8 --new-tokens 8 --duration 1s --prompt-time 1s",
        ],
    )
    def test_budget_beyond_measurements_is_the_largest_measured(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.chdir(folder)
        profile = invented(conditions=FOUR_CONDITIONS, contexts=(256, 4096))
        name, *args = command.split()
        args = [saved(folder, profile), *args] if name == "export" else ["--profile", saved(folder, profile), *args]
        largest, beyond = (
            call(name, *args, "--budget", budget, *(["--force"] if name == "export" else [])) for budget in (32, 512)
        )

        assert (largest.exit_code, beyond.exit_code) == (0, 0), beyond.output
        assert beyond.stdout.replace("512", "32") == largest.stdout.replace("512", "32")
        (warning,) = set(beyond.stderr.splitlines()) - set(largest.stderr.splitlines())
        assert warning.startswith("Warning: the budget is 512 nodes, but passes were measured up to 32 tokens")
        assert warning.endswith("Profile with --max-tokens 512 to plan for more.")

    def test_extrapolated_budget_is_marked(self, folder: Path) -> None:
        said = call("solve", "--profile", saved(folder, invented()), "--budget", 33, "--extrapolate")

        assert said.stdout.splitlines()[0].endswith("(extrapolated)")
        (warning,) = said.stderr.splitlines()
        assert warning.endswith("before you rely on them.")

    def test_length_that_was_not_measured_names_its_option(self, folder: Path) -> None:
        refused = call("solve", "--profile", saved(folder, invented()), "--new-tokens", 5)

        assert refused.exit_code == 1
        assert refused.stderr.startswith("Error: --new-tokens: acceptance of sequoia")

    def test_extrapolate_alone_changes_nothing(self, folder: Path) -> None:
        assert solved(folder, invented(), "--extrapolate") == solved(folder, invented())


class TestSchedule:
    def test_it_says_what_to_run_where(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS)
        said = solved(folder, profile)

        found = schedule(profile, 32)
        assert len(found.over_contexts) > 2
        for segment in (*found.over_contexts, *found.over_batch_sizes):
            batch, context = segment.batch_sizes, segment.context_tokens
            cells = [
                "sequoia",
                "0",
                str(batch[0]) if batch[0] == batch[1] else f"{batch[0]}-{batch[1]}",
                str(context[0]) if context[0] == context[1] else f"{context[0]}-{context[1]}",
                segment.option.shape,
            ]
            assert any(line.split("   ")[0] == "sequoia" and _cells(line)[:5] == cells for line in said.splitlines())

    def test_rule_and_temperature_are_filters(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS, tables=[TABLE, NOISY])
        both, one = solved_json(folder, profile), solved_json(folder, profile, "--temperature", 0.2)

        assert {plan["temperature"] for plan in both["schedule"]["plans"]} == {0.0, 0.2}
        assert {plan["temperature"] for plan in one["schedule"]["plans"]} == {0.2}

    def test_two_acceptances_at_one_condition_have_a_schedule_and_one_of_them_has_none(self, folder: Path) -> None:
        profile = invented(tables=[TABLE, NOISY])
        both, one = solved_json(folder, profile), solved_json(folder, profile, "--temperature", 0.2)

        assert [plan["temperature"] for plan in both["schedule"]["plans"]] == [0.0, 0.2]
        assert one["schedule"] is None

    @pytest.mark.parametrize(
        ("asked", "options"),
        [
            (("--level-width", 2), {"level_widths": 2}),
            (("--depth", 1), {"max_depth": 1}),
            (("--raw",), {"raw": True}),
        ],
        ids=str,
    )
    def test_its_trees_are_those_asked_for(
        self, folder: Path, asked: tuple[object, ...], options: dict[str, Any]
    ) -> None:
        found = solved_json(folder, invented(conditions=FOUR_CONDITIONS, tables=[NOISY]), "--budget", 16, *asked)

        profile = Profile.load(folder / "profile.yaml")
        speedups = [segment["choice"]["speedup"] for segment in found["schedule"]["over_contexts"]]
        assert speedups == [each.option.speedup.value for each in schedule(profile, 16, **options).over_contexts]
        assert speedups != [each.option.speedup.value for each in schedule(profile, 16).over_contexts]

    def test_budget_is_at_most_what_was_measured_everywhere(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS)
        first, *rest = profile.latencies
        fewer = replace(first, verify=type(first.verify)(first.verify.tokens[:4], first.verify.timings[:4]))
        found = solved_json(
            folder, replace(profile, latencies=(fewer, *rest)), "--context-tokens", 4096, "--budget", 32
        )

        assert found["max_nodes"] == 32
        assert max(plan["choice"]["nodes"] for plan in found["schedule"]["plans"]) <= 8

    def test_contexts_measured_at_one_batch_size_are_covered_without_gap(self, folder: Path) -> None:
        found = solved_json(folder, invented(conditions=[(256, 1), (1024, 1), (4096, 1)]))["schedule"]

        ranges = [segment["context_tokens"] for segment in found["over_contexts"]]
        assert ranges[0][0] == 256
        assert ranges[-1][1] == 4096
        assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
        assert found["over_batch_sizes"] == []

    def test_batch_sizes_at_one_context_are_told_once(self, folder: Path) -> None:
        said = solved(folder, invented(conditions=[(256, 1), (256, 16)]))

        assert said.count("What to run where") == 1
        assert "by batch size at each measured context length" in said

    def test_the_objective_tokens_has_none(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS)

        assert "What to run where" not in solved(folder, profile, "--objective", "tokens")
        assert solved_json(folder, profile, "--objective", "tokens")["schedule"] is None


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("   ") if cell.strip()]
