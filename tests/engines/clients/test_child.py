"""Child processes: they start, report, and end with treeopt."""

import importlib.util
import sys
import time

import psutil
import pytest

from treeopt.engines.clients import child as child_module
from treeopt.engines.clients.child import Child
from treeopt.engines.clients.client import EngineConfig
from treeopt.engines.clients.llama_server import LlamaServer
from treeopt.errors import EngineError

XLLAMACPP = importlib.util.find_spec("xllamacpp") is not None
WAITS = 'import sys; print(\'{"address": "here"}\', flush=True); sys.stdin.read()'


@pytest.fixture(autouse=True)
def short_grace(monkeypatch):
    monkeypatch.setattr(child_module, "GRACE_S", 0.2)


def gone(pid, within_s=5.0):
    until_s = time.monotonic() + within_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.02)
    return True


class TestChild:
    def test_child_is_ready_and_ends_when_closed(self):
        child = Child("e", [sys.executable, "-c", WAITS], timeout_s=20)
        assert child.ready == {"address": "here"}
        child.close()
        assert child._process.returncode == 0

    def test_start_beyond_the_time_limit_is_one_line(self):
        with pytest.raises(EngineError, match=r"within 0\.5 s"):
            Child("e", [sys.executable, "-c", "import time; time.sleep(9)"], timeout_s=0.5)


SPAWNS = """
import subprocess, sys
worker = [sys.executable, "-c", "import time; time.sleep(300)"]
pids = [subprocess.Popen(worker, start_new_session=session).pid for session in {sessions}]
print('{{"pids": %s}}' % pids, flush=True)
"""
"""A program with workers in its own or other sessions."""


@pytest.mark.process
@pytest.mark.parametrize(
    "ending", ["sys.stdin.read()", "import time; time.sleep(300)"], ids=["ends with its input", "has to be killed"]
)
def test_workers_of_a_closed_child_are_gone(ending):
    """They would keep the memory that the next server needs."""
    child = Child("e", [sys.executable, "-c", SPAWNS.format(sessions=(False, True)) + ending], timeout_s=20)
    pids = child.ready["pids"]
    assert all(psutil.pid_exists(pid) for pid in pids)
    child.close()
    assert all(gone(pid, within_s=0) for pid in pids)


@pytest.mark.process
def test_workers_that_outlive_a_child_are_gone_once_it_is_closed():
    child = Child("e", [sys.executable, "-c", SPAWNS.format(sessions=(False,))], timeout_s=20)
    child._process.wait()
    (pid,) = child.ready["pids"]
    assert not gone(pid, within_s=0)
    child.close()
    assert gone(pid, within_s=0)


@pytest.mark.process
def test_missing_model_is_one_line(tmp_path):
    if not XLLAMACPP:
        pytest.skip("xllamacpp is not installed: pip install 'treeopt[engines]'")
    config = EngineConfig(target=str(tmp_path / "none.gguf"), draft=None, draft_tokens=0, threads=1, timeout_s=30)
    client = LlamaServer()
    with pytest.raises(EngineError, match="llama-server: expected it to start"):
        client.start(config)
