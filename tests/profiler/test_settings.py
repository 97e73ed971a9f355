"""A profile is gone on with only under the very conditions that it was begun under: nothing is left out of its heading."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch

from treeopt.errors import TreeoptError
from treeopt.profiler import Checkpoint, RecordSize, Settings
from treeopt.records.sampling import Sampling
from treeopt.trees.drafter_setting import DrafterSetting

SETTINGS = Settings(samplings=(Sampling(0.6), Sampling(1.0)))
OTHERS = {
    "rules": ("sequoia", "target"),
    "lossy": True,
    "samplings": (Sampling(0.6), Sampling(1.0, top_k=5)),
    "draft_sampling": Sampling(0.8),
    "context_tokens": (256, 1024),
    "batch_sizes": (1, 4),
    "max_tokens": 511,
    "rounds": 24,
    "time_budget_s": 90.0,
    "positions": 4095,
    "branching": 15,
    "depth": 15,
    "record": RecordSize(),
    "drafters": (DrafterSetting(name="medusa", digest="0123456789abcdef"),),
    "cuda_graphs": False,
}
PROMPTS = [[1, 2], [3]]


def model(name: str, vocabulary: int = 7) -> SimpleNamespace:
    sizes = {
        "parameters": 9,
        "config": SimpleNamespace(vocabulary=vocabulary),
        "cache_bytes": lambda tokens: 8 * tokens,
    }
    return SimpleNamespace(name=name, dtype=torch.float32, device=torch.device("cpu"), **sizes)


def heading(settings=SETTINGS, *, target="T", draft="D", prompts=PROMPTS) -> str:
    return settings.conditions(model(target), model(draft), prompts)


def test_every_setting_counts():
    assert set(OTHERS) == {field.name for field in fields(Settings)}
    for name, value in OTHERS.items():
        assert heading(replace(SETTINGS, **{name: value})) != heading(), name
    assert heading(replace(SETTINGS)) == heading()


def test_so_do_boundaries_that_were_given():
    head = DrafterSetting(name="eagle", digest="0123456789abcdef")
    others = [replace(head, layers=layers) for layers in ((), (2, 6, 9), (9, 6, 2), (2, 6))]
    assert len({heading(replace(SETTINGS, drafters=(each,))) for each in others}) == len(others)


def test_so_do_both_models_and_every_token_of_the_prompts():
    others = [{"target": "U"}, {"draft": "E"}]
    others += [{"prompts": prompts} for prompts in ([[1, 2], [4]], [[2, 1], [3]], [[1], [2, 3]], [[3], [1, 2]])]
    found = [heading(**other) for other in others]
    assert heading() not in found
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("other", [{"prompts": [[1, 2], [4]]}, {"draft": "E"}])
def test_a_checkpoint_of_other_conditions_is_not_gone_on_with(other, tmp_path):
    Checkpoint(tmp_path / "checkpoint", heading()).append("verify", 1, (0.5,))
    with pytest.raises(TreeoptError, match="other conditions"):
        Checkpoint(tmp_path / "checkpoint", heading(**other), resume=True)
    assert Checkpoint(tmp_path / "checkpoint", heading(), resume=True).samples("verify") == {1: [0.5]}
