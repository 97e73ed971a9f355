"""The program llama-server, faked by a script: flags, completions, and its end with treeopt."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.engines.clients.test_child import gone
from treeopt.engines.clients import llama_server
from treeopt.engines.clients.client import CompletionRequest, EngineConfig
from treeopt.engines.clients.llama_server import LlamaProgram
from treeopt.engines.clients.registry import create_client, list_engines
from treeopt.errors import EngineError, InvalidValueError
from treeopt.profiler.engine_profile import machine_of

TODAY = "-m, --model FNAME\n--spec-type TYPE\n--spec-draft-n-max N\n--spec-draft-n-min N\n--spec-draft-p-min P\n"
BEFORE = "-m, --model FNAME\n--draft, --draft-max N\n--draft-min N\n--draft-p-min P\n"
SCRIPT = """#!{python} -IS
import sys
if "--help" in sys.argv:
    sys.exit(print({help!r}))
if "--version" in sys.argv:
    print("version: 7311 (abc)\\nbuilt with cc", file=sys.stderr)
    sys.exit()
if {fault!r}:
    sys.exit({fault!r})
import json, os
from http.server import BaseHTTPRequestHandler, HTTPServer
options = dict(zip(sys.argv[1:], sys.argv[2:]))
print({logs!r}, file=sys.stderr, flush=True)
json.dump([os.getpid(), sys.argv[1:]], open({log!r}, "w"))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        timings = {{"predicted_n": 9, "predicted_ms": 12.0, "draft_n": 10, "draft_n_accepted": 3}}
        if {logs!r}:
            del timings["draft_n"], timings["draft_n_accepted"]
        completion = {{"content": "text", "timings": timings, "tokens_evaluated": 5}}
        response = {{"/health": {{}}, "/completion": completion}}.get(self.path)
        self.send_response(404 if response is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(response).encode())
    do_POST = do_GET
    def log_message(self, *_): pass
HTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""
CONFIG = EngineConfig(target="t.gguf", draft="my d.gguf", draft_tokens=3, slots=2, context_tokens=64, timeout_s=20)


@pytest.fixture
def program(tmp_path):
    """Return the function that writes the script, which writes its process id and arguments to `log`."""

    def write(*, options=TODAY, fault="", logs=""):
        path = tmp_path / "llama-server"
        log = str(tmp_path / "log")
        path.write_text(SCRIPT.format(python=sys.executable, help=options, fault=fault, log=log, logs=logs), "utf-8")
        path.chmod(0o755)
        return path

    return write


NGRAM = replace(CONFIG, draft=None, method="ngram", ngram_tokens=4)


@pytest.mark.parametrize("name", ["--spec-ngram-simple-size-", "--spec-ngram-size-"])
def test_ngram_flags_are_those_of_its_help(program, name):
    server = LlamaProgram(str(program(options=f"{TODAY}{name}n N\n{name}m N\n")))
    plain = server.flags(replace(CONFIG, draft_tokens=0))
    assert server.flags(NGRAM) == (*plain, "--spec-type", "ngram-simple", f"{name}m", "3", f"{name}n", "4")
    assert server.flags(replace(CONFIG, method="eagle3"))[-2:] == ("--spec-type", "draft-eagle3")


def test_program_without_ngram_flags_is_refused(program):
    with pytest.raises(EngineError, match="help names --spec-type and --spec-ngram-simple-size-m"):
        LlamaProgram(str(program())).flags(NGRAM)


@pytest.mark.parametrize(
    ("options", "drafting"),
    [
        (TODAY, "--spec-draft-n-max 3 --spec-draft-n-min 0 --spec-draft-p-min 0 --spec-type draft-simple"),
        (BEFORE, "--draft-max 3 --draft-min 0 --draft-p-min 0"),
    ],
)
def test_flags_are_those_of_its_help(program, options, drafting):
    server, config = LlamaProgram(str(program(options=options))), replace(CONFIG, threads=2)
    plain = ("--model", "t.gguf", "-np", "2", "-c", "128", "--metrics", "-t", "2")
    assert server.flags(replace(config, draft_tokens=0)) == plain
    assert server.flags(config) == (*plain, "--model-draft", "my d.gguf", *drafting.split())
    assert server.version == "7311 (abc)"
    assert machine_of(server, config).threads == 2


@pytest.fixture
def wrapped(program, tmp_path):
    """Return a program that runs the script, as a wrapper of the shell does, in a process of its own."""
    path = tmp_path / "wrapper"
    path.write_text(f'#!/bin/sh\n{program()} "$@"\nexit $?\n', "utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.process
def test_server_completes_and_ends_when_closed(wrapped, tmp_path):
    running = create_client("llama-server", url=None, timeout_s=9, program=str(wrapped)).start(CONFIG)
    pid, arguments = json.loads((tmp_path / "log").read_text())
    (completion,) = running.complete([CompletionRequest("abc", 9, 0.0)])
    assert (completion.tokens, completion.steps, completion.prompt_tokens) == (9, 5, 5)
    assert arguments[:3] == ["--model", "t.gguf", "-np"]
    assert arguments[-4:-1] == ["--host", "127.0.0.1", "--port"]
    assert not gone(pid, within_s=0.1)
    running.close()
    assert gone(pid, within_s=0)


@pytest.mark.process
def test_server_ends_with_a_killed_treeopt(wrapped, tmp_path):
    code = (
        "import time\nfrom treeopt.engines.clients.client import EngineConfig\n"
        "from treeopt.engines.clients.llama_server import LlamaProgram\n"
        f"LlamaProgram({str(wrapped)!r}).start({CONFIG!r})\nprint('ready', flush=True)\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "ready\n"
    pid, _ = json.loads((tmp_path / "log").read_text())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(pid)


@pytest.mark.process
@pytest.mark.parametrize(
    ("logs", "reason"),
    [
        (
            "common_specu: the target and draft vocabs are not compatible\nfailed to initialize",
            "expected a draft model with the target's vocabulary.*choose a draft of the same family",
        ),
        ("main: loading\n0.00.1 E srv: out of KV cells", "It does not: srv: out of KV cells$"),
        ("main: loading", "start it with a draft model of the target's vocabulary"),
    ],
    ids=["another vocabulary", "another error", "no error"],
)
def test_server_that_does_not_draft_is_refused_with_the_reason(program, logs, reason):
    running = LlamaProgram(str(program(logs=logs))).start(CONFIG)
    try:
        with pytest.raises(EngineError, match=reason):
            running.complete([CompletionRequest("abc", 9, 0.0)])
    finally:
        running.close()


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no such model", "no such model"),
        (
            "0.0.1 I loading\n0.0.2 E gguf: no such file\n0.0.3 E load failed" + "\n0.0.4 E exiting" * 9,
            "gguf: no such file / load failed",  # later errors only follow from them
        ),
    ],
)
def test_first_errors_of_a_failed_start_are_reported(program, fault, reason):
    with pytest.raises(EngineError, match=rf"expected it to start\. It ended: {reason}$"):
        LlamaProgram(str(program(fault=fault))).start(CONFIG)


def test_other_programs_are_refused(program, tmp_path):
    for path, reason in (
        (tmp_path / "nothing", "expected a program. Got '.*nothing'"),
        (program(options="--model FNAME"), "update llama.cpp"),
    ):
        with pytest.raises(EngineError, match=reason):
            LlamaProgram(str(path))
    with pytest.raises(EngineError, match="give --target and --draft"):
        LlamaProgram(str(program())).start(replace(CONFIG, draft=None))


def test_other_engines_take_no_program():
    for name, url in (("vllm", None), ("llama-server", "0=http://a:1")):
        with pytest.raises(InvalidValueError, match="program: expected with llama-server alone"):
            create_client(name, url=url, timeout_s=9, program="x")


def test_program_on_path_is_used_without_the_wheel(program, monkeypatch):
    """Negative control: the wheel comes first."""
    path = program()
    monkeypatch.setenv("PATH", str(path.parent))
    for wheel, kind in ((None, LlamaProgram), ("xllamacpp 1", llama_server.LlamaServer)):
        monkeypatch.setattr(llama_server, "wheel_version", lambda wheel=wheel: wheel)
        assert isinstance(create_client("llama-server", url=None, timeout_s=9), kind)
        assert next(list_engines()).version == (wheel or str(path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(llama_server, "wheel_version", lambda: None)
    with pytest.raises(EngineError, match="Neither is installed: pip install xllamacpp"):
        create_client("llama-server", url=None, timeout_s=9)


@pytest.mark.parametrize(
    ("lists", "device"), [(None, "unknown"), ("", "cpu"), ("  CUDA0: NVIDIA A100 (80 GiB)", "unknown")]
)
def test_device_is_cpu_if_the_build_lists_no_accelerator(program, lists, device):
    path = program(options=TODAY if lists is None else f"{TODAY}--list-devices\n")
    listing = f"if '--list-devices' in sys.argv:\n    sys.exit(print('Available devices:\\n{lists}'))\n"
    path.write_text(path.read_text("utf-8").replace('if "--help"', listing + 'if "--help"', 1), "utf-8")
    assert LlamaProgram(str(path)).device == device
