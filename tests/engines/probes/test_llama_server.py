"""The real server of the wheel xllamacpp: it starts, is measured, and ends with whoever started it."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from treeopt.engines.probes.child import Child, python
from treeopt.errors import EngineError

XLLAMACPP = importlib.util.find_spec("xllamacpp") is not None
WAITS = 'import sys; print(\'{"address": "here"}\', flush=True); sys.stdin.read()'


def gone(pid, within_s=5.0):
    until_s = time.monotonic() + within_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


class TestChild:
    def test_it_says_where_it_is_and_ends_when_closed(self):
        child = Child("e", [sys.executable, "-c", WAITS], timeout_s=20)
        assert child.ready == {"address": "here"}
        child.close()
        assert child._process.returncode == 0

    @pytest.mark.parametrize(
        ("program", "reason"),
        [
            ("import sys; sys.exit('no such model')", "It ended: no such model"),
            ("import time; time.sleep(9)", "within 0.5 s"),
        ],
    )
    def test_one_that_does_not_start_is_one_line(self, program, reason):
        with pytest.raises(EngineError, match=reason):
            Child("e", [sys.executable, "-c", program], timeout_s=0.5 if "sleep" in program else 20)

    @pytest.mark.process
    def test_it_ends_with_a_parent_that_is_killed(self):
        """Nobody tells it: its input ends."""
        code = (
            "import sys, time\nfrom treeopt.engines.probes.child import Child\n"
            f"child = Child('e', [sys.executable, '-c', {WAITS!r}], timeout_s=20)\n"
            "print(child._process.pid, flush=True)\ntime.sleep(60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        assert gone(pid)


@pytest.mark.process
def test_a_missing_model_is_one_line(tmp_path):
    if not XLLAMACPP:
        pytest.skip("xllamacpp is not installed: pip install 'treeopt[engines]'")
    asked = {
        "target": str(tmp_path / "none.gguf"),
        "draft": None,
        "draft_tokens": 0,
        "slots": 1,
        "context_tokens": 64,
        "threads": 1,
    }
    with pytest.raises(EngineError, match="llama-server: expected it to start"):
        Child("llama-server", python("treeopt.engines.probes.llama_process", json.dumps(asked)), timeout_s=30)
