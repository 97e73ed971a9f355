"""`--max-new-tokens` of `treeopt bench`: predictions are for outputs of that length."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import succeed
from tests.planner.test_new_tokens import TEXTS, measured
from treeopt.planner import for_new_tokens, step_model
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, TreeFile, chain

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
