"""The gallery: profiles of random models, and a page that is made of the files alone."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.profiler.pretended import FakeClock
from treeopt import Profile, plan
from treeopt.errors import FormatError
from treeopt.planner.comparison import compare
from treeopt.records.latency import LatencyTable, Timing
from treeopt.runtime.models.graphs import GraphPool
from treeopt.trees import TokenTree, TreeFile, chain, level_widths

ROOT = Path(__file__).resolve().parents[2]
VECTORS = {"first": {"p": [0.6, 0.2]}, "second": {"source": "a paper", "p": [0.9, 0.05]}, "other": {"max_depth": 10}}
SIZE = ["--device", "cpu", "--targets", "tiny", "--drafts", "tiny", "--context-tokens", "16", "32"]
LITTLE = [*SIZE, "--max-tokens", "16", "--rounds", "2"]
TREES = {"chain-of-3": chain(2), "bush": level_widths([3, 2]), "large": chain(16)}
PARAMETERS = {"68m": 68_030_208, "160m": 162_417_408, "7b": 6_738_415_616, "13b": 13_015_864_320}
"""Of llama-68m, llama-160m, Llama-2-7B and Llama-2-13B as published."""


@pytest.fixture(scope="module")
def tools():
    """Return the modules of the script, which import each other as scripts do."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import gallery
        import gallery_page
        import gallery_shapes
    finally:
        sys.path.remove(str(ROOT / "tools"))
    return gallery, gallery_page, gallery_shapes


@pytest.fixture(scope="module")
def gallery(tools):
    return tools[0]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return the options that name acceptance and trees."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "vectors.json").write_text(json.dumps(VECTORS), "utf-8")
    for name, tree in TREES.items():
        TreeFile(tree=tree).save(folder / f"{name}.json")
    trees = [str(folder / f"{name}.json") for name in TREES]
    return ["--acceptance", str(folder / "vectors.json"), "--trees", *trees]


@pytest.fixture(scope="module")
def made(gallery, inputs, tmp_path_factory):
    """Return the folder of a gallery in which a pass takes the same time whatever its size."""
    folder = tmp_path_factory.mktemp("profiles")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery, "clock_for", lambda _: FakeClock(lambda: 0.001))
        gallery.main([*LITTLE, *inputs, "--folder", str(folder)])
    return folder


@pytest.fixture
def copied(made, tmp_path):
    """Return a copy that a test may change."""
    for path in made.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def page(folder):
    return (folder / "README.md").read_text("utf-8")


def regenerated(gallery, folder, inputs):
    (folder / "README.md").unlink(missing_ok=True)
    gallery.main(["--page-only", *inputs[2:], "--folder", str(folder)])
    return page(folder)


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


def test_the_page_names_file_command_and_date(made, inputs):
    path = only(made)
    command = f"python tools/gallery.py {' '.join([*LITTLE, *inputs])} --folder {made}"
    row = next(line for line in page(made).splitlines() if f"({path.name})" in line)
    assert f"`{command}`" in row
    assert Profile.load(path).created[:10] in row


def test_the_page_holds_what_planning_and_comparing_say(made):
    path = only(made)
    profile = Profile.load(path)
    alone = replace(profile, acceptances=profile.acceptances[1:])
    found = plan(alone, 16, context_tokens=32)
    best, expected = found.choice, compare(found.model, list(TREES.values()))
    start = f"| {path.stem} | vectors.json (second) | 32 x 1 | "
    planned, shipped = (line.removeprefix(start) for line in page(made).splitlines() if line.startswith(start))
    assert planned.startswith(
        f"sequoia | {best.tree.nodes} | {best.tree.max_depth} | {best.tokens_per_step.value:.2f} ("
    )
    assert expected[2].prediction is None  # more than 16 tokens
    cells = [f"{one.prediction.speedup.value:.2f}" for one in expected[:2]]
    assert shipped == f"{best.speedup.value:.2f} | {cells[0]} | {cells[1]} | - |"


def test_the_page_is_made_of_the_files_alone(gallery, made, copied, inputs):
    assert regenerated(gallery, copied, inputs) == page(made)


def test_other_numbers_make_another_page(gallery, made, copied, inputs):
    path = only(copied)
    profile = Profile.load(path)
    first, *others = profile.latencies
    slow = LatencyTable([1, 16], [Timing([0.001]), Timing([0.123])])
    replace(profile, latencies=(replace(first, verify=slow), *others)).save(path)
    changed = regenerated(gallery, copied, inputs)
    before, after = page(made).splitlines(), changed.splitlines()
    rows = [new for old, new in zip(before, after, strict=True) if old != new]
    assert rows
    assert all("| 16 x 1 |" in row for row in rows)
    (times,) = (row for row in rows if "| sampled |" in row)
    assert "| 1.00 | 57.9 | - |" in times  # 1 + 122 * 7 / 15


def test_a_profile_measured_by_a_command_needs_no_import(gallery, copied, inputs):
    name = "bundled-2-cores.yaml"
    (copied / name).write_bytes((ROOT / "docs" / "profiles" / name).read_bytes())
    row = next(line for line in regenerated(gallery, copied, inputs).splitlines() if f"({name})" in line)
    assert row.endswith("| `treeopt profile` |")
    assert "| bundled-2-cores | measured at temperature 0 | 256 x 1 | sequoia | 8 | 6 |" in page(copied)


@pytest.mark.slow
def test_passes_are_captured_only_where_asked_for(gallery, inputs, tmp_path, monkeypatch):
    captured = []
    capture = GraphPool.capture
    monkeypatch.setattr(gallery, "clock_for", lambda _: FakeClock(lambda: 0.001))
    monkeypatch.setattr(GraphPool, "capture", lambda pool, work: captured.append(work) or capture(pool, work))
    for way, any_captured in (("eager", False), ("graphs", True)):
        gallery.main([*LITTLE[:-1], "1", "--ways", way, *inputs[:2], "--folder", str(tmp_path)])
        assert bool(captured) is any_captured
    found = [re.sub(".*-tiny-", "", path.stem) for path in sorted(tmp_path.glob("*.yaml"))]
    assert found == ["float32-eager", "float32-graphs"]
    assert "| float32 | graphs |" in page(tmp_path)


@pytest.mark.parametrize("shape", PARAMETERS)
def test_shapes_have_as_many_parameters_as_the_models_they_are_named_after(tools, shape):
    config = tools[2].SHAPES[shape]

    class Counting:
        total = 0

        def get(self, name, shape):  # noqa: ARG002
            self.total += torch.Size(shape).numel()
            return torch.empty(shape, device="meta")

    tensors = Counting()
    tools[2].build_model(config, tensors, name=shape)
    assert tensors.total == PARAMETERS[shape]


def test_random_weights_have_the_size_and_spread_of_real_ones(tools):
    tensors = tools[2].RandomTensors(torch.bfloat16, torch.device("cpu"), 0)
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
        gallery.acceptances(path, temperature=0.6)
    assert caught.value.field == field


def test_measuring_without_an_acceptance_is_refused_at_once(gallery, tmp_path, capsys):
    with pytest.raises(SystemExit):
        gallery.main([*LITTLE, "--folder", str(tmp_path)])
    assert "--acceptance: expected a file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_machines_have_names_for_files(gallery, made):
    machine = Profile.load(only(made)).machine
    named = (
        replace(machine, device="cuda:0", processor="NVIDIA H200"),
        replace(machine, processor="A(R) B@2", threads=4),
    )
    assert [gallery.machine_name(each) for each in named] == ["nvidia-h200", "a-r-b-2-4-threads"]


def test_a_tree_of_a_file_is_named_after_it(gallery, tmp_path):
    TreeFile(tree=TokenTree([-1, 0])).save(tmp_path / "two.json")
    assert [each.name for each in gallery.named_trees(tmp_path / "two.json")] == ["two"]
