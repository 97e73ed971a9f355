"""`treeopt doctor`: findings, actions, and running without torch."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.cli.conftest import no_other_programs
from tests.cli.invented import call
from treeopt import doctor
from treeopt.doctor import Check, doctor_text
from treeopt.profiler.latency import load as load_module


def fake_torch(threads=4, gpus=(), version="2.13.0"):
    """Return a torch with a number of threads, and GPUs given by their free bytes of 100."""
    cuda = SimpleNamespace(
        is_available=lambda: bool(gpus),
        device_count=lambda: len(gpus),
        mem_get_info=lambda number: (gpus[number], 100),
        get_device_name=lambda number: f"GPU {number}",
    )
    return SimpleNamespace(__version__=version, get_num_threads=lambda: threads, cuda=cuda)


@pytest.fixture
def machine(monkeypatch):
    """Return a function that pretends a machine, by default one without findings."""

    def machine(*, torch=None, cores=4, driver=False, **variables):
        monkeypatch.setattr(doctor, "_torch", lambda: torch or fake_torch())
        monkeypatch.setattr(doctor, "_processors", lambda: (2 * cores, cores))
        monkeypatch.setattr(doctor, "has_nvidia_driver", lambda: driver)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return machine


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("options", "found", "action"),
    [
        ({}, "torch runs 4 threads on 4 cores", None),
        ({"cores": 2}, "4 threads on 2 cores, so some threads share a core", "--threads 2 "),
        ({"cores": 8}, "4 threads on 8 cores", "--threads 8,"),
        (
            {"torch": fake_torch(threads=1), "OMP_NUM_THREADS": "1"},
            "1 thread on 4 cores because OMP_NUM_THREADS is 1",
            "--threads 4,",
        ),
        ({"torch": fake_torch(threads=1, gpus=(95,))}, "1 thread on 4 cores", None),
        ({"torch": "gone"}, "unknown", None),
    ],
)
def test_threads_are_compared_with_cores(machine, tmp_path, options, found, action):
    machine(**options)
    check = doctor.check_threads(tmp_path)
    assert found in check.found
    assert (check.action is None) == (action is None)
    assert (action or "") in (check.action or "")


def test_threads_are_compared_with_the_quota(machine, tmp_path):
    machine()
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    check = doctor.check_threads(tmp_path)
    assert "quota is 1.5 processors" in check.found
    assert "--threads 1," in str(check.action)
    write(tmp_path, "sys/fs/cgroup/cpu.max", "400000 100000\n")
    assert doctor.check_threads(tmp_path).action is None


@pytest.mark.parametrize(
    ("options", "found", "action"),
    [
        ({}, "2.13.0, no device but cpu", None),
        ({"driver": True}, "2.13.0, finds no GPU", "CUDA_VISIBLE_DEVICES"),
        ({"driver": True, "torch": fake_torch(gpus=(95,))}, "2.13.0", None),
        ({"torch": "gone"}, "cannot be imported (gone)", "pip install torch"),
    ],
)
def test_torch_finds_the_gpu(machine, options, found, action):
    machine(**options)
    check = doctor.check_torch()
    assert found in check.found
    assert (check.action is None) == (action is None)
    assert (action or "") in (check.action or "")


def test_gpu_memory_used_by_other_programs(machine):
    machine(torch=fake_torch(gpus=(95, 75)))
    first, second = doctor.check_gpus()
    assert (first.name, first.action) == ("cuda:0", None)
    assert "other programs use 25 %" in second.found
    assert "--device" in str(second.action)


def test_a_missing_package_is_to_be_installed(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("numpy", "torch") else "1")
    check = doctor.check_packages()
    assert "numpy missing" in check.found
    assert check.action == "Run pip install numpy."  # torch has its own check


def test_other_programs_are_reported(machine, monkeypatch):
    machine()
    for busy, disturbs in ((0.0, False), (0.99, True)):
        load = load_module.Load(8 * busy, 8, 8)
        monkeypatch.setattr(load_module, "report_load", lambda load=load: load_module.LoadReport(load, ()))
        check = doctor.check_load()
        assert f"{round(100 * busy)} % of 8 processors" in check.found
        assert (check.action is not None) == disturbs
    assert "profile with --wait 10m" in str(check.action)


def test_governors_of_all_processors_are_read(machine, tmp_path):
    machine()
    assert doctor.frequency_governor(tmp_path) is None
    assert doctor.check_processor(tmp_path).action is None
    for number, name in enumerate(("powersave", "powersave", "performance")):
        write(tmp_path, f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", f"{name}\n")
    check = doctor.check_processor(tmp_path)
    assert "governor performance, powersave" in check.found
    assert "cpupower" in str(check.action)
    for number in range(2):
        write(tmp_path, f"sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", "performance\n")
    assert doctor.check_processor(tmp_path).action is None


def test_limits_of_containers_are_read(tmp_path: Path) -> None:
    assert doctor.quota_processors(tmp_path) is None
    for text, expected in (("150000 100000\n", 1.5), ("max 100000\n", None), ("", None), ("1 0", None), ("a b", None)):
        write(tmp_path, "sys/fs/cgroup/cpu.max", text)
        assert doctor.quota_processors(tmp_path) == expected
    (tmp_path / "sys/fs/cgroup/cpu.max").unlink()
    for quota, expected in (("50000", 0.5), ("-1", None)):
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)
        write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
        assert doctor.quota_processors(tmp_path) == expected


def test_a_battery_in_use_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for plugged, action in ((True, None), (False, "Plug it in before you profile."), (None, None)):
        battery = SimpleNamespace(power_plugged=plugged)
        monkeypatch.setattr(psutil, "sensors_battery", lambda battery=battery: battery, raising=False)
        assert doctor.check_power().action == action
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    assert doctor.check_power().action is None


def test_checks_run_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    doctor._torch.cache_clear()
    try:
        result = call("doctor")
    finally:
        doctor._torch.cache_clear()
    assert (result.exit_code, result.stderr) == (0, "")
    assert "cannot be imported (" in result.stdout
    assert "pip install torch" in result.stdout


def test_every_requirement_is_listed() -> None:
    assert set(doctor.required_packages()) >= {"numpy", "torch", "click"}
    assert set(doctor.OPTIONAL).isdisjoint(doctor.required_packages())
    assert "numpy 2" in doctor.check_packages().found


def test_actions_follow_their_findings() -> None:
    good = Check(name="torch", found="2.13.0")
    assert doctor_text([good]).splitlines()[-1] == "Nothing to do."
    bad = Check(name="power", found="on battery", action="Plug it in.")
    lines = doctor_text([good, bad, good]).splitlines()
    assert lines[1].split() == ["power", "on", "battery"]
    assert lines[2] == "  -> Plug it in."
    assert lines[-1].startswith("1 thing to do")


def test_control_characters_are_escaped() -> None:
    text = doctor_text([Check(name="processor", found="a\x1b[31m\u202eb")])
    assert "\x1b" not in text
    assert "\\x1b[31m" in text


def test_text_and_json_agree() -> None:
    with no_other_programs():
        lines, as_json = call("doctor"), call("doctor", "--json")
    assert (lines.exit_code, lines.stderr, as_json.exit_code) == (0, "", 0)
    checks = json.loads(as_json.stdout)["checks"]
    expected = {"treeopt", "processor", "memory", "torch", "other programs", "accelerate", "engine llama-server"}
    assert expected <= {check["name"] for check in checks}
    assert all(f"\n{check['name']}" in f"\n{lines.stdout}" for check in checks)
    assert f'"{checks[0]["found"]}"' in as_json.stdout
    assert checks[0]["found"] in lines.stdout
