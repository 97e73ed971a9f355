"""Runs check_second_device.py in a process of its own, because a simulated device cannot be taken back from torch."""

import subprocess
import sys
from pathlib import Path


def test_target_and_draft_model_on_two_devices():
    checks = Path(__file__).with_name("check_second_device.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(checks)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=checks.parents[3], check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
