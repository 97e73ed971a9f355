"""`treeopt solve` on invented machines whose plans are known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invented import (
    FOUR_CONDITIONS,
    NOISY,
    TABLE,
    invented,
    refused,
    saved,
    solved,
    solved_json,
    succeed,
)
from treeopt.planner import Confidence, Plan, plan, schedule
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.report.plan_text import conclusions
from treeopt.report.plan_warnings import plan_warnings
from treeopt.solver import solve
from treeopt.trees import load, load_file

RISING = AcceptanceTable([[0.3, 0.05, 0.6], [0.6, 0.05, 0.06]], standard_error=np.full((2, 3), 0.02))
FEW = ("--budget", 8)


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
        assert not any("What to run where" in line or " rank " in line for line in lines)

    def test_candidates_are_listed_once_with_one_choice(self, folder: Path) -> None:
        lines = solved(folder, invented(), "--budget", 2).splitlines()
        kinds = [line[2:].split()[0] for line in lines if line[2:].startswith(("plain ", "chain ", "tree "))]
        assert kinds == ["plain", "chain"]
        assert sum(line.startswith("*") for line in lines) == 1

    def test_one_thread_is_singular(self, folder: Path) -> None:
        profile = replace(invented(), machine=replace(invented().machine, threads=1))
        assert "invented (1 thread): " in solved(folder, profile, *FEW)

    def test_default_budget_is_the_measured_one(self, folder: Path) -> None:
        assert "up to 32 nodes" in solved(folder, invented(conditions=[(256, 4)]))

    def test_depth_0_is_plain_decoding(self, folder: Path) -> None:
        for limit in (("--depth", 0), ("--budget", 1)):
            assert "Plain decoding: the limits, or what was" in solved(folder, invented(), *limit)

    def test_standard_output_has_the_tree_alone(self, folder: Path) -> None:
        result = succeed("solve", "--profile", saved(folder, invented()), "--output", "-")
        assert json.loads(result.stdout)["parents"] == plan(invented(), 32).choice.tree.parents.tolist()
        assert "Fastest: " in result.stderr


class TestBound:
    def test_bound_is_rounded_up(self) -> None:
        profile = invented()
        result = plan(profile, 16)
        loose = replace(result, fastest=replace(result.fastest, bound=1.0041 * result.fastest.speedup))
        assert (
            conclusions(ProfilePlan(profile=profile, plan=loose))[1]
            == "No tree of up to 16 nodes and depth 4 can be more than 0.5 % faster."
        )

    def test_bound_names_the_width_limit(self, folder: Path) -> None:
        assert "No tree of up to 32 nodes, 2 to a level, and depth 4 " in solved(folder, invented(), "--level-width", 2)
        assert load(folder / "tree.json").level_widths.max() == 2
        assert load(folder / "tree.json") == plan(invented(), 32, level_widths=2).choice.tree


class TestConfidence:
    def test_uncertain_choice_is_a_warning(self, folder: Path) -> None:
        profile = invented(verify_noise=0.3)
        (warning,) = succeed("solve", "--profile", saved(folder, profile)).stderr.splitlines()
        probability = plan(profile, 32).confidence.probability
        assert probability < 0.9
        assert warning.startswith("Warning: ")
        assert f"is only {int(100 * probability)} %." in warning
        assert "if verification time were known exactly" in warning
        assert warning.endswith("Profile with a longer --time-budget, or more --rounds.")

    @pytest.mark.parametrize(
        ("weakest", "source", "remedy"),
        [
            ("acceptance", "acceptance", "--positions"),
            ("verify", "verification time", "--rounds"),
            ("draft", "draft time", "--rounds"),
            ("overhead", "overhead", "--rounds"),
        ],
    )
    def test_every_source_has_its_remedy(
        self, weakest: str, source: str, remedy: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        unsure = Confidence(probability=0.5, if_exact={weakest: 0.75})
        monkeypatch.setattr(Plan, "confidence", unsure)
        (warning,) = plan_warnings(plan(invented(), 8))
        assert "75 %" in str(warning)
        assert f"if {source} were known exactly" in str(warning)
        assert warning.action.endswith(f"{remedy}.")

    @pytest.mark.parametrize(("probability", "warnings"), [(0.9, 0), (0.899, 1)])
    def test_limit_is_90_percent(self, probability: float, warnings: int, monkeypatch: pytest.MonkeyPatch) -> None:
        confidence = Confidence(probability=probability, if_exact={"draft": 1.0})
        monkeypatch.setattr(Plan, "confidence", confidence)
        assert len(plan_warnings(plan(invented(), 8))) == warnings


class TestSmoothing:
    def test_smoothing_is_reported_and_left_out_with_raw(self, folder: Path) -> None:
        profile = invented(tables=[NOISY])
        line = "Smoothed 4 acceptance entries that increased by rank through noise (largest change 0.005); --raw uses them as measured."
        assert line in solved(folder, profile, *FEW).splitlines()
        assert "moothed" not in solved(folder, profile, "--raw", "--objective", "tokens")
        expected = NOISY.reach(solve(NOISY, 32).tree(32, 2))
        assert load_file(folder / "tree.json").reach == pytest.approx(expected, rel=1e-5)

    def test_increases_that_noise_does_not_explain_are_reported(self, folder: Path) -> None:
        lines = solved(folder, invented(tables=[RISING])).splitlines()
        assert "Kept 1 increase of acceptance by rank that noise does not explain." in lines


def test_objective_tokens_ignores_times(folder: Path) -> None:
    profile = invented(conditions=FOUR_CONDITIONS)
    output, most = solved(folder, profile, "--objective", "tokens"), solve(TABLE, 32)
    tree = most.tree(32, 4)
    assert load(folder / "tree.json") == tree
    assert f"Most tokens: a tree of {tree.nodes} nodes, depth 4, {most.expected_tokens[4, 32]:.2f} per step." in output
    assert "No tree of up to 32 nodes and depth 4 yields more." in output
    assert "chance" not in output
    assert "What to run where" not in output
    assert solved_json(folder, profile, "--objective", "tokens")["schedule"] is None


def test_a_faster_padded_pass_is_proposed(folder: Path) -> None:
    slow_in_between = invented(verify=lambda n, _context, _batch: 0.02 if 8 < n < 16 else 0.01 + 1e-5 * n)
    output = solved(folder, slow_in_between, "--budget", 12)
    assert "tree of 12 nodes" in output
    assert "Run the verification pass padded to 16 tokens: that is faster." in output


class TestConditions:
    def test_interpolation_is_no_warning(self, folder: Path) -> None:
        path = saved(folder, invented(conditions=FOUR_CONDITIONS, contexts=(256, 4096)))
        result = succeed("solve", "--profile", path, "--context-tokens", 1000, "--batch-size", 3, *FEW)
        assert result.stderr == ""
        assert result.stdout.splitlines()[0].endswith("sequoia at temperature 0, 1000 tokens of context, batch of 3")

    @pytest.mark.parametrize(
        ("option", "refusal"),
        [(("--context-tokens", 9999), True), (("--batch-size", 64), True), (("--budget", 33), False)],
        ids=["context", "batch", "budget"],
    )
    def test_extrapolation_is_an_option_and_a_warning(
        self, folder: Path, option: tuple[str, int], refusal: bool
    ) -> None:
        path = saved(folder, invented(conditions=FOUR_CONDITIONS, contexts=(256, 9999)))
        command = ("solve", "--profile", path, *option)
        if refusal:
            refused(*command)
        result = succeed(*command, "--extrapolate")
        assert result.stdout.splitlines()[0].endswith("(extrapolated)")
        (warning,) = result.stderr.splitlines()
        assert warning.endswith("before you rely on them.")

    def test_extrapolate_alone_changes_nothing(self, folder: Path) -> None:
        assert solved(folder, invented(), *FEW, "--extrapolate") == solved(folder, invented(), *FEW)

    @pytest.mark.usefixtures("folder")
    @pytest.mark.parametrize(
        ("option", "command"),
        [
            ("--budget", "solve -o -"),
            ("--budget", "schedule -o -"),
            ("--budget", "export --to sequoia -o tree.json --force"),
            ("--budget", "export --to vllm -o -"),
            (
                "--budget",
                "simulate --rate 1/s --prompt-tokens 8 --new-tokens 8 --duration 1s --prompt-time 1s",
            ),
            ("--depth", "solve -o -"),
            ("--depth", "schedule -o -"),
            ("--depth", "export --to vllm -o -"),
        ],
    )
    def test_limits_beyond_measurements_are_cut_to_them(self, folder: Path, option: str, command: str) -> None:
        path = saved(folder, invented(conditions=[(256, 1), (256, 4)]))
        name, *options = command.split()
        options = [path, *options] if name == "export" else ["--profile", path, *options]
        measured, start, end = {
            "--budget": (
                32,
                "the budget is 512 nodes, but passes were measured up to 32 tokens",
                "Profile with --max-tokens 512 to plan for more.",
            ),
            "--depth": (
                4,
                "the depth is 512, but acceptance was measured to depth 4",
                "Ask for at most 4, or measure deeper.",
            ),
        }[option]
        largest, beyond = (succeed(name, *options, option, limit) for limit in (measured, 512))
        assert beyond.stdout.replace("512", str(measured)) == largest.stdout.replace("512", str(measured))
        (warning,) = set(beyond.stderr.splitlines()) - set(largest.stderr.splitlines())
        assert warning.startswith(f"Warning: {start}")
        assert warning.endswith(end)


class TestSchedule:
    def test_table_and_json_contain_every_segment(self, folder: Path) -> None:
        profile = invented(conditions=FOUR_CONDITIONS)
        rows = [
            [cell.strip() for cell in line.split("   ") if cell.strip()]
            for line in solved(folder, profile, *FEW).splitlines()
        ]
        result = schedule(profile, max_nodes=8)
        assert len(result.over_contexts) > 2
        for segment in (*result.over_contexts, *result.over_batch_sizes):
            batch, context = (
                str(first) if first == last else f"{first}-{last}"
                for first, last in (segment.batch_sizes, segment.context_tokens)
            )
            cells = ["sequoia", "0", batch, context, segment.option.shape]
            assert any(row[:5] == cells for row in rows)
        written = solved_json(folder, profile, *FEW)["schedule"]["over_contexts"]
        for row, segment in zip(written, result.over_contexts, strict=True):
            assert (row["rule"], row["temperature"]) == ("sequoia", 0.0)
            assert (tuple(row["batch_sizes"]), tuple(row["context_tokens"])) == (
                segment.batch_sizes,
                segment.context_tokens,
            )
            assert row["choice"]["parents"] == segment.option.tree.parents.tolist()

    @pytest.mark.parametrize(
        ("arguments", "options"),
        [
            (("--level-width", 2), {"level_widths": 2}),
            (("--depth", 1), {"max_depth": 1}),
            (("--raw",), {"raw": True}),
        ],
        ids=str,
    )
    def test_limits_apply_to_its_trees(
        self, folder: Path, arguments: tuple[object, ...], options: dict[str, Any]
    ) -> None:
        report = solved_json(folder, invented(conditions=FOUR_CONDITIONS, tables=[NOISY]), *FEW, *arguments)
        profile = Profile.load(folder / "profile.yaml")
        speedups = [segment["choice"]["speedup"] for segment in report["schedule"]["over_contexts"]]
        limited, free = (schedule(profile, max_nodes=8, **kwargs).over_contexts for kwargs in (options, {}))
        assert speedups == [segment.option.speedup.value for segment in limited]
        assert speedups != [segment.option.speedup.value for segment in free]

    def test_batch_sizes_at_one_context_are_one_table(self, folder: Path) -> None:
        output = solved(folder, invented(conditions=[(256, 1), (256, 16)]), *FEW)
        assert output.count("What to run where") == 1
        assert "by batch size at each measured context length" in output
