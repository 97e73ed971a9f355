"""The heading of a checkpoint depends on every setting, model and prompt that measurements depend on."""

from dataclasses import fields, replace
from types import SimpleNamespace

import torch

from treeopt.profiler import RecordSize, Settings
from treeopt.records.sampling import Sampling
from treeopt.trees.drafter_setting import DrafterSetting

SETTINGS = Settings(samplings=(Sampling(0.6), Sampling(1.0)))
HEAD = DrafterSetting(name="eagle", digest="0123456789abcdef")
CHANGES = [
    {"rules": ("sequoia", "target")},
    {"lossy": True},
    {"samplings": (Sampling(0.6), Sampling(1.0, top_k=5))},
    {"draft_sampling": Sampling(0.8)},
    {"context_tokens": (256, 1024)},
    {"batch_sizes": (1, 4)},
    {"max_tokens": 511},
    {"rounds": 24},
    {"time_budget_s": 90.0},
    {"positions": 4095},
    {"branching": 15},
    {"depth": 15},
    {"record": RecordSize()},
    {"record": RecordSize(top_k=4)},
    {"cuda_graphs": False},
    *({"drafters": (replace(HEAD, layers=layers),)} for layers in ((), (2, 6, 9), (9, 6, 2), (2, 6))),
]
PROMPTS = [[1, 2], [3]]


def model(name: str, vocabulary: int = 7) -> SimpleNamespace:
    sizes = {
        "parameters": 9,
        "weight_bytes": 36,
        "config": SimpleNamespace(vocabulary=vocabulary),
        "cache_bytes": lambda tokens: 8 * tokens,
    }
    return SimpleNamespace(name=name, dtype=torch.float32, device=torch.device("cpu"), **sizes)


def heading(settings=SETTINGS, *, target="T", draft="D", prompts=PROMPTS) -> str:
    return settings.conditions(model(target), model(draft), prompts)


def test_heading_depends_on_every_setting_model_and_token():
    assert {name for change in CHANGES for name in change} == {field.name for field in fields(Settings)}
    headings = [heading(replace(SETTINGS, **change)) for change in CHANGES]
    headings += [heading(target="U"), heading(draft="E")]
    headings += [heading(prompts=prompts) for prompts in ([[1, 2], [4]], [[2, 1], [3]], [[1], [2, 3]], [[3], [1, 2]])]
    assert len({heading(), *headings}) == 1 + len(headings)
    assert heading(replace(SETTINGS)) == heading()
    assert "record" not in heading()


def test_any_budget_resumes_a_profile():
    assert len({heading(replace(SETTINGS, time_budget_s=seconds)) for seconds in (20.0, 90.0)}) == 1
