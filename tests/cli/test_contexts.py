"""Commands on a profile whose acceptance was measured by context: they plan for the one asked for, and say where to switch."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import call, invented, saved, solved_json
from tests.planner.test_drafters import CONTEXTS as DRAFTED_AT
from tests.planner.test_drafters import by_context as with_drafters
from treeopt.planner import plan, schedule
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.records.step_latency import Imported

GOOD, BAD = AcceptanceTable([[0.9, 0.05]] * 6), AcceptanceTable([[0.2, 0.02]] * 6)
CONTEXTS = (64, 256, 896)


def by_context(batches: tuple[int, ...] = (1,)) -> Profile:
    """Return a profile whose drafts are good at short contexts and bad at long ones; times are nearly the same."""
    found = invented(conditions=[(context, batch) for batch in batches for context in CONTEXTS])
    (one,) = found.acceptances
    tables = (GOOD, AcceptanceTable([[0.6, 0.03]] * 6), BAD)
    return replace(
        found,
        acceptances=tuple(replace(one, context_tokens=at, table=p) for at, p in zip(CONTEXTS, tables, strict=True)),
    )


def drafters_by_context() -> Profile:
    """Return a profile with Medusa and prompt lookup, and all acceptance measured at three contexts."""
    found = with_drafters()
    (one,) = found.acceptances
    return replace(found, acceptances=tuple(replace(one, context_tokens=at) for at in DRAFTED_AT))


class TestSolve:
    def test_it_says_at_which_context_to_switch(self, folder: Path) -> None:
        profile = by_context()
        result = call("solve", "--profile", saved(folder, profile))
        expected = schedule(profile, 32).switches

        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        lines = [line for line in result.stdout.splitlines() if line.startswith("Switch at ")]
        assert len(lines) == len(expected) > 0
        for line, (before, after) in zip(lines, expected, strict=True):
            assert line.startswith(f"Switch at {after.context_tokens[0]} tokens of context: from ")
            assert f"{before.option.shape} to " in line
            assert line.endswith(f"{after.option.shape}.")

    def test_and_so_does_the_json(self, folder: Path) -> None:
        profile = by_context((1, 4))
        found = solved_json(folder, profile)["schedule"]["switches"]
        expected = schedule(profile, 32).switches

        assert len(found) == len(expected) > 1
        for each, (before, after) in zip(found, expected, strict=True):
            assert each["context_tokens"] == after.context_tokens[0]
            assert each["batch_size"] == after.batch_sizes[0]
            assert (each["temperature"], each["rule"]) == (0.0, "sequoia")
            assert each["before"]["parents"] == before.option.tree.parents.tolist()
            assert each["after"]["parents"] == after.option.tree.parents.tolist()

    def test_where_none_pays_it_says_so(self, folder: Path) -> None:
        profile = invented(conditions=[(64, 1), (65, 1)], contexts=(64, 65))
        said = call("solve", "--profile", saved(folder, profile)).stdout
        assert "\nFrom 64 to 65 tokens of context no switch of trees pays.\n" in said

    def test_several_batch_sizes_are_told_apart(self, folder: Path) -> None:
        said = call("solve", "--profile", saved(folder, by_context((1, 4)))).stdout
        assert " tokens of context, temperature 0, batch of 4: from the " in said

    @pytest.mark.parametrize("context", [100, 256])
    def test_a_plan_takes_the_acceptance_of_the_context(self, folder: Path, context: int) -> None:
        found = solved_json(folder, by_context(), "--context-tokens", context)
        expected = plan(by_context(), 32, context_tokens=context)

        assert found["context_tokens"] == context
        assert found["candidates"]["tree"]["tokens_per_step"] == expected.tree.tokens_per_step.value
        assert found["warnings"] == []


class TestWarning:
    def test_a_plan_for_another_context_than_the_measured_one_says_so(self, folder: Path) -> None:
        whole, (first, *_) = by_context(), by_context().acceptances
        remedy = "Profile with --context-tokens 64,256,500,896."
        import_again = "Import acceptance that was measured there."
        imported = (Imported(what="acceptance", source="a.json"),)
        for acceptance, warning in (
            (first, f"acceptance was measured at 64 tokens of context and may differ at 256, 500, 896. {remedy}"),
            (
                replace(first, context_tokens=None),
                f"acceptance was measured right after the prompts and may differ at 256, 500, 896 tokens of context. {remedy}",
            ),
            (
                replace(first, context_tokens=None, imported=imported),
                f"the imported acceptance may differ at 256, 500, 896 tokens of context. {import_again}",
            ),
        ):
            profile = replace(whole, acceptances=(acceptance,))
            result = call("solve", "--profile", saved(folder, profile), "--context-tokens", 500)
            assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, f"Warning: {warning}")
            assert warning in solved_json(folder, profile, "--context-tokens", 500)["warnings"]

    def test_one_context_planned_for_as_measured_does_not(self, folder: Path) -> None:
        result = call("solve", "--profile", saved(folder, invented(conditions=[(256, 1), (256, 4)])))
        assert (result.exit_code, result.stderr) == (0, "")


class TestDrafters:
    def test_it_says_where_to_switch_drafters(self, folder: Path) -> None:
        profile = drafters_by_context()
        result = call("solve", "--profile", saved(folder, profile))
        assert (result.exit_code, result.stderr) == (0, "")
        said = [line for line in result.stdout.splitlines() if line.startswith("Among all drafters, switch at ")]
        assert len([line for line in result.stdout.splitlines() if line == "All drafters by context length:"]) == 1

        found = solved_json(folder, profile)["drafters_over_contexts"]
        assert len(said) == len(found) - 1 > 0
        for line, after in zip(said, found[1:], strict=True):
            assert line.startswith(
                f"Among all drafters, switch at {after['context_tokens'][0]} tokens of context: from "
            )
            assert after["drafter"].replace("model", "the draft model") in line
        assert found[0]["context_tokens"][0] == 256
        assert found[-1]["context_tokens"][1] == 4096

    def test_one_drafter_alone(self, folder: Path) -> None:
        found = solved_json(folder, drafters_by_context(), "--drafter", "medusa")["drafters_over_contexts"]
        assert {each["drafter"] for each in found} == {"medusa"}

    def test_the_tree_that_is_written_is_that_of_the_context(self, folder: Path) -> None:
        from treeopt.trees import load_file

        path, promised = saved(folder, drafters_by_context()), []
        for context in (256, 640, 1024):
            options = ("--drafter", "medusa", "--context-tokens", context, "--objective", "tokens", "--budget", 2)
            assert call("solve", "--profile", path, *options).exit_code == 0
            file = load_file(folder / "tree.json")
            assert file.tree.nodes == 2
            promised.append(file.provenance.tokens_per_step)
        assert promised == pytest.approx([1.8, 1.7, 1.6])

    def test_one_that_was_measured_at_one_context_says_so(self, folder: Path) -> None:
        whole = drafters_by_context()
        medusa, lookup = whole.drafters
        profile = replace(whole, drafters=(replace(medusa, trees=medusa.trees_at(0.0)[:1]), lookup))
        told = (
            "acceptance of medusa was measured at 256 tokens of context and may differ at 500, 1024, 4096. "
            "Profile with --context-tokens 256,500,1024,4096."
        )
        result = call("solve", "--profile", saved(folder, profile), "--context-tokens", 500)
        assert result.stderr.splitlines() == [f"Warning: {told}"]
        assert solved_json(folder, profile, "--context-tokens", 500)["warnings"] == [told]


class TestOthers:
    def test_exports_take_the_length_that_is_best_at_the_context(self, folder: Path) -> None:
        path, lengths = saved(folder, by_context()), []
        for context in (64, 256):
            result = call("export", path, "--to", "vllm", "--context-tokens", context, "--draft-model", "d", "-o", "-")
            assert result.exit_code == 0, result.output
            assert result.stderr.count("Warning") == 0
            lengths.append(json.loads(result.stdout)["num_speculative_tokens"])
        assert lengths[0] > lengths[1] > 0

    def test_exports_for_another_context_than_the_measured_one_say_so(self, folder: Path) -> None:
        path = saved(folder, invented(conditions=[(64, 1), (896, 1)]))
        said = ("export", path, "--to", "vllm", "--draft-model", "d", "-o", "-")
        assert (
            "acceptance was measured right after the prompts and may differ at 300"
            in call(*said, "--context-tokens", 300).stderr
        )
        assert "may differ" not in call(*said).stderr

    def test_rates_that_are_exported_are_those_of_the_context(self, folder: Path) -> None:
        path, rates = saved(folder, by_context()), []
        for context in (64, 160, 256):
            result = call("export", path, "--to", "speculation-profile", "--context-tokens", context, "-o", "-")
            assert result.exit_code == 0, result.output
            rates.append(json.loads(result.stdout)["conditional_accept_rates"][0])
        assert rates == pytest.approx([0.9, 0.75, 0.6])

    def test_compare_predicts_at_the_context(self, folder: Path) -> None:
        path = saved(folder, by_context())
        assert call("solve", "--profile", path, "-o", "t.json").exit_code == 0
        rows = []
        for context in (64, 160, 256):
            result = call("compare", "t.json", "--profile", path, "--context-tokens", context, "--json")
            assert result.exit_code == 0, result.output
            rows.append(json.loads(result.stdout)["trees"][0]["predicted"]["tokens_per_step"])
        assert rows[0] > rows[1] > rows[2]
        assert rows[1] == pytest.approx((rows[0] + rows[2]) / 2)

    def test_a_profile_names_the_context_of_each_table(self) -> None:
        from treeopt.report.profile_text import profile_summary

        said = profile_summary(by_context())
        for context in CONTEXTS:
            assert f"acceptance, sequoia at temperature 0, {context} tokens of context, 999 positions" in said
