"""A checkpoint knows what its numbers are of: another version's, or one of other probe trees, is never read as this one's."""

import json

import pytest

from treeopt.errors import TreeoptError
from treeopt.profiler import Checkpoint, Measurement, MonotonicClock, Settings
from treeopt.profiler import checkpoint as checkpoint_module
from treeopt.profiler.checkpoint import check_origin, describe_origin
from treeopt.profiler.latency import passes
from treeopt.profiler.latency.steps import step_key
from treeopt.records.rules import RULES
from treeopt.trees import chain

SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=2, positions=60, depth=3, branching=3)
OTHER_TREES = (chain(2), chain(1), *passes.PROBE_TREES[2:])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "profile.yaml.partial"


def checkpoint_at(path, pair, prompts, *, resume=False, settings=SETTINGS):
    return Checkpoint(path, settings.conditions(*pair, prompts), resume=resume)


def probe_with(patch, trees):
    for module in (passes, checkpoint_module):
        patch.setattr(module, "PROBE_TREES", trees)


def test_times_of_other_probe_trees_are_not_taken_for_ones_own(path, target, draft, prompts, monkeypatch):
    """A step with a chain of two must not be resumed as one with a chain of one."""
    with monkeypatch.context() as patch:
        probe_with(patch, OTHER_TREES)
        checkpoint = checkpoint_at(path, (target, draft), prompts)
        Measurement(target, draft, prompts, SETTINGS, clock=MonotonicClock(), checkpoint=checkpoint).profile(
            show_progress=False
        )
        check_origin(path)
    before = path.read_bytes()
    for refuse in (check_origin, lambda path: checkpoint_at(path, (target, draft), prompts, resume=True)):
        with pytest.raises(TreeoptError, match=r"Start over with --force in place of --resume, or ") as refusal:
            refuse(path)
        assert "\n" not in str(refusal.value)
    assert path.read_bytes() == before


def test_another_version_is_refused_and_named(path, target, draft, prompts, monkeypatch):
    for name, value in (("__version__", "0.0.7rc1"), ("CHECKPOINT_VERSION", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint_module, name, value)
            theirs = describe_origin()
            checkpoint_at(path, (target, draft), prompts)
        assert theirs != describe_origin()
        with pytest.raises(
            TreeoptError, match=f"^{path}: was measured by {theirs}, which .* than this {describe_origin()}"
        ):
            check_origin(path)


def test_checkpoint_without_version_is_refused(path):
    for conditions in (
        "device cpu, processor x",
        "treeopt \x1b[2J, checkpoint 1, probe trees 00000000, device cpu",
        "",
    ):
        path.write_text(json.dumps({"conditions": conditions}) + "\n")
        with pytest.raises(TreeoptError, match="was measured by a treeopt of unknown version, which"):
            check_origin(path)


def test_other_files_are_left_to_checkpoint(path):
    check_origin(path)
    for content in (b"", b"{", b"[]\n", b'{"conditions": 3}\n', b"\xff\n", b'{"conditions": "'):
        path.write_bytes(content)
        check_origin(path)
        with pytest.raises(TreeoptError):
            Checkpoint(path, describe_origin(), resume=True)
    path.write_bytes(b"[" * 100_000)
    check_origin(path)


def test_other_options_of_the_same_version_are_left_to_checkpoint(path, target, draft, prompts):
    checkpoint_at(path, (target, draft), prompts)
    check_origin(path)
    with pytest.raises(TreeoptError, match="measured under other conditions"):
        checkpoint_at(path, (target, target), prompts, resume=True)


def test_every_step_has_a_number_of_its_own():
    every = [(rule, tree) for rule in RULES for tree in passes.PROBE_TREES]
    assert len({step_key(rule, tree) for rule, tree in every}) == len(every) > 30
    assert step_key("sequoia", chain(2)) == step_key("sequoia", OTHER_TREES[0])
