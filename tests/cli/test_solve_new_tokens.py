"""`treeopt solve --new-tokens`: a plan for texts of so many tokens, said wherever it is written, or refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import call, invented
from tests.planner.test_drafters import lookup, lookup_rows
from tests.planner.test_new_tokens import SHORT, TEXTS, measured
from treeopt.planner import for_new_tokens, plan
from treeopt.records.profile import Profile
from treeopt.trees import TokenTree, load_file
from treeopt.trees.tree_schedule import load_schedule


@pytest.fixture
def easier_later(folder: Path) -> Profile:
    """Return a profile whose texts begin with their hardest tokens."""
    made = replace(invented(conditions=[(256, 1), (256, 4)]), acceptances=(measured(TEXTS),))
    made.save(folder / "profile.yaml")
    return made


def test_it_is_the_plan_of_how_texts_begin(easier_later: Profile) -> None:
    result = call("solve", "--new-tokens", SHORT)
    expected = plan(for_new_tokens(easier_later, SHORT), 32)
    tree = load_file("tree.json")

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0].endswith(f", 256 tokens of context, sequences of {SHORT} new tokens")
    assert tree.tree == expected.choice.tree != plan(easier_later, 32).choice.tree
    assert tree.provenance is not None
    assert tree.provenance.source == f"profile.yaml; sequences of {SHORT} new tokens"
    assert tree.provenance.tokens_per_step == pytest.approx(expected.choice.tokens_per_step.value)


def test_json_says_it(easier_later: Profile) -> None:
    short, whole = (json.loads(call("solve", "--json", *asked).stdout) for asked in (("--new-tokens", SHORT), ()))
    expected = plan(for_new_tokens(easier_later, SHORT), 32).chain

    assert (short["new_tokens"], whole["new_tokens"]) == (SHORT, None)
    assert TokenTree(short["candidates"]["chain"]["parents"]) == expected.tree
    assert short["candidates"]["chain"]["tokens_per_step"] < whole["candidates"]["chain"]["tokens_per_step"]


@pytest.mark.usefixtures("easier_later")
def test_a_schedule_is_for_them_too() -> None:
    found = {}
    for name, asked in (("short.json", ("--new-tokens", SHORT)), ("whole.json", ())):
        assert call("schedule", *asked, "-o", name).exit_code == 0
        found[name] = load_schedule(Path(name))

    assert found["short.json"].tree(1).max_depth < found["whole.json"].tree(1).max_depth
    assert found["short.json"].provenance.source == f"profile.yaml; sequences of {SHORT} new tokens"


@pytest.mark.usefixtures("easier_later")
def test_longer_ones_than_measured_are_warned_of() -> None:
    result = call("solve", "--new-tokens", 441)

    assert result.exit_code == 0
    assert (
        "Warning: acceptance was measured up to token 440 of a sequence, and may differ beyond it. "
        f"Profile with --positions {441 * len(TEXTS)}."
    ) in result.stderr


@pytest.mark.parametrize(
    ("changes", "asked", "code", "said"),
    [
        ({}, ("--new-tokens", 0), 2, "--new-tokens"),
        ({}, ("--new-tokens", SHORT, "--drafter", "medusa"), 2, "--drafter model"),
        ({"accepted_ranks": None}, ("--new-tokens", SHORT), 1, "measured for whole sequences only"),
        ({"context_tokens": 256}, ("--new-tokens", SHORT), 1, "measured by context length"),
        (
            {"accepted_ranks": measured(TEXTS).accepted_ranks.first(0)},
            ("--new-tokens", SHORT),
            1,
            "20 positions or more",
        ),
    ],
    ids=["none", "other drafter", "no ranks", "by context", "too few"],
)
def test_what_does_not_tell_is_refused_in_a_line(
    easier_later: Profile, changes: dict[str, object], asked: tuple[object, ...], code: int, said: str
) -> None:
    (acceptance,) = easier_later.acceptances
    replace(easier_later, acceptances=(replace(acceptance, **changes),)).save("profile.yaml")
    result = call("solve", *asked)

    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("tree.json").exists()


def test_where_drafters_are_compared_it_is_refused(easier_later: Profile) -> None:
    replace(easier_later, drafters=(lookup(easier_later, lookup_rows()),)).save("profile.yaml")
    refused, alone = (call("solve", "--new-tokens", SHORT, *asked) for asked in ((), ("--drafter", "model")))

    assert refused.exit_code == 2
    assert "only whole sequences were measured. Plan for the draft model alone: --drafter model." in refused.stderr
    assert alone.exit_code == 0
    assert load_file("tree.json").tree == plan(for_new_tokens(easier_later, SHORT), 32).choice.tree
