"""`treeopt compare`: trees of any origin under one profile."""

import json
from pathlib import Path

import pytest

from tests.cli.invented import STEEP, TABLE, invented, saved, succeed, verify_s
from treeopt import Profile
from treeopt.planner import plan, step_model
from treeopt.planner.request import PlanRequest
from treeopt.trees import TokenTree, chain, load_file

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
BUNDLED = Path(__file__).resolve().parents[2] / "docs" / "profiles" / "bundled-2-cores.yaml"
TREES = [TokenTree([-1, 0, 0, 1, 1, 3]), chain(2), TokenTree([-1, 0, 0, 0, 1])]


@pytest.fixture
def files(folder: Path) -> Path:
    saved(folder, invented())
    TREES[0].save("tree.json")
    Path("two.py").write_text("narrow = [[0], [0, 0]]\nwide = [[0], [1], [2], [0, 0]]\n", "utf-8")
    return folder


def compare_json(*arguments: object) -> dict:
    return json.loads(succeed("compare", *arguments, "--json").stdout)


@pytest.mark.usefixtures("files")
def test_every_tree_of_every_file_is_a_row_of_table_and_json():
    report = compare_json("tree.json", "two.py")
    lines = succeed("compare", "tree.json", "two.py").stdout.splitlines()
    assert [row["label"] for row in report["trees"]] == ["tree.json", "two.py: narrow", "two.py: wide"]
    model = step_model(Profile.load("profile.yaml"))
    printed = [line for line in lines if line.startswith(("tree.json", "two.py"))]
    for row, tree, line in zip(report["trees"], TREES, printed, strict=True):
        assert (row["nodes"], row["depth"]) == (tree.nodes, tree.max_depth)
        assert row["predicted"]["speedup"] == pytest.approx(model.speedup(tree))
        assert row["predicted"]["tokens_per_step"] == pytest.approx(model.tokens_per_step(tree))
        assert row["best_of_size"]["nodes"] == tree.nodes
        assert row["best_of_size"]["speedup"] >= row["predicted"]["speedup"]
        assert line.split()[-2:] == [f"{row[key]['speedup']:.2f}" for key in ("predicted", "best_of_size")]
    assert any(line.startswith("plain decoding") for line in lines)
    assert any(line.startswith("fastest: ") for line in lines)
    profile = Profile.load("profile.yaml")
    assert (report["pair"]["target"], report["context_tokens"], report["batch_size"]) == (profile.pair.target, 256, 1)
    fastest = plan(profile, 32).choice
    assert report["fastest"]["speedup"] == pytest.approx(fastest.speedup.value)


@pytest.mark.usefixtures("files")
def test_a_tree_beyond_the_profile_has_a_reason_in_place_of_a_prediction():
    chain(9).save("deep.json")
    assert "not predicted: the acceptance table was measured to depth 4" in succeed("compare", "deep.json").stdout
    row = compare_json("deep.json")["trees"][0]
    assert row["predicted"] is None
    assert "depth 4" in row["unknown"]


def test_context_length_applies_to_trees_and_to_the_fastest(folder: Path):
    def verify(nodes: int, tokens: int, batch: int) -> float:  # no arithmetic is idle at long contexts
        return verify_s(nodes, tokens, batch) + (2e-3 * nodes if tokens > 1000 else 0.0)

    saved(folder, invented(conditions=[(256, 1), (4096, 1)], verify=verify))
    profile = Profile.load("profile.yaml")
    chain(2).save("tree.json")
    for context in (256, 4096):
        report, expected = (
            compare_json("tree.json", "--context-tokens", context),
            plan(profile, 32, context_tokens=context),
        )
        assert report["fastest"]["speedup"] == pytest.approx(expected.choice.speedup.value)
        assert report["plain"]["step_s"] == pytest.approx(verify(1, context, 1))
        assert report["trees"][0]["predicted"]["speedup"] == pytest.approx(expected.model.speedup(chain(2)))


def test_warnings_of_the_plan_are_on_stderr_and_in_json(folder: Path):
    saved(folder, invented(verify_noise=0.9))
    chain(2).save("tree.json")
    result = succeed("compare", "tree.json", "--json")
    (warning,) = json.loads(result.stdout)["warnings"]
    assert "the chance that this is within 1 % of the fastest is only" in warning
    assert warning in result.stderr


def test_rule_and_temperature_choose_the_acceptance(folder: Path):
    saved(folder, invented(tables=[TABLE, STEEP], others={"target": STEEP}))
    chain(3).save("tree.json")
    expected = step_model(Profile.load("profile.yaml"), PlanRequest(rule="target")).speedup(chain(3))
    assert compare_json("tree.json", "--rule", "target")["trees"][0]["predicted"]["speedup"] == pytest.approx(expected)
    assert compare_json("tree.json", "--temperature", 0.2)["temperature"] == 0.2


@pytest.mark.source
@pytest.mark.usefixtures("folder")
def test_published_trees_under_the_bundled_profile():
    paths = sorted(SHARED.rglob("*.pt")) + sorted(SHARED.rglob("*_63.json"))
    trees = [path for path in paths if "acceptance" not in path.name]
    if not trees:
        pytest.skip("../shared/data is not there")
    report = compare_json(*trees, "--profile", BUNDLED)
    for row, path in zip(report["trees"], trees, strict=True):
        assert row["nodes"] == load_file(path).tree.nodes
        assert row["predicted"] is None or row["predicted"]["speedup"] <= report["fastest"]["speedup"]
    medusa = next(row for row in report["trees"] if row["label"] == "medusa_mc_sim_7b_63.json: mc_sim_7b_63")
    assert medusa["best_of_size"]["speedup"] > medusa["predicted"]["speedup"]
