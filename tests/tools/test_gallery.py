"""The gallery: profiles of models with random weights."""

import json
import re
from dataclasses import replace

import pytest
import torch

from tests.profiler.pretended import FakeClock
from tests.scripts import together
from treeopt import Profile
from treeopt.errors import FormatError
from treeopt.runtime.models.runner import GraphPool

VECTORS = {"first": {"p": [0.6, 0.2]}, "second": {"source": "a paper", "p": [0.9, 0.05]}, "other": {"max_depth": 10}}
SIZE = ["--device", "cpu", "--targets", "tiny", "--drafts", "tiny", "--context-tokens", "16", "32"]
LITTLE = [*SIZE, "--max-tokens", "16", "--rounds", "2"]
PARAMETERS = {"68m": 68_030_208, "160m": 162_417_408, "7b": 6_738_415_616, "13b": 13_015_864_320}
"""Of llama-68m, llama-160m, Llama-2-7B and Llama-2-13B as published."""


@pytest.fixture(scope="module")
def tools():
    """Return the modules of the script."""
    return together("tools", "gallery", "gallery_shapes")


@pytest.fixture(scope="module")
def gallery(tools):
    return tools[0]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return the options that name the acceptance."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "vectors.json").write_text(json.dumps(VECTORS), "utf-8")
    return ["--acceptance", str(folder / "vectors.json")]


@pytest.fixture(scope="module")
def made(gallery, inputs, tmp_path_factory):
    """Return the folder of a gallery in which a pass takes the same time whatever its size."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "clock_for", lambda _: FakeClock(lambda: 0.001))
        gallery.main([*LITTLE, *inputs, "--folder", str(folder)])
    return folder


def only(folder):
    (path,) = folder.glob("*.yaml")
    return path


def test_the_profile_holds_measured_times_and_imported_acceptance(made):
    path = only(made)
    profile = Profile.load(path)
    assert path.name.endswith("-tiny-tiny-float32-eager.yaml")
    assert [each.context_tokens for each in profile.latencies] == [16, 32]
    assert {each.sampled for each in profile.latencies} == {True}
    assert {each.imported for each in profile.latencies} == {()}
    assert {timing.samples_s.tolist()[0] for each in profile.latencies for timing in each.verify.timings} == {0.001}
    sources = [each.imported[0].source for each in profile.acceptances]
    assert sources == ["vectors.json (first)", "vectors.json (second)"]
    assert [each.table.p.tolist() for each in profile.acceptances] == [[0.6, 0.2], [0.9, 0.05]]
    assert {(each.rule, each.temperature) for each in profile.acceptances} == {("sequoia", 0.6)}
    assert profile.pair.target == profile.pair.draft == "llama-tiny-random"


@pytest.mark.slow
def test_passes_are_captured_only_where_asked_for(gallery, inputs, tmp_path, monkeypatch):
    captured = []
    capture = GraphPool.capture
    monkeypatch.setattr(gallery, "clock_for", lambda _: FakeClock(lambda: 0.001))
    monkeypatch.setattr(GraphPool, "capture", lambda pool, work: captured.append(work) or capture(pool, work))
    for way, any_captured in (("eager", False), ("graphs", True)):
        gallery.main([*LITTLE[:-1], "1", "--pass-modes", way, *inputs, "--folder", str(tmp_path)])
        assert bool(captured) is any_captured
    found = [re.sub(".*-tiny-", "", path.stem) for path in sorted(tmp_path.glob("*.yaml"))]
    assert found == ["float32-eager", "float32-graphs"]


@pytest.mark.parametrize("shape", PARAMETERS)
def test_shapes_have_as_many_parameters_as_the_models_they_are_named_after(tools, shape):
    config = tools[1].SHAPES[shape]

    class Counting:
        total = 0

        def get(self, name, shape):  # noqa: ARG002
            self.total += torch.Size(shape).numel()
            return torch.empty(shape, device="meta")

    tensors = Counting()
    tools[1].build_model(config, tensors, name=shape)
    assert tensors.total == PARAMETERS[shape]


def test_random_weights_have_the_size_and_spread_of_real_ones(tools):
    tensors = tools[1].RandomTensors(torch.bfloat16, torch.device("cpu"), 0)
    assert tensors.get("model.layers.0.input_layernorm.weight", (8,)).unique().tolist() == [1.0]
    weight = tensors.get("lm_head.weight", (200, 300))
    assert (weight.dtype, tuple(weight.shape)) == (torch.bfloat16, (200, 300))
    assert weight.float().std().item() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    ("content", "field"),
    [({"a": {"p": "none"}}, "a.p"), ({"a": {"p": [0.9, 0.9]}}, "a.p"), ({"a": {}}, "content")],
)
def test_an_acceptance_that_is_none_is_refused(gallery, tmp_path, content, field):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(FormatError) as caught:
        gallery.read_acceptances(path, temperature=0.6)
    assert caught.value.field == field


def test_measuring_without_an_acceptance_is_refused_at_once(gallery, tmp_path, capsys):
    with pytest.raises(SystemExit):
        gallery.main([*LITTLE, "--folder", str(tmp_path)])
    assert "--acceptance" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_machines_have_names_for_files(gallery, made):
    machine = Profile.load(only(made)).machine
    named = (
        replace(machine, device="cuda:0", processor="NVIDIA H200"),
        replace(machine, processor="A(R) B@2", threads=4),
    )
    assert [gallery.machine_name(each) for each in named] == ["nvidia-h200", "a-r-b-2-4-threads"]
