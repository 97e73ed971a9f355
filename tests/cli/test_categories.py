"""Plans by category from the command line: what `solve` prints and writes agrees with `--category`, one by one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.conftest import LITTLE
from tests.cli.invented import call, invented
from tests.planner.test_categories import EASY, HARD, NEW, TestDrafters, counted, ranks, with_lookup
from tests.planner.test_dependence import measured
from treeopt.planner import for_category, plan
from treeopt.records.profile import Profile
from treeopt.trees import load_file


def unlike(hard: list[float] = HARD) -> Profile:
    """Return a profile of two categories that differ."""
    pairs = zip(ranks(EASY, 8), ranks(hard, 8, seed=1), strict=True)
    acceptance = replace(measured([text for pair in pairs for text in pair]), categories=("code", "essay") * 8)
    return replace(invented(conditions=[(256, 1), (256, 4)]), acceptances=(acceptance,))


@pytest.fixture
def profile(folder: Path) -> Profile:
    found = unlike()
    found.save(folder / "profile.yaml")
    return found


def block(output: str) -> list[list[str]]:
    """Return the cells of the rows of the block of categories."""
    lines = output.split("By category of prompt:\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[: lines.index("")]]


@pytest.mark.usefixtures("profile")
def test_rows_are_what_each_category_alone_is_planned_as() -> None:
    header, *rows = block(call("solve").stdout)
    assert header == ["category", "prompts", "drafter", "setting", "tokens/step", "speedup", "one for all", "gap"]
    assert [row[0] for row in rows] == ["code", "essay"]
    for row in rows:
        alone = call("solve", "--category", row[0])
        (chosen,) = [line for line in alone.stdout.splitlines() if line.startswith("* ")]
        assert row[4] in chosen
        assert row[5] in chosen
        assert alone.stdout.splitlines()[0].endswith(f", prompts of category {row[0]}")
        assert "By category" not in alone.stdout


def test_json_and_tree_files_have_the_same_numbers(profile: Profile) -> None:
    whole = json.loads(call("solve", "--json").stdout)
    one = whole["categories"]["one_for_all"]
    assert whole["category"] is None
    assert 0 < one["gap"] < 1
    assert one["gap"] == pytest.approx(1 - one["speedup"] / one["best_speedup"])
    for entry in whole["categories"]["plans"]:
        alone = json.loads(call("solve", "--json", "--category", entry["category"]).stdout)
        best = alone["candidates"][alone["choice"]]
        assert (alone["category"], alone["categories"]) == (entry["category"], None)
        for key in ("tokens_per_step", "speedup", "speedup_interval", "parents", "nodes"):
            assert entry[key] == best[key], key
        tree = load_file("tree.json")
        assert tree.tree == plan(for_category(profile, entry["category"])).choice.tree
        assert tree.provenance is not None
        assert tree.provenance.source == f"profile.yaml; prompts of category {entry['category']}"
        assert tree.provenance.speedup == pytest.approx(entry["speedup"])


def test_beginnings_of_texts_are_planned_by_category(profile: Profile) -> None:
    whole = json.loads(call("solve", "--json", "--new-tokens", 40).stdout)
    alone = json.loads(call("solve", "--json", "--new-tokens", 40, "--category", "essay").stdout)
    (entry,) = [each for each in whole["categories"]["plans"] if each["category"] == "essay"]
    assert entry["speedup"] == alone["candidates"][alone["choice"]]["speedup"]
    assert profile


def test_drafters_are_compared_in_each_category(profile: Profile) -> None:
    with_lookup(profile, counted(profile, TestDrafters.NAMES, TestDrafters.ROWS)).save("named.yaml")
    renamed = (
        Path("named.yaml")
        .read_text()
        .replace("copy", "code")
        .replace("[code, new, code, new]", "[code, essay, code, essay]")
    )
    Path("profile.yaml").write_text(renamed)
    whole = json.loads(call("solve", "--json").stdout)
    for entry in whole["categories"]["plans"]:
        alone = json.loads(call("solve", "--json", "--category", entry["category"]).stdout)
        (best,) = [each for each in alone["drafters"] if each["chosen"]]
        assert (entry["drafter"], entry["settings"], entry["speedup"]) == (
            best["drafter"],
            best["settings"],
            best["speedup"],
        )
    only = json.loads(call("solve", "--json", "--drafter", "prompt-lookup").stdout)
    assert {each["drafter"] for each in only["categories"]["plans"]} == {"prompt-lookup"}


@pytest.mark.usefixtures("profile")
def test_no_block_for_most_tokens() -> None:
    result = call("solve", "--objective", "tokens")
    assert result.exit_code == 0
    assert "By category" not in result.stdout


@pytest.mark.usefixtures("profile")
@pytest.mark.parametrize(
    "command",
    [
        ("solve",),
        ("export", "profile.yaml", "--to", "vllm", "-o", "out.json"),
        ("export", "profile.yaml", "--to", "eagle", "-o", "out.py"),
        ("export", "profile.yaml", "--to", "speculation-profile", "-o", "out.json"),
        ("compare", "tree.json"),
        ("simulate", "--rate", "1", "--prompt-tokens", "9", "--new-tokens", "9", "--duration", "1s"),
    ],
    ids=" ".join,
)
def test_an_unknown_category_names_those_that_exist(command: tuple[str, ...]) -> None:
    if command[0] == "compare":
        call("solve")
    result = call(*command, "--category", "poems")
    assert result.exit_code == 2, result.output
    assert "Error: --category: expected one of code, essay. Got 'poems'." in result.stderr
    assert not Path("out.json").exists()


@pytest.mark.usefixtures("folder")
def test_a_profile_without_categories_is_refused() -> None:
    invented().save("profile.yaml")
    result = call("solve", "--category", "code")
    assert result.exit_code == 1
    assert "--category: expected a profile of prompts that have a category" in result.stderr
    assert not Path("tree.json").exists()


@pytest.mark.usefixtures("folder")
def test_exports_are_those_of_the_category() -> None:
    unlike(NEW).save("profile.yaml")
    found = {}
    for name in ("code", "essay"):
        result = call(
            "export", "profile.yaml", "--to", "vllm", "-o", f"{name}.json", "--category", name, "--draft-model", "d"
        )
        assert result.exit_code == 0, result.output
        found[name] = json.loads(Path(f"{name}.json").read_text())
        assert json.loads(Path(f"{name}.json.provenance.json").read_text())["category"] == name
    assert found["code"]["num_speculative_tokens"] > 2
    assert found["essay"] is None


@pytest.mark.usefixtures("profile")
def test_comparisons_and_simulations_are_of_the_category() -> None:
    call("solve")
    speedups = {}
    for name in ("code", "essay"):
        compared = call("compare", "tree.json", "--json", "--category", name)
        assert compared.exit_code == 0, compared.output
        (tree,) = json.loads(compared.stdout)["trees"]
        speedups[name] = tree["predicted"]["speedup"]
        load = ("--rate", "1", "--prompt-tokens", "9", "--new-tokens", "30", "--duration", "2s")
        simulated = call("simulate", *load, "--category", name)
        assert simulated.exit_code == 0, simulated.output
        assert f"--category {name}" in simulated.stdout
    assert speedups["code"] > 1.1 * speedups["essay"]


@pytest.mark.usefixtures("profile")
def test_a_record_is_refused_with_a_category() -> None:
    Path("r.npz").write_bytes(b"")
    result = call("export", "profile.yaml", "--to", "sglang", "--record", "r.npz", "--category", "code")
    assert result.exit_code == 2
    assert "a draft record has no categories" in result.stderr


@pytest.mark.usefixtures("folder")
def test_profiles_of_prompts_with_categories_are_planned_by_them() -> None:
    rows = [
        {"category": name, "prompt": f"{start} {number}"}
        for number in range(4)
        for name, start in (("code", "def f():\n    return"), ("essay", "The sea is"))
    ]
    Path("mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = call("profile", *LITTLE, "--positions", "192", "--prompts", "mine.jsonl")
    assert result.exit_code == 0, result.output
    assert sorted(Profile.load("profile.yaml").acceptances[0].categories) == ["code"] * 3 + ["essay"] * 3
    assert [row[0] for row in block(call("solve").stdout)[1:]] == ["code", "essay"]


@pytest.mark.usefixtures("folder")
def test_categories_of_one_text_each_are_not_mentioned() -> None:
    acceptance = replace(measured(ranks(EASY, 4)), categories=("a", "b", "c", "d"))
    replace(invented(), acceptances=(acceptance,)).save("profile.yaml")
    result = call("solve")
    assert result.exit_code == 0
    assert "categor" not in result.output
