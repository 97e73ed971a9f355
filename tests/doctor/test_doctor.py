"""`treeopt doctor`: what it reads of a machine, what it concludes, and that it goes on without torch."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.cli.conftest import no_other_programs
from tests.cli.invented import call
from treeopt.doctor import host, installed, torch_facts
from treeopt.doctor.examine import examine
from treeopt.doctor.facts import Device, EngineFound, Facts, Host, Load, Package, Torch
from treeopt.doctor.remarks import remarks
from treeopt.doctor.text import WELL, doctor_json, doctor_text

HOST = Host(
    system="Linux 6",
    processor="a processor",
    processors=8,
    cores=4,
    quota_processors=None,
    governor="performance",
    on_battery=False,
    memory_bytes=2**34,
    available_bytes=2**33,
)
TORCH = Torch(version="2.13.0", failure=None, threads=4, devices=(), nvidia_unseen=False)
GPU = Device(name="cuda:0", model="a GPU", memory_bytes=100, free_bytes=95)
NUMPY = Package(name="numpy", version="2.4", needed_for="treeopt", install="pip install treeopt")
GGUF = Package(name="gguf", version=None, needed_for="GGUF models", install='pip install "treeopt[gguf]"')
FACTS = Facts(
    treeopt="0.2.0",
    python="3.11",
    host=HOST,
    torch=TORCH,
    omp_num_threads=None,
    packages=(NUMPY, GGUF),
    engines=(EngineFound(name="vllm", version=None, started="by you", install="run it"),),
    load=Load(sight="0% of 8 processors", disturbs=False),
)


def on(**changes: object) -> Facts:
    return replace(FACTS, host=replace(HOST, **changes))


def with_torch(**changes: object) -> Facts:
    return replace(FACTS, torch=replace(TORCH, **changes))


def test_every_finding_has_its_remark_and_a_good_machine_has_none() -> None:
    busy = Load(sight="99% of 8 processors", disturbs=True)
    for facts, found, action in (
        (on(governor="performance, powersave"), "is performance, powersave, so short passes", "cpupower"),
        (on(on_battery=True), "runs on its battery", "Plug it in"),
        (on(quota_processors=1.5), "the time of 1.5 processors, but torch runs 4 threads", "--threads 1,"),
        (on(cores=2), "torch runs 4 threads on 2 cores, so some share", "--threads 2 "),
        (on(cores=8), "torch runs 4 threads on 8 cores.", "--threads 8,"),
        (
            replace(with_torch(threads=1), omp_num_threads="1"),
            "1 thread on 4 cores because OMP_NUM_THREADS is 1.",
            "--threads 4,",
        ),
        (
            with_torch(version=None, threads=None, failure="gone"),
            "torch cannot be imported (gone)",
            "pip install torch",
        ),
        (with_torch(nvidia_unseen=True), "torch 2.13.0 sees no GPU", "CUDA_VISIBLE_DEVICES"),
        (with_torch(devices=(replace(GPU, free_bytes=75),)), "25% of the memory of cuda:0", "--device"),
        (
            replace(FACTS, packages=(replace(NUMPY, version=None),)),
            "numpy, which is not installed",
            "pip install numpy",
        ),
        (replace(FACTS, load=busy), "other programs use 99% of 8 processors", "profile with --wait 10m"),
    ):
        (remark,) = remarks(facts)
        assert found in remark.found
        assert action in remark.action
        text = doctor_text(facts, [remark])
        assert WELL not in text
        assert f"- {remark}" in text
    for facts in (FACTS, on(governor=None), on(quota_processors=4.0), with_torch(devices=(GPU,), threads=1)):
        assert remarks(facts) == []
        assert WELL in doctor_text(facts, [])


def test_missing_torch_is_told_once() -> None:
    torch = replace(NUMPY, name="torch", version=None)
    facts = replace(with_torch(version=None, threads=None, failure="gone"), packages=(torch,))
    assert len(remarks(facts)) == 1


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_governors_of_all_processors_are_read(tmp_path: Path) -> None:
    assert host.governor(tmp_path) is None
    for number, name in enumerate(("powersave", "powersave", "performance")):
        write(tmp_path, f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", f"{name}\n")
    assert host.governor(tmp_path) == "performance, powersave"


def test_limits_of_containers_are_read(tmp_path: Path) -> None:
    assert host.quota_processors(tmp_path) is None
    for text, expected in (("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("1 0", None), ("a b", None)):
        write(tmp_path, "sys/fs/cgroup/cpu.max", text)
        assert host.quota_processors(tmp_path) == expected
    (tmp_path / "sys/fs/cgroup/cpu.max").unlink()
    for quota, expected in (("50000", 0.5), ("-1", None)):
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
        assert host.quota_processors(tmp_path) == expected


def test_the_host_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = host.describe_host()
    assert 1 <= found.cores <= found.processors
    assert 0 < found.available_bytes <= found.memory_bytes
    for plugged, expected in ((True, False), (False, True), (None, False)):
        battery = SimpleNamespace(power_plugged=plugged)
        monkeypatch.setattr(psutil, "sensors_battery", lambda battery=battery: battery, raising=False)
        assert host.describe_host().on_battery is expected


def test_it_goes_on_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = torch_facts.describe_torch()
    assert (found.version, found.threads, found.devices) == (None, None, ())
    assert "torch" in str(found.failure)
    assert examine().load == Load(sight=None, disturbs=False)
    result = call("doctor")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "- torch cannot be imported (" in result.stdout
    assert "pip install torch" in result.stdout


def test_every_requirement_of_the_metadata_is_told() -> None:
    told = {each.name: each for each in installed.describe_packages()}
    assert set(installed.required_names()) >= {"numpy", "torch", "click"}
    assert told["numpy"].needed_for == "treeopt"
    assert told["numpy"].version
    assert told["transformers"].needed_for != "treeopt"
    assert set(installed.OPTIONAL).isdisjoint(installed.required_names())


class TestCommand:
    @pytest.fixture(autouse=True)
    def quiet(self):
        with no_other_programs():
            yield

    def test_lines(self) -> None:
        result = call("doctor")
        assert (result.exit_code, result.stderr) == (0, "")
        for name in (
            "treeopt ",
            "processor",
            "memory",
            "torch",
            "other load",
            "llama-server",
            "openvino",
            "accelerate",
        ):
            assert f"\n{name}" in f"\n{result.stdout}", name

    def test_json_says_the_same(self) -> None:
        result = call("doctor", "--json")
        assert result.exit_code == 0
        content = json.loads(result.stdout)
        assert set(content) == {
            "treeopt", "python", "host", "torch", "omp_num_threads", "packages", "engines", "load", "remarks",
        }  # fmt: skip
        assert content["torch"]["threads"] >= 1
        assert {each["name"] for each in content["engines"]} >= {"llama-server", "vllm"}
        assert all(isinstance(each, str) for each in content["remarks"])

    def test_names_reach_no_terminal_raw(self) -> None:
        text = doctor_text(on(processor="a\x1b[31m\u202eb"), [])
        assert "\x1b" not in text
        assert "\\x1b[31m" in text
        assert json.loads(doctor_json(on(processor="a\x1bb"), []))["host"]["processor"] == "a\x1bb"
