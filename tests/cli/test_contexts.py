"""Commands on a profile whose acceptance depends on the context: plans for one context, and where to switch."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import call, invented, saved, solved_json, succeed
from tests.planner.test_drafters import CONTEXTS as DRAFTER_CONTEXTS
from tests.planner.test_drafters import by_context as drafters_by_context
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.profile import Profile
from treeopt.records.step_latency import Imported
from treeopt.report.profile_text import profile_summary
from treeopt.report.text import range_text
from treeopt.trees import load_file

CONTEXTS = (64, 256, 896)
TABLES = tuple(AcceptanceTable([[first, second]] * 6) for first, second in ((0.9, 0.05), (0.6, 0.03), (0.2, 0.02)))
BUDGET = 8


def by_context() -> Profile:
    """Return a profile whose drafts are good at short contexts and bad at long ones; times are nearly the same."""
    profile = invented(conditions=[(context, 1) for context in CONTEXTS])
    (acceptance,) = profile.acceptances
    by_context = [replace(acceptance, context_tokens=at, table=p) for at, p in zip(CONTEXTS, TABLES, strict=True)]
    return replace(profile, acceptances=tuple(by_context))


def with_drafters() -> Profile:
    """Return a profile with Medusa and prompt lookup, and all acceptance measured at three contexts."""
    profile = drafters_by_context()
    (acceptance,) = profile.acceptances
    return replace(profile, acceptances=tuple(replace(acceptance, context_tokens=at) for at in DRAFTER_CONTEXTS))


class TestWarning:
    def test_a_target_alone_has_no_acceptance_that_may_differ(self, folder: Path) -> None:
        profile = invented(conditions=[(64, 1), (896, 1)])
        alone = replace(
            profile,
            pair=replace(profile.pair, draft=None),
            latencies=tuple(replace(latency, draft=None, overhead=None) for latency in profile.latencies),
            acceptances=(),
        )
        assert succeed("solve", "--profile", saved(folder, alone)).stderr == ""

    def test_acceptance_of_another_context_is_a_warning(self, folder: Path) -> None:
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
            path = saved(folder, replace(whole, acceptances=(acceptance,)))
            result = succeed("solve", "--profile", path, "--context-tokens", 500, "--budget", BUDGET, "--json")
            assert f"Warning: {warning}" in result.stderr.splitlines()
            assert warning in json.loads(result.stdout)["warnings"]

    def test_acceptance_of_the_only_context_is_no_warning(self, folder: Path) -> None:
        result = succeed("solve", "--profile", saved(folder, invented(conditions=[(256, 1), (256, 4)])))
        assert result.stderr == ""


class TestDrafters:
    def test_table_and_json_contain_the_switches_of_drafters(self, folder: Path) -> None:
        profile = with_drafters()
        result = succeed("solve", "--profile", saved(folder, profile), "--budget", BUDGET)
        segments = solved_json(folder, profile, "--budget", BUDGET)["drafters_over_contexts"]
        assert result.stderr == ""
        _, title, rest = result.stdout.partition("\nAll drafters by context length:\n\n")
        assert title
        rows = [line.split()[:2] for line in rest.partition("\n\n")[0].splitlines()[1:]]
        assert rows == [[range_text(segment["context_tokens"], "-"), segment["drafter"]] for segment in segments]
        assert len(rows) > 1
        assert (segments[0]["context_tokens"][0], segments[-1]["context_tokens"][1]) == (256, 4096)

    def test_tree_file_is_for_the_context(self, folder: Path) -> None:
        path, predicted = saved(folder, with_drafters()), []
        for context in (256, 640, 1024):
            options = ("--drafter", "medusa", "--context-tokens", context, "--objective", "tokens", "--budget", 2)
            succeed("solve", "--profile", path, *options)
            content = load_file(folder / "tree.json")
            assert content.tree.nodes == 2
            predicted.append(content.provenance.tokens_per_step)
        assert predicted == pytest.approx([1.8, 1.7, 1.6])

    def test_a_drafter_that_was_measured_at_one_context_is_a_warning(self, folder: Path) -> None:
        whole = with_drafters()
        medusa, lookup = whole.drafters
        profile = replace(whole, drafters=(replace(medusa, trees=medusa.trees_at(0.0)[:1]), lookup))
        warning = (
            "acceptance of medusa was measured at 256 tokens of context and may differ at 500, 1024, 4096. "
            "Profile with --context-tokens 256,500,1024,4096."
        )
        options = ("--context-tokens", 500, "--budget", BUDGET, "--json")
        result = succeed("solve", "--profile", saved(folder, profile), *options)
        assert result.stderr.splitlines()[0] == f"Warning: {warning}"
        assert json.loads(result.stdout)["warnings"] == [warning]


class TestOtherCommands:
    def test_exports_are_for_the_context(self, folder: Path) -> None:
        path, lengths, rates = saved(folder, by_context()), [], []
        for context in CONTEXTS[:2]:
            options = ("--context-tokens", context, "-o", "-")
            setting = succeed("export", path, "--to", "vllm", "--draft-model", "d", *options)
            assert "Warning" not in setting.stderr
            lengths.append(json.loads(setting.stdout)["num_speculative_tokens"])
        assert lengths[0] > lengths[1] > 0
        for context in (64, 160, 256):
            acceptance = succeed("export", path, "--to", "speculation-profile", "--context-tokens", context, "-o", "-")
            rates.append(json.loads(acceptance.stdout)["conditional_accept_rates"][0])
        assert rates == pytest.approx([0.9, 0.75, 0.6])

    def test_export_for_another_context_than_the_measured_one_is_a_warning(self, folder: Path) -> None:
        path = saved(folder, invented(conditions=[(64, 1), (896, 1)]))
        command = ("export", path, "--to", "vllm", "--draft-model", "d", "-o", "-")
        warning = "acceptance was measured right after the prompts and may differ at 300"
        assert warning in call(*command, "--context-tokens", 300).stderr
        assert "may differ" not in call(*command).stderr

    def test_comparison_is_for_the_context(self, folder: Path) -> None:
        path, tokens = saved(folder, by_context()), []
        succeed("solve", "--profile", path, "--budget", BUDGET, "-o", "t.json")
        for context in (64, 160, 256):
            result = succeed("compare", "t.json", "--profile", path, "--context-tokens", context, "--json")
            tokens.append(json.loads(result.stdout)["trees"][0]["predicted"]["tokens_per_step"])
        assert tokens[0] > tokens[1] > tokens[2]
        assert tokens[1] == pytest.approx((tokens[0] + tokens[2]) / 2)

    def test_summary_of_a_profile_names_the_contexts(self) -> None:
        summary = profile_summary(by_context())
        for context in CONTEXTS:
            assert f"acceptance, sequoia at temperature 0, {context} tokens of context, 999 positions" in summary
