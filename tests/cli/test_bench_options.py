"""`treeopt bench`: checks of profile and tree against the pair."""

from dataclasses import replace

import pytest

from tests.cli.invented import call, invented
from treeopt.bundled import DRAFT, TARGET
from treeopt.records.machine import Pair
from treeopt.records.profile import Profile
from treeopt.trees import Provenance, TreeFile, k_ary

COMMANDS = {
    "tree": ("tree", "tree.json"),
    "batches": ("batches", "--batch-sizes", "1"),
    "grid": ("grid",),
    "methods": ("methods", "--methods", "chain"),
}
TREE_FILE = TreeFile(tree=k_ary(2, 2), provenance=Provenance(rule="sequoia"))


def profile_of(**changes) -> Profile:
    pair = {"target": "bundled target", "draft": "bundled draft", "dtype": "float32"}
    return replace(invented(), pair=Pair(**(pair | changes)))


@pytest.fixture
def bench(monkeypatch, folder):  # noqa: ARG001 - files are named relative to it
    """Return a function that runs a benchmark up to where prompts are loaded.

    It returns whether prompts were reached, and standard error.
    """
    TREE_FILE.save("tree.json")

    class ReachedError(Exception):
        pass

    def raise_reached(*_, **__):
        raise ReachedError

    monkeypatch.setattr("treeopt.cli.options.prompts.PromptOptions.load", raise_reached)

    def run(name, profile, *options) -> tuple[bool, str]:
        profile.save("profile.yaml")
        result = call("bench", *COMMANDS[name], "--profile", "profile.yaml", *options)
        reached = isinstance(result.exception, ReachedError)
        assert reached or (result.exit_code, result.stdout) == (1, ""), result.output
        return reached, result.stderr

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_models_are_those_of_the_profile(bench, name):
    other = profile_of(target="large", draft="small")
    reached, stderr = bench(name, other)
    assert not reached
    assert "profile.yaml: expected the folders or hub names of its models, large + small. It has none" in stderr
    reached, stderr = bench(name, other, "--target", TARGET, "--draft", DRAFT)
    assert not reached
    assert "profile.yaml: expected its own models, large + small. Got target + draft" in stderr
    reached, stderr = bench(name, profile_of(dtype="bfloat16"), "--dtype", "float32")
    assert reached
    assert "Warning: profile.yaml was made for" in stderr
    assert "bfloat16, not float32" in stderr
    assert "or profile again" in stderr


def test_tree_of_other_models_needs_force(bench):
    replace(TREE_FILE, provenance=Provenance(pair="large + small", target="l", draft="s")).save("tree.json")
    reached, stderr = bench("tree", profile_of())
    assert not reached
    assert "tree.json: expected its own models, large + small. Got bundled target + bundled draft" in stderr
    assert "name its own profile with --profile, or use these with --force" in stderr
    reached, _ = bench("tree", profile_of(), "--force")
    assert reached
