"""Equal input gives equal bytes in a fresh process, under another hash seed; plain Python is tests/test_kernels.py."""

import json
import os
import subprocess
import sys

import pytest

from tests.solver.oracles import depth_of
from tests.solver.tables import NAMED
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve

ALL_PARENTS = """
import json, sys
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve
for p, nodes, depth in json.load(sys.stdin):
    solution = solve(AcceptanceTable(p), nodes, depth)
    print([solution.tree(n, d).parents.tobytes().hex() for d in range(depth + 1) for n in range(1, nodes + 1)])
    print(solution.expected_tokens.tobytes().hex(), solution.certificate)
"""


def lines(p, nodes, depth):
    solved = solve(AcceptanceTable(p), nodes, depth)
    trees = [solved.tree(n, d) for d in range(depth + 1) for n in range(1, nodes + 1)]
    yield str([tree.parents.tobytes().hex() for tree in trees])
    yield f"{solved.expected_tokens.tobytes().hex()} {solved.certificate}"


@pytest.mark.slow
@pytest.mark.process
def test_equal_input_gives_equal_bytes():
    options = [(p, 16, depth_of(p, 4)) for p in NAMED.values()]
    fresh = subprocess.run(
        [sys.executable, "-c", ALL_PARENTS],
        input=json.dumps(options),
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert fresh.splitlines() == [line for item in options for line in lines(*item)]
