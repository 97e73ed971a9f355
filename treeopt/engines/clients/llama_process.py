"""The child process that holds a llama-server: ready, it prints the address, and it ends with its standard input.

python -m treeopt.engines.clients.llama_process CONFIG                    the server of the wheel xllamacpp
python -m treeopt.engines.clients.llama_process PORT PROGRAM ARGUMENTS    another llama-server, and its descendants
"""

import json
import os
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from threading import Thread
from typing import Any

from treeopt.engines.clients.child import find_descendants, kill
from treeopt.engines.clients.client import EAGLE3, NGRAM

POLL_S = 0.05


def main() -> None:
    if len(sys.argv) > 2:
        supervise(int(sys.argv[1]), sys.argv[2:])
    else:
        serve(json.loads(sys.argv[1]))


def serve(config: dict[str, Any]) -> None:
    """Run the wheel's server with the fields of an `EngineConfig`."""
    import xllamacpp

    server = xllamacpp.Server(_server_parameters(xllamacpp, config))
    _print_ready(server.listening_address)
    sys.stdin.buffer.read()
    os._exit(0)  # its threads would go on


def supervise(port: int, command: list[str]) -> None:
    """Run a program until standard input ends or the program does; print its address once it is healthy."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    Thread(target=_kill_after_input, daemon=True).start()
    while server.poll() is None:
        if _is_healthy(port):
            _print_ready(f"http://127.0.0.1:{port}")
            break
        time.sleep(POLL_S)
    failed = server.wait() != 0
    _kill_descendants()
    sys.exit(1 if failed else 0)


def _print_ready(address: str) -> None:
    print(json.dumps({"address": address}), flush=True)


def _server_parameters(xllamacpp: Any, config: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = config["target"]
    parameters.n_parallel = config["slots"]
    parameters.n_ctx = config["slots"] * config["context_tokens"]
    parameters.port = 0
    parameters.endpoint_metrics = True
    threads = config["threads"]
    if threads is not None:
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    if not config["draft_tokens"]:
        return parameters
    types, speculative = xllamacpp.common_speculative_type, parameters.speculative
    if config["method"] == NGRAM:
        speculative.types = [types.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_m = config["draft_tokens"]
        if config["ngram_tokens"] is not None:
            speculative.ngram_simple.size_n = config["ngram_tokens"]
        return parameters
    eagle = config["method"] == EAGLE3
    speculative.types = [
        types.COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 if eagle else types.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
    ]
    draft = speculative.draft
    draft.mparams.path = config["draft"]
    draft.n_max = config["draft_tokens"]
    draft.n_min = 0
    draft.p_min = 0.0
    if threads is not None:
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = threads
    return parameters


def _kill_after_input() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock would still be held when this process ends
        pass
    _kill_descendants()


def _kill_descendants() -> None:
    """Kill the server and its workers, which would outlive this process."""
    kill(find_descendants(os.getpid()))


def _is_healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main()
