"""Plans by category: `--category` of every command, and the table of `treeopt solve`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import LITTLE
from tests.cli.invented import invented, refused, succeed
from tests.planner.test_categories import EASY, HARD, NAMES, NEW, ROWS, counted, ranks, with_lookup
from tests.planner.test_dependence import measured
from treeopt.planner import for_category, plan
from treeopt.records.profile import Profile
from treeopt.trees import load_file

BUDGET = ("--budget", 8)
"""Small trees, which are planned in little time."""


def differing(hard: list[float] = HARD) -> Profile:
    """Return a profile of two categories that differ."""
    pairs = zip(ranks(EASY, 8), ranks(hard, 8, seed=1), strict=True)
    acceptance = replace(measured([text for pair in pairs for text in pair]), categories=("code", "essay") * 8)
    return replace(invented(), acceptances=(acceptance,))


@pytest.fixture
def profile(folder: Path) -> Profile:
    result = differing()
    result.save(folder / "profile.yaml")
    return result


def solve_json(*options: object) -> dict:
    return json.loads(succeed("solve", "--json", *BUDGET, *options).stdout)


def category_rows(output: str) -> list[list[str]]:
    """Return the cells of the table of categories."""
    lines = output.split("By category of prompt:\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[: lines.index("")]]


def test_table_and_json_agree_with_plans_for_each_category_alone(profile: Profile) -> None:
    header, *rows = category_rows(succeed("solve", *BUDGET).stdout)
    assert header == ["category", "prompts", "drafter", "setting", "tokens/step", "speedup", "one for all", "gap"]
    whole = solve_json()
    one = whole["categories"]["one_for_all"]
    assert whole["category"] is None
    assert 0 < one["gap"] < 1
    assert one["gap"] == pytest.approx(1 - one["speedup"] / one["best_speedup"])
    assert [row[0] for row in rows] == ["code", "essay"]
    for row, entry in zip(rows, whole["categories"]["plans"], strict=True):
        name = entry["category"]
        alone = solve_json("--category", name)
        best = alone["candidates"][alone["choice"]]
        assert row[5].startswith(f"{best['speedup']:.2f} (")
        assert (alone["category"], alone["categories"]) == (name, None)
        for key in ("tokens_per_step", "speedup", "speedup_interval", "parents", "nodes"):
            assert entry[key] == best[key], key
        tree = load_file("tree.json")
        assert tree.tree == plan(for_category(profile, name), 8).choice.tree
        assert tree.provenance is not None
        assert tree.provenance.source == f"profile.yaml; prompts of category {name}"
        assert tree.provenance.speedup == pytest.approx(entry["speedup"])
    output = succeed("solve", *BUDGET, "--category", "essay").stdout
    assert output.splitlines()[0].endswith(", prompts of category essay")
    assert "By category" not in output


@pytest.mark.usefixtures("profile")
def test_one_category_is_not_compared_with_others() -> None:
    assert "By category" not in succeed("solve", *BUDGET, "--category", "code").stdout


def test_a_draft_model_without_prompts_of_a_category_is_named(folder: Path) -> None:
    """Only prompt lookup was measured on the category `new`."""
    whole = differing()
    (acceptance,) = whole.acceptances
    whole = replace(whole, acceptances=(replace(acceptance, categories=("copy",) * len(acceptance.categories)),))
    with_lookup(whole, counted(whole, NAMES, ROWS)).save(folder / "profile.yaml")
    warning = "the draft model was measured on too few prompts of new, and keeps its acceptance of all prompts"
    assert warning in succeed("solve", *BUDGET, "--category", "new").stderr
    assert "too few prompts" not in succeed("solve", *BUDGET, "--category", "copy").stderr


@pytest.mark.usefixtures("profile")
def test_short_outputs_are_planned_by_category() -> None:
    whole, alone = solve_json("--new-tokens", 40), solve_json("--new-tokens", 40, "--category", "essay")
    (entry,) = [entry for entry in whole["categories"]["plans"] if entry["category"] == "essay"]
    assert entry["speedup"] == alone["candidates"][alone["choice"]]["speedup"]


def test_drafters_are_compared_in_each_category(profile: Profile) -> None:
    with_lookup(profile, counted(profile, NAMES, ROWS)).save("named.yaml")
    text = Path("named.yaml").read_text().replace("copy", "code")
    Path("profile.yaml").write_text(text.replace("[code, new, code, new]", "[code, essay, code, essay]"))
    (entry, *_), alone = solve_json()["categories"]["plans"], solve_json("--category", "code")
    (best,) = [row for row in alone["drafters"] if row["chosen"]]
    for key in ("drafter", "settings", "speedup"):
        assert entry[key] == best[key]
    only = solve_json("--drafter", "prompt-lookup")
    assert {entry["drafter"] for entry in only["categories"]["plans"]} == {"prompt-lookup"}


@pytest.mark.usefixtures("profile")
def test_most_tokens_are_not_planned_by_category() -> None:
    assert "By category" not in succeed("solve", *BUDGET, "--objective", "tokens").stdout


@pytest.mark.usefixtures("profile")
def test_unknown_category_is_refused_by_every_command() -> None:
    Path("tree.json").write_text('{"format": "treeopt-tree", "version": 1, "parents": [-1, 0]}')
    for command in (
        ("solve",),
        ("schedule",),
        ("export", "profile.yaml", "--to", "vllm", "-o", "out.json"),
        ("export", "profile.yaml", "--to", "speculation-profile", "-o", "out.json"),
        ("compare", "tree.json"),
        ("simulate", "--rate", "1", "--prompt-tokens", "9", "--new-tokens", "9", "--duration", "1s"),
    ):
        line = refused(*command, "--category", "poems", code=2)
        assert line == "Error: --category: expected one of code, essay. Got 'poems'.", command


@pytest.mark.usefixtures("folder")
def test_exports_are_for_the_category() -> None:
    differing(NEW).save("profile.yaml")
    settings = {}
    for name in ("code", "essay"):
        options = ("-o", f"{name}.json", "--category", name, "--draft-model", "d")
        succeed("export", "profile.yaml", "--to", "vllm", *options)
        settings[name] = json.loads(Path(f"{name}.json").read_text())
        assert json.loads(Path(f"{name}.json.provenance.json").read_text())["category"] == name
    assert settings["code"]["num_speculative_tokens"] > 2
    assert settings["essay"] is None
    Path("r.npz").write_bytes(b"")
    record = ("--record", "r.npz", "--category", "code")
    assert "a draft record has no categories" in refused("export", "profile.yaml", "--to", "sglang", *record, code=2)


@pytest.mark.usefixtures("profile")
def test_comparisons_and_simulations_are_for_the_category() -> None:
    replace(differing(), latencies=invented(conditions=[(256, 1), (256, 2)]).latencies).save("profile.yaml")
    Path("tree.json").write_text('{"format": "treeopt-tree", "version": 1, "parents": [-1, 0, 1, 2]}')
    speedups = {}
    for name in ("code", "essay"):
        (tree,) = json.loads(succeed("compare", "tree.json", "--json", "--category", name).stdout)["trees"]
        speedups[name] = tree["predicted"]["speedup"]
    assert speedups["code"] > 1.1 * speedups["essay"]
    load = ("--rate", "1", "--prompt-tokens", "9", "--new-tokens", "30", "--duration", "2s")
    assert "--category essay" in succeed("simulate", *load, *BUDGET, "--category", "essay").stdout


@pytest.mark.usefixtures("folder")
def test_profile_keeps_the_categories_of_prompts() -> None:
    rows = [
        {"category": name, "prompt": f"{start} {number}"}
        for number in range(4)
        for name, start in (("code", "def f():\n    return"), ("essay", "The sea is"))
    ]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    succeed("profile", *LITTLE, "--positions", "48", "--prompts", "mine.jsonl")
    assert sorted(Profile.load("profile.yaml").acceptances[0].categories) == ["code"] * 3 + ["essay"] * 3
    assert [row[0] for row in category_rows(succeed("solve").stdout)[1:]] == ["code", "essay"]


@pytest.mark.usefixtures("folder")
def test_categories_of_one_prompt_each_are_ignored() -> None:
    acceptance = replace(measured(ranks(EASY, 4)), categories=("a", "b", "c", "d"))
    replace(invented(), acceptances=(acceptance,)).save("profile.yaml")
    assert "categor" not in succeed("solve", *BUDGET).output
