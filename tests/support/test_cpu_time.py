"""A fast test that takes too much CPU time fails the run, whoever spends it; a slow one may take any."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = """
from tests.support.cpu_time import CpuTime
from tests.support import cpu_time

def pytest_configure(config):
    config.addinivalue_line("markers", "slow: any time")
    cpu_time.LISTED_S = 0.02
    config.pluginmanager.register(CpuTime(0.1), "cpu-time")
"""
TESTS = """
import subprocess, sys, time
import pytest

BURN = "import time\\nwhile time.process_time() < 0.2: pass"

def burn():
    start_s = time.process_time()
    while time.process_time() - start_s < 0.2:
        pass

def test_quick():
    time.sleep(0.15)  # takes time, but no CPU time

def test_long():
    burn()

@pytest.mark.slow
def test_slow():
    burn()

def test_child():
    subprocess.run([sys.executable, "-S", "-c", BURN], check=True)

def test_failing():
    burn()
    assert False, "its own reason"
"""


@pytest.mark.process
@pytest.mark.slow
def test_long_fast_tests_fail_and_are_named(tmp_path):
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_these.py").write_text(TESTS)
    plain = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest", "-c", str(tmp_path / "none.ini")]
    (tmp_path / "none.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", *plain, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "CI": "", "BUILD_NUMBER": ""},  # where these are set, pytest's summary is another
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert "3 failed, 2 passed" in said
    for name in ("test_long", "test_child"):
        assert f"{name} takes 0." in said
        assert f"test_these.py::{name}\n" in said.partition("short test summary info")[2]
    assert said.count("a fast test at most 0.1: mark it slow or make it smaller.") == 2
    assert "its own reason" in said
    listed = said.partition("fast tests over 0.02 CPU second")[2]
    assert "test_long" in listed
    assert "test_slow" not in listed.partition("CPU seconds")[0]
    assert "test_quick" not in listed.partition("CPU seconds")[0]
