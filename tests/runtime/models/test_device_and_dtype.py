"""Device and dtype by default: CUDA and the checkpoint's dtype if available, those of a file, or CPU and float32."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from treeopt import bundled
from treeopt.cli.identity import load_models
from treeopt.cli.options.pair import PairOptions
from treeopt.errors import InvalidValueError
from treeopt.profiler.processes.distributed import local_device
from treeopt.records.identity import Identity
from treeopt.runtime.models import load
from treeopt.runtime.models import pair as pairs
from treeopt.runtime.models.folder import ModelFolder

AUTO_OPTIONS = {
    "target": None,
    "draft": None,
    "device": "auto",
    "dtype": "auto",
    "threads": None,
    "offload": None,
    "max_memory": (),
}


@pytest.fixture
def gpu(monkeypatch):
    """Have torch find one GPU, on which nothing can run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**9, 10**9))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: empty(*size, **options | {"device": "cpu"}))


def copy_target(folder, **config):
    """Return a copy of the bundled target with another dtype in its configuration."""
    copied = Path(shutil.copytree(bundled.TARGET, folder / "model"))
    content = json.loads((copied / "config.json").read_text())
    for name in ("dtype", "torch_dtype"):
        content.pop(name, None)
    (copied / "config.json").write_text(json.dumps(content | config))
    return copied


def test_auto_is_the_cpu_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert load.resolve_device("auto") == torch.device("cpu")
    assert local_device("auto", {}) == torch.device("cpu")


@pytest.mark.usefixtures("gpu")
def test_auto_is_cuda_if_torch_finds_it():
    assert load.resolve_device("auto") == torch.device("cuda")
    assert local_device("auto", {"WORLD_SIZE": "2", "LOCAL_RANK": "0"}) == torch.device("cuda:0")
    assert load.resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [("auto", "cpu", "float32"), ("auto", "cuda", "bfloat16"), ("float16", "cuda", "float16")],
)
def test_auto_is_the_dtype_of_the_checkpoint_on_a_gpu(tmp_path, name, device, expected):
    folder = copy_target(tmp_path, dtype="bfloat16")
    assert load.resolve_dtype(folder, name, torch.device(device)) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({}, None),
        ({"dtype": 16}, None),
    ],
)
def test_dtype_of_a_checkpoint(tmp_path, config, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert ModelFolder(tmp_path).dtype == expected


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("device", "dtype", "stored", "expected"),
    [
        ("auto", "auto", "bfloat16", ("cuda", torch.bfloat16)),
        ("auto", "float16", "bfloat16", ("cuda", torch.float16)),
        ("auto", "auto", "int8", ("cuda", torch.float32)),
        ("cpu", "auto", "bfloat16", ("cpu", torch.float32)),
        ("cpu", "bfloat16", "float32", ("cpu", torch.bfloat16)),
    ],
)
def test_load_pair_uses_the_resolved_device_and_dtype(tmp_path, monkeypatch, device, dtype, stored, expected):
    class LoadedError(Exception):
        pass

    def load_model(_, **options):
        raise LoadedError(str(options["device"]), options["dtype"])

    monkeypatch.setattr(pairs, "load_language_model", load_model)
    with pytest.raises(LoadedError) as loaded:
        pairs.load_pair(copy_target(tmp_path, dtype=stored), device=device, dtype=dtype)
    assert loaded.value.args == expected


def test_first_line_describes_the_run(capsys):
    PairOptions(**AUTO_OPTIONS).load()
    assert capsys.readouterr().err.splitlines()[0] == "bundled target + bundled draft: cpu, float32"


@pytest.mark.usefixtures("gpu")
def test_unused_gpu_is_named(bundled_pair):
    assert pairs.describe_run(bundled_pair).endswith(
        "cpu, float32. A GPU is unused (Some GPU): leave --device out, or pass --device cuda"
    )


def test_unknown_dtype_is_refused():
    with pytest.raises(InvalidValueError, match=r"dtype: expected auto, float32, bfloat16, float16\. Got 'int4'"):
        pairs.load_pair(dtype="int4")


class TestConditionsOfAFile:
    """A file's device, dtype and threads are defaults, if this machine has them."""

    @pytest.fixture
    def loaded(self, monkeypatch):
        """Return the options of each load."""
        loaded = []
        monkeypatch.setattr(PairOptions, "load", lambda options, **_: loaded.append(options) or SimpleNamespace())
        monkeypatch.setattr("treeopt.cli.identity.identity_here", lambda _: Identity())
        return loaded

    @pytest.mark.parametrize(
        ("user", "file", "expected"),
        [
            ({}, {"device": "cpu", "dtype": "bfloat16", "threads": 1}, ("cpu", "bfloat16", 1)),
            ({}, {"device": "cuda:7", "dtype": "q8_0", "threads": 4096}, ("auto", "auto", None)),
            ({}, {"device": "cuda:one"}, ("auto", "auto", None)),
            ({"dtype": "float16"}, {"device": "cpu", "dtype": "bfloat16"}, ("cpu", "float16", None)),
            ({"device": "cuda:0", "threads": 2}, {"device": "cpu", "threads": 1}, ("cuda:0", "auto", 2)),
            ({}, {}, ("auto", "auto", None)),
        ],
    )
    def test_options_come_first(self, loaded, user, file, expected):
        options = PairOptions(**(AUTO_OPTIONS | user))
        load_models(options, Path("tree.json"), Identity(**file))
        assert (loaded[0].device, loaded[0].dtype, loaded[0].threads) == expected

    @pytest.mark.usefixtures("gpu")
    def test_gpu_of_the_file_is_used(self, loaded):
        for device in ("cuda:0", "cuda"):
            load_models(PairOptions(**AUTO_OPTIONS), Path("tree.json"), Identity(device=device))
        assert [options.device for options in loaded] == ["cuda:0", "cuda"]
