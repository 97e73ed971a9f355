"""`--new-tokens` and `--max-new-tokens`: plans and predictions for outputs of that length."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import invented, refused, succeed, warnings_of
from tests.planner.test_drafters import lookup, lookup_rows
from tests.planner.test_new_tokens import SHORT, TEXTS, measured
from treeopt.planner import for_new_tokens, plan, step_model
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, TreeFile, chain, load_file
from treeopt.trees.tree_schedule import load_schedule

LENGTH = ("--new-tokens", SHORT)
BUDGET = ("--budget", 8)


@pytest.fixture
def profile(folder: Path) -> Profile:
    """Return a profile of sequences that begin with their hardest tokens."""
    result = replace(invented(), acceptances=(measured(TEXTS),))
    result.save(folder / "profile.yaml")
    return result


def test_plan_is_for_the_beginnings_of_sequences(profile: Profile) -> None:
    expected = plan(for_new_tokens(profile, SHORT), 8)
    output = succeed("solve", *LENGTH, *BUDGET).stdout
    assert output.splitlines()[0].endswith(f", 256 tokens of context, sequences of {SHORT} new tokens")
    content = load_file("tree.json")
    assert content.tree == expected.choice.tree != plan(profile, 8).choice.tree
    assert content.provenance is not None
    assert content.provenance.source == f"profile.yaml; sequences of {SHORT} new tokens"
    assert content.provenance.tokens_per_step == pytest.approx(expected.choice.tokens_per_step.value)
    short, whole = (json.loads(succeed("solve", "--json", *BUDGET, *options).stdout) for options in (LENGTH, ()))
    assert (short["new_tokens"], whole["new_tokens"]) == (SHORT, None)
    assert TokenTree(short["candidates"]["chain"]["parents"]) == expected.chain.tree
    assert short["candidates"]["chain"]["tokens_per_step"] < whole["candidates"]["chain"]["tokens_per_step"]


def test_schedule_is_for_the_beginnings_of_sequences(profile: Profile) -> None:
    latencies = invented(conditions=[(256, 1), (256, 4)]).latencies
    replace(profile, latencies=latencies).save("profile.yaml")
    depths = {}
    for name, options in (("short.json", LENGTH), ("whole.json", ())):
        succeed("schedule", *options, *BUDGET, "-o", name)
        depths[name] = load_schedule(Path(name)).tree(1).max_depth
    assert depths["short.json"] < depths["whole.json"]
    source = load_schedule(Path("short.json")).provenance.source
    assert source == f"profile.yaml; sequences of {SHORT} new tokens"


@pytest.mark.usefixtures("profile")
def test_longer_outputs_than_measured_are_a_warning() -> None:
    assert (
        "Warning: acceptance was measured up to token 440 of a sequence, and may differ beyond it. "
        f"Profile with --positions {441 * len(TEXTS)}."
    ) in warnings_of(succeed("solve", "--new-tokens", 441, *BUDGET))


def test_comparison_of_drafters_is_refused(profile: Profile) -> None:
    replace(profile, drafters=(lookup(profile, lookup_rows()),)).save("profile.yaml")
    line = refused("solve", *LENGTH, code=2)
    assert "only whole sequences were measured. Plan for the draft model alone: --drafter model." in line
    succeed("solve", *LENGTH, *BUDGET, "--drafter", "model")
    assert load_file("tree.json").tree == plan(for_new_tokens(profile, SHORT), 8).choice.tree


TREE = chain(3)
LITTLE = ("--repeats", 1, "--max-prompts", 4, "--threads", 1, "-o", "bench.json")


def predicted_tokens() -> list[tuple[TokenTree, float]]:
    """Return the trees of a benchmark, without plain decoding, with their predicted tokens per step."""
    content = json.loads(Path("bench.json").read_text("utf-8"))
    rows = content["sizes"][0]["rows"] if "sizes" in content else content.get("trees", [content])
    trees = [TokenTree(row.get("parents", TREE.parents)) for row in rows]
    return [
        (tree, row["predicted"]["tokens_per_step"]) for tree, row in zip(trees, rows, strict=True) if tree.max_depth > 1
    ]


@pytest.mark.parametrize(
    "command", [("tree", "tree.json"), ("batches", "tree.json", "--batch-sizes", 1), ("grid",)], ids=str
)
def test_predictions_are_for_outputs_of_the_length(
    folder: Path, greedy_profile: Path, command: tuple[object, ...]
) -> None:
    profile = replace(Profile.load(greedy_profile), acceptances=(measured(TEXTS),))  # hardest at the beginning
    profile.save(folder / "profile.yaml")
    TreeFile(tree=TREE).save(folder / "tree.json")
    succeed("bench", *command, *LITTLE, "--max-new-tokens", 12)
    short, whole = step_model(for_new_tokens(profile, 12)), step_model(profile)
    assert predicted_tokens()
    for tree, tokens in predicted_tokens():
        assert tokens == pytest.approx(short.tokens_per_step(tree), rel=1e-6)
        assert tokens < 0.9 * whole.tokens_per_step(tree)  # negative control
