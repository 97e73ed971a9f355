"""`treeopt compare`: trees of any origin under one profile."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import STEEP, TABLE, call, invented, saved, verify_s
from treeopt import Profile
from treeopt.planner import plan, step_model
from treeopt.trees import TokenTree, chain, load_file

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
BUNDLED = Path(__file__).resolve().parents[2] / "docs" / "profiles" / "bundled-2-cores.yaml"


@pytest.fixture
def files(folder: Path) -> Path:
    saved(folder, invented())
    TokenTree([-1, 0, 0, 1, 1, 3]).save("tree.json")
    Path("two.py").write_text("narrow = [[0], [0, 0]]\nwide = [[0], [1], [2], [0, 0]]\n", "utf-8")
    return folder


def compared(*arguments: object) -> dict:
    result = call("compare", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("files")
def test_every_tree_of_every_file_is_a_row():
    found = compared("tree.json", "two.py")
    assert [row["label"] for row in found["trees"]] == ["tree.json", "two.py: narrow", "two.py: wide"]
    model = step_model(Profile.load("profile.yaml"))
    for row, tree in zip(
        found["trees"], [TokenTree([-1, 0, 0, 1, 1, 3]), chain(2), TokenTree([-1, 0, 0, 0, 1])], strict=True
    ):
        assert (row["nodes"], row["depth"]) == (tree.nodes, tree.max_depth)
        assert row["predicted"]["speedup"] == pytest.approx(model.speedup(tree))
        assert row["predicted"]["tokens_per_step"] == pytest.approx(model.tokens_per_step(tree))
        assert row["best_of_size"]["nodes"] == tree.nodes
        assert row["best_of_size"]["speedup"] >= row["predicted"]["speedup"]


@pytest.mark.usefixtures("files")
def test_the_fastest_is_that_of_solve():
    fastest = plan(Profile.load("profile.yaml"), 32).choice
    assert compared("tree.json")["fastest"]["speedup"] == pytest.approx(fastest.speedup.value)


@pytest.mark.usefixtures("files")
def test_the_table_has_the_same_numbers():
    printed = call("compare", "tree.json", "two.py").stdout.splitlines()
    found = compared("tree.json", "two.py")
    rows = [line for line in printed if line.startswith(("tree.json", "two.py"))]
    for line, row in zip(rows, found["trees"], strict=True):
        speedups = [f"{row[key]['speedup']:.2f}" for key in ("predicted", "best_of_size")]
        assert line.split()[-2:] == speedups
    assert any(line.startswith("plain decoding") for line in printed)
    assert any(line.startswith("fastest: ") for line in printed)


@pytest.mark.usefixtures("files")
def test_a_tree_beyond_the_profile_is_shown_with_the_reason():
    chain(9).save("deep.json")
    result = call("compare", "deep.json", "tree.json")
    assert result.exit_code == 0
    assert "not predicted: the acceptance table was measured to depth 4" in result.stdout
    assert compared("deep.json")["trees"][0]["predicted"] is None


def test_trees_and_the_fastest_hold_at_the_context_asked_for(folder: Path):
    def verify(nodes: int, tokens: int, batch: int) -> float:  # long texts leave no arithmetic idle
        return verify_s(nodes, tokens, batch) + (2e-3 * nodes if tokens > 1000 else 0.0)

    saved(folder, invented(conditions=[(256, 1), (4096, 1)], verify=verify))
    chain(2).save("tree.json")
    profile = Profile.load("profile.yaml")
    for context in (256, 4096):
        found = compared("tree.json", "--context-tokens", context)
        expected = plan(profile, 32, context_tokens=context)
        assert found["fastest"]["speedup"] == pytest.approx(expected.choice.speedup.value)
        assert found["plain"]["step_s"] == pytest.approx(verify(1, context, 1))
        assert found["trees"][0]["predicted"]["speedup"] == pytest.approx(expected.model.speedup(chain(2)))


def test_rule_and_temperature_choose_the_acceptance(folder: Path):
    saved(folder, invented(tables=[TABLE, STEEP], others={"target": STEEP}))
    chain(3).save("tree.json")
    model = step_model(Profile.load("profile.yaml"), rule="target")
    assert compared("tree.json", "--rule", "target")["trees"][0]["predicted"]["speedup"] == pytest.approx(
        model.speedup(chain(3))
    )
    assert compared("tree.json", "--temperature", 0.2)["temperature"] == 0.2


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "Missing argument"),
        (("nothing.json",), 1, "no such file"),
        (("tree.json", "--profile", "nothing.yaml"), 1, "Run treeopt profile first"),
        (("profile.yaml",), 1, "profile.yaml: "),
        (("tree.json", "--rule", "typical"), 2, "--lossy"),
        (("tree.json", "--context-tokens", 99999), 1, "was not measured"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, code, said):
    result = call("compare", *arguments)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.source
@pytest.mark.usefixtures("folder")
def test_published_trees_under_the_bundled_profile():
    paths = sorted(SHARED.rglob("*.pt")) + sorted(SHARED.rglob("*_63.json"))
    trees = [path for path in paths if "acceptance" not in path.name]
    if not trees:
        pytest.skip("../shared/data is not there")
    found = compared(*trees, "--profile", BUNDLED)
    assert len(found["trees"]) == len(trees)
    for row, path in zip(found["trees"], trees, strict=True):
        named = load_file(path)
        assert row["nodes"] == named.tree.nodes
        assert row["predicted"] is None or row["predicted"]["speedup"] <= found["fastest"]["speedup"]
    medusa = next(row for row in found["trees"] if row["label"] == "medusa_mc_sim_7b_63.json: mc_sim_7b_63")
    assert medusa["best_of_size"]["speedup"] > medusa["predicted"]["speedup"]
