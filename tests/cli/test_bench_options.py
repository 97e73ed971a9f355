"""`treeopt bench`: in each of its modes every option does what it says, or is refused by name."""

from dataclasses import replace

import pytest

from tests.cli.invented import call, invented
from treeopt.cli import bench as bench_module
from treeopt.cli.bench import bench
from treeopt.records.machine import Pair
from treeopt.trees import Provenance, TreeFile, k_ary

MODES = {
    "TREE": ("tree.json",),
    "--batch-size": ("--batch-size", "1"),
    "--grid": ("--grid",),
    "--methods": ("--methods", "chain"),
    "--engine": ("--engine", "llama-server"),
}
OWN = ("TREE", "--batch-size", "--grid", "--methods")
"""Modes that run treeopt's own decoder."""
MODE_NAMES = ("tree", "batch_sizes", "grid", "methods", "engine")
VALUES = {
    "prompts": "mine.txt",
    "chat": None,
    "max_prompts": "9",
    "profile_path": "other.yaml",
    "rule": "target",
    "temperatures": "0.5",
    "lossy": None,
    "drafter": "medusa",
    "eagle_layers": "2,6,9",
    "max_new_tokens": "7",
    "repeats": "5",
    "plot": "picture.svg",
    "path": "results.json",
    "same_prompts": None,
    "target": "t",
    "draft": "d",
    "device": "cuda:3",
    "dtype": "bfloat16",
    "threads": "1",
    "offload": "weights",
    "max_memory": "cpu=4GB",
    "url": "0=http://a:1",
    "program": "llama-server",
    "lengths": "2",
    "timeout_s": "9s",
}
"""Something else than the default of every option; None where it is a flag."""
REFUSED = {
    ("TREE", "plot"),
    ("TREE", "same_prompts"),
    ("--batch-size", "same_prompts"),
    ("--methods", "same_prompts"),
    ("--methods", "rule"),
    ("--methods", "lossy"),
    *(
        (mode, name)
        for mode in ("--batch-size", "--grid", "--methods", "--engine")
        for name in ("drafter", "eagle_layers")
    ),
    *((mode, name) for mode in OWN for name in ("url", "program", "lengths", "timeout_s")),
    *(
        ("--engine", name)
        for name in ("same_prompts", "rule", "lossy", "chat", "device", "dtype", "offload", "max_memory")
    ),
}


@pytest.fixture
def asked(monkeypatch, folder):  # noqa: ARG001 - files are named relative to it
    """Replace the modes; return what the last of them was called with."""
    found = []
    for name in ("bench_tree", "bench_batches", "bench_grid", "bench_methods", "bench_engine"):
        monkeypatch.setattr(bench_module, name, lambda *a, n=name, **k: found.append((n, a, k)))
    return found


def test_every_option_of_every_mode_reaches_it_or_is_refused_by_name(asked):
    flags = {each.name: each.opts[0] for each in bench.params if each.name not in MODE_NAMES}
    assert flags.keys() == VALUES.keys(), "an option that this test does not know"
    for mode, words in MODES.items():
        assert call("bench", *words).exit_code == 0
        for name, flag in flags.items():
            result = call("bench", *words, flag, *([] if VALUES[name] is None else [VALUES[name]]))
            if (mode, name) in REFUSED:
                assert (result.exit_code, result.stdout) == (2, ""), (mode, flag)
                assert f"{flag} with {mode}: " in result.stderr
            else:
                assert result.exit_code == 0, (mode, flag, result.output)
                plain = next(each for each in asked if each[0] == asked[-1][0])
                assert asked[-1] != plain, f"{flag} does nothing with {mode}"


def test_several_temperatures_are_for_methods(asked):
    for mode, words in MODES.items():
        result = call("bench", *words, "--temperature", "0,0.4")
        if mode == "--methods":
            assert asked[-1][1][-1].temperatures == (0.0, 0.4)
        else:
            assert result.exit_code == 2
            assert f"--temperature with {mode}: expected one. Got 2" in result.stderr


TREE_FILE = TreeFile(tree=k_ary(2, 2), provenance=Provenance(rule="sequoia"))
BUNDLED = {"target": "bundled target", "draft": "bundled draft", "dtype": "float32"}


def profile_of(**fields):
    return replace(invented(), pair=Pair(**{**BUNDLED, **fields}))


@pytest.fixture
def refused(monkeypatch, folder):  # noqa: ARG001 - files are named relative to it
    """Return a function that runs a mode up to where prompts are loaded, with a profile of some pair."""
    TREE_FILE.save("tree.json")

    class ReachedError(Exception):
        pass

    def reached(*_, **__):
        raise ReachedError

    monkeypatch.setattr("treeopt.cli.options.prompts.PromptOptions.load", reached)

    def run(mode, profile, *more):
        profile.save("profile.yaml")
        result = call("bench", *MODES[mode], "--profile", "profile.yaml", *more)
        return None if isinstance(result.exception, ReachedError) else result, result.stderr

    return run


def test_a_profile_of_another_pair_is_refused_in_every_mode(refused):
    for mode in OWN:
        result, said = refused(mode, profile_of(target="large", draft="small"))
        assert (result.exit_code, result.stdout) == (1, ""), mode
        assert "that is decoded with, bundled target + bundled draft. Got one of large + small" in said


def test_a_profile_of_this_pair_is_taken_and_what_else_differs_is_told(refused):
    for mode in OWN:
        result, said = refused(mode, profile_of())
        assert result is None, (mode, result.output)
        assert "Warning: profile.yaml was measured with" in said  # an invented processor
        _, said = refused(mode, profile_of(dtype="bfloat16"))
        assert "bfloat16, not float32" in said
        assert "or profile again" in said


def test_a_tree_that_was_planned_for_others_is_told(refused):
    replace(TREE_FILE, provenance=Provenance(pair="large + small", target="l", draft="s")).save("tree.json")
    result, said = refused("TREE", profile_of())
    assert result is None
    assert "planned for large + small, and this is bundled target + bundled draft" in said
    assert "--target l --draft s" in said
