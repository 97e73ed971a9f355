"""Runs check_second_device.py in another process, because torch cannot unregister a simulated device."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.process
def test_target_and_draft_model_on_two_devices():
    checks = Path(__file__).with_name("check_second_device.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(checks)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=checks.parents[3], check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
