"""Another program's server that ends with treeopt: watched by a process that ends with its own input.

python -m treeopt.engines.probes.supervised PORT PROGRAM ARGUMENTS
"""

import json
import os
import subprocess
import sys
import time
from http.client import HTTPConnection, HTTPException
from threading import Thread

from treeopt.engines.probes.process_tree import kill, started_by

PAUSE_S = 0.05


def main() -> None:
    """Start the program, print its address once it is healthy, and end it with standard input; or end as it does."""
    port, command = int(sys.argv[1]), sys.argv[2:]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    Thread(target=_end_with_input, daemon=True).start()
    while server.poll() is None:
        if _healthy(port):
            print(json.dumps({"address": f"http://127.0.0.1:{port}"}), flush=True)
            break
        time.sleep(PAUSE_S)
    failed = server.wait() != 0
    _kill_started()
    sys.exit(1 if failed else 0)


def _end_with_input() -> None:
    while os.read(0, 4096):  # not sys.stdin, whose lock would still be held when this process ends
        pass
    _kill_started()


def _kill_started() -> None:
    """Kill the server and its workers, which outlive it."""
    kill(started_by(os.getpid()))


def _healthy(port: int) -> bool:
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
