"""`--max-new-tokens` of `treeopt bench`: what is promised is of texts as long as those that are decoded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import call
from tests.planner.test_new_tokens import TEXTS, measured
from treeopt.planner import for_new_tokens, step_model
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, TreeFile, chain

TREE = chain(3)
LITTLE = ("--repeats", 1, "--max-prompts", 4, "--threads", 1, "-o", "found.json")


@pytest.fixture
def easier_later(folder: Path, greedy_profile: Path) -> Profile:
    """Return a profile whose texts begin with their hardest tokens."""
    made = replace(Profile.load(greedy_profile), acceptances=(measured(TEXTS),))
    made.save(folder / "profile.yaml")
    TreeFile(tree=TREE).save(folder / "tree.json")
    return made


def promised() -> list[tuple[TokenTree, float]]:
    """Return the trees that were raced, but for plain decoding, and the tokens per step that were predicted of them."""
    found = json.loads(Path("found.json").read_text("utf-8"))
    rows = found["sizes"][0]["rows"] if "sizes" in found else found.get("trees", [found])
    raced = [(TokenTree(each.get("parents", TREE.parents)), each) for each in rows]
    predicted = "predicted_tokens_per_step"
    return [
        (tree, each[predicted] if predicted in each else each["predicted"]["tokens_per_step"])
        for tree, each in raced
        if tree.max_depth > 1
    ]


@pytest.mark.parametrize(
    "command", [("tree", "tree.json"), ("batches", "tree.json", "--batch-sizes", 1), ("grid",)], ids=str
)
def test_it_is_of_so_many_tokens(easier_later: Profile, command: tuple[object, ...]) -> None:
    result = call("bench", *command, *LITTLE, "--max-new-tokens", 12)
    short, whole = (step_model(each) for each in (for_new_tokens(easier_later, 12), easier_later))

    assert result.exit_code == 0, result.output
    assert promised()
    for tree, tokens in promised():
        assert tokens == pytest.approx(short.tokens_per_step(tree), rel=1e-6)
        assert tokens < 0.9 * whole.tokens_per_step(tree)  # negative control
