"""Replays of `benchmarks/dynamic.py` along decoded sequences, which may be too short for a tree."""

import pytest

from tests.scripts import together
from treeopt.profiler import RecordFiles, Recording, RecordSize, Settings
from treeopt.trees.drafter_parameters import DynamicTree

(dynamic,) = together("benchmarks", "dynamic")


@pytest.mark.parametrize(("depth", "compared"), [(2, True), (3, False), (5, False)])
def test_sequences_no_longer_than_the_tree_is_deep_are_not_compared(target, draft, prompts, depth, compared):
    recording = Recording(target, draft, prompts, Settings(record=RecordSize()), files=RecordFiles(None))
    run = dynamic.Decoded([[[3], [1, 4]]], 0.01)
    ratio = dynamic.compare_own_sequences(recording, prompts[:1], run, DynamicTree.chain(depth))
    assert (ratio is not None) == compared
