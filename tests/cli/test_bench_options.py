"""`treeopt bench`: subcommands take their own options and no others, and check the profile against the pair."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import call, invented
from treeopt.bundled import DRAFT, TARGET
from treeopt.records.machine import Pair
from treeopt.trees import Provenance, TreeFile, k_ary
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

COMMANDS = {
    "tree": ("tree", "tree.json"),
    "batches": ("batches", "--batch-sizes", "1"),
    "grid": ("grid",),
    "methods": ("methods", "--methods", "chain"),
    "engine": ("engine", "llama-server"),
}
OWN = ("tree", "batches", "grid", "methods")
"""Benchmarks that run treeopt's own decoder."""


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("tree", ("--plot", "--same-prompts", "--batch-sizes", "--url", "--lengths")),
        ("batches", ("--batch-size", "--drafter", "--eagle-layers", "--same-prompts", "--grid")),
        ("grid", ("--drafter", "--eagle-layers", "--lengths", "--timeout", "--program")),
        ("methods", ("--rule", "--lossy", "--drafter", "--eagle-layers", "--same-prompts", "--systems")),
        ("engine", ("--rule", "--lossy", "--chat", "--offload", "--max-memory", "--drafter")),
    ],
)
def test_an_option_without_a_use_does_not_exist(folder, command, options):
    for option in options:
        result = call("bench", *COMMANDS[command], option, "1")
        assert (result.exit_code, result.stdout) == (2, ""), option
        assert f"No such option '{option}'." in result.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("folder")
def test_one_temperature_but_for_methods():
    for name in ("tree", "batches", "grid", "engine"):
        result = call("bench", *COMMANDS[name], "--temperature", "0,0.4")
        assert result.exit_code == 2
        assert "'--temperature': expected 0, which is greedy, or a number" in result.stderr


@pytest.mark.usefixtures("folder")
def test_a_word_that_is_no_subcommand_is_a_usage_error():
    result = call("bench", "bananas")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "bench [OPTIONS] tree|grid|batches|methods|engine" in result.stderr
    assert "Error: expected one of tree, grid, batches, methods, engine. Got 'bananas'." in result.stderr


@pytest.mark.usefixtures("folder")
def test_of_a_tree_file_the_command_is_printed_and_runs():
    TREE_FILE.save("my tree.json")
    result = call("bench", "my tree.json", "--profile", "none.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    program, *command = shlex.split(result.stderr.partition("Got 'my tree.json': ")[2].strip()[:-1])
    assert (program, command) == ("treeopt", ["bench", "tree", "my tree.json", "--profile", "none.yaml"])
    assert "none.yaml: no such file" in call(*command).stderr


@pytest.mark.usefixtures("folder")
def test_a_schedule_is_for_batches_and_the_command_is_printed():
    TreeSchedule(trees=(ScheduledTree(first_texts=1, last_texts=8, tree=k_ary(2, 2)),)).save("schedule.json")
    result = call("bench", "tree", "schedule.json")
    assert (result.exit_code, result.stdout) == (2, "")
    command = shlex.split(result.stderr.partition("Got a schedule: ")[2].strip()[:-1])
    assert command == shlex.split("treeopt bench batches schedule.json --batch-sizes 1,2,4,8")
    assert "profile.yaml: no such file" in call(*command[1:]).stderr


TREE_FILE = TreeFile(tree=k_ary(2, 2), provenance=Provenance(rule="sequoia"))
BUNDLED = {"target": "bundled target", "draft": "bundled draft", "dtype": "float32"}


def profile_of(**fields):
    return replace(invented(), pair=Pair(**{**BUNDLED, **fields}))


@pytest.fixture
def refused(monkeypatch, folder):  # noqa: ARG001 - files are named relative to it
    """Return a function that runs a benchmark up to where prompts are loaded, with a profile of some pair."""
    TREE_FILE.save("tree.json")

    class ReachedError(Exception):
        pass

    def reached(*_, **__):
        raise ReachedError

    monkeypatch.setattr("treeopt.cli.options.prompts.PromptOptions.load", reached)

    def run(name, profile, *more):
        profile.save("profile.yaml")
        result = call("bench", *COMMANDS[name], "--profile", "profile.yaml", *more)
        return None if isinstance(result.exception, ReachedError) else result, result.stderr

    return run


def test_a_profile_of_another_pair_is_refused_by_every_benchmark(refused):
    for name in OWN:
        result, said = refused(name, profile_of(target="large", draft="small"))
        assert (result.exit_code, result.stdout) == (1, ""), name
        assert "profile.yaml: expected the folders or hub names of its models, large + small. It has none" in said
        _, said = refused(name, profile_of(target="large", draft="small"), "--target", TARGET, "--draft", DRAFT)
        assert "profile.yaml: expected its own models, large + small. Got target + draft" in said


def test_a_profile_of_an_engine_is_for_bench_engine(folder):
    measured = Path(__file__).parents[1] / "data" / "profile-engine.yaml"
    TREE_FILE.save("tree.json")
    for name in OWN:
        result = call("bench", *COMMANDS[name], "--profile", measured)
        assert (result.exit_code, result.stdout) == (2, ""), name
        assert "expected a profile of treeopt's own decoder. Got one of llama-server" in result.stderr
        command = shlex.split(result.stderr.partition("Got one of llama-server: ")[2].strip()[:-1])
        assert command == ["treeopt", "bench", "engine", "llama-server", "--profile", str(measured)]
    assert [each.name for each in folder.iterdir()] == ["tree.json"]


def test_a_profile_of_this_pair_is_taken_and_what_else_differs_is_told(refused):
    for name in OWN:
        result, said = refused(name, profile_of())
        assert result is None, (name, result.output)
        assert "Warning: profile.yaml was made for" in said  # an invented processor
        _, said = refused(name, profile_of(dtype="bfloat16"), "--dtype", "float32")
        assert "bfloat16, not float32" in said
        assert "or profile again" in said


def test_a_tree_that_was_planned_for_others_is_refused_unless_forced(refused):
    replace(TREE_FILE, provenance=Provenance(pair="large + small", target="l", draft="s")).save("tree.json")
    result, said = refused("tree", profile_of())
    assert (result.exit_code, result.stdout) == (1, "")
    assert "tree.json: expected its own models, large + small. Got bundled target + bundled draft" in said
    assert "--target l --draft s" in said
    assert refused("tree", profile_of(), "--force")[0] is None
