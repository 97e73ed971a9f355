"""The gallery: profiles of models with random weights."""

import json
import re
from dataclasses import replace

import pytest
import torch

from tests.profiler.pretended import FakeClock
from tests.scripts import together
from treeopt import Profile
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
def profiles_folder(gallery, inputs, tmp_path_factory):
    """Return the folder of a gallery with passes of equal time."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "clock_for", lambda _: FakeClock(lambda: 0.001))
        gallery.main([*LITTLE, *inputs, "--folder", str(folder)])
    return folder


def test_a_profile_contains_measured_times_and_imported_acceptance(gallery, profiles_folder):
    (path,) = profiles_folder.glob("*.yaml")
    profile = Profile.load(path)
    assert path.name.endswith("-tiny-tiny-float32-eager.yaml")
    assert [latency.context_tokens for latency in profile.latencies] == [16, 32]
    assert {latency.sampled for latency in profile.latencies} == {True}
    assert {latency.imported for latency in profile.latencies} == {()}
    assert {timing.samples_s[0] for latency in profile.latencies for timing in latency.verify.timings} == {0.001}
    sources = [acceptance.imported[0].source for acceptance in profile.acceptances]
    assert sources == ["vectors.json (first)", "vectors.json (second)"]
    assert [acceptance.table.p.tolist() for acceptance in profile.acceptances] == [[0.6, 0.2], [0.9, 0.05]]
    assert {(acceptance.rule, acceptance.temperature) for acceptance in profile.acceptances} == {("sequoia", 0.6)}
    assert profile.pair.target == profile.pair.draft == "llama-tiny-random"
    gpu = replace(profile.machine, device="cuda:0", processor="NVIDIA H200")
    cpu = replace(profile.machine, processor="A(R) B@2", threads=4)
    assert [gallery.machine_name(machine) for machine in (gpu, cpu)] == ["nvidia-h200", "a-r-b-2-4-threads"]


@pytest.mark.slow
def test_passes_are_captured_in_mode_graphs_only(gallery, inputs, tmp_path, monkeypatch):
    captured = []
    capture = GraphPool.capture
    monkeypatch.setattr(gallery, "clock_for", lambda _: FakeClock(lambda: 0.001))
    monkeypatch.setattr(GraphPool, "capture", lambda pool, work: captured.append(work) or capture(pool, work))
    for mode, any_captured in (("eager", False), ("graphs", True)):
        gallery.main([*LITTLE[:-1], "1", "--pass-modes", mode, *inputs, "--folder", str(tmp_path)])
        assert bool(captured) is any_captured
    modes = [re.sub(".*-tiny-", "", path.stem) for path in sorted(tmp_path.glob("*.yaml"))]
    assert modes == ["float32-eager", "float32-graphs"]


@pytest.mark.parametrize("shape", PARAMETERS)
def test_shapes_have_the_published_numbers_of_parameters(tools, shape):
    config = tools[1].SHAPES[shape]

    class Counting:
        total = 0

        def get(self, name, shape):  # noqa: ARG002
            self.total += torch.Size(shape).numel()
            return torch.empty(shape, device="meta")

    tensors = Counting()
    tools[1].build_model(config, tensors, name=shape)
    assert tensors.total == PARAMETERS[shape]


def test_random_weights_have_shape_dtype_and_deviation(tools):
    tensors = tools[1].RandomTensors(torch.bfloat16, torch.device("cpu"), 0)
    assert tensors.get("model.layers.0.input_layernorm.weight", (8,)).unique().tolist() == [1.0]
    weight = tensors.get("lm_head.weight", (200, 300))
    assert (weight.dtype, tuple(weight.shape)) == (torch.bfloat16, (200, 300))
    assert weight.float().std().item() == pytest.approx(0.02, rel=0.02)
