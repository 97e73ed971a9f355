"""The method with a learning draft model."""

import torch

from tests.cli.invented import TABLE, invented
from tests.methods.toys import little_rows
from treeopt.methods import static_tree
from treeopt.records.results import MethodRow, NotRun
from treeopt.runtime.learning.learner import LearningSettings, make_learning_copy
from treeopt.runtime.models.weights import named_tensors


def osd_rows(target, draft, prompts, temperatures=(0.0, 0.2)):
    profile = invented(tables=(TABLE, TABLE))
    return little_rows(target, draft, prompts, names=["osd"], temperatures=temperatures, profile=profile)


def test_learning_uses_a_copy_and_is_lossless(target, draft, prompts, monkeypatch):
    before = {name: tensor.clone() for name, tensor in named_tensors(draft).items()}
    copies = []

    def eager_copy(model):
        copies.append(make_learning_copy(model, LearningSettings(positions=1, rate=1e-2, max_time_share=1e9)))
        return copies[-1]

    monkeypatch.setattr(static_tree, "make_learning_copy", eager_copy)
    rows = osd_rows(target, draft, prompts)
    assert [(row.method, row.temperature) for row in rows] == [
        (name, temperature) for temperature in (0.0, 0.2) for name in ("plain", "osd")
    ]
    assert all(isinstance(row, MethodRow) and row.lossless for row in rows)
    assert [row.assumed for row in rows] == [(), (static_tree.WITHOUT_LEARNING,)] * 2
    assert len(copies) == 2, "each temperature starts from the original weights"
    for copy, learner in copies:
        assert learner.stats.updates
        assert any(not torch.equal(tensor, before[name]) for name, tensor in named_tensors(copy).items())
    for name, tensor in named_tensors(draft).items():
        assert torch.equal(tensor, before[name])


def test_draft_without_trainable_weights_is_not_run(target, draft, prompts):
    class Foreign:
        def __getattr__(self, name):
            return getattr(draft, name)

    _, row = osd_rows(target, Foreign(), prompts, temperatures=(0.0,))
    assert isinstance(row, NotRun)
    assert "built in" in row.reason
