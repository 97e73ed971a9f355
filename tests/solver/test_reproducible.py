"""Equal input gives equal bytes: in a fresh process, under another hash seed, and without numba."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.solver.oracles import depth_of
from tests.solver.tables import NAMED, PLAIN_PYTHON
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve

FILES = ("test_optimum.py", "test_solver.py", "test_best_first.py", "test_dynamic_program.py")
ALL_PARENTS = """
import json, sys
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import solve
for p, nodes, depth in json.load(sys.stdin):
    solution = solve(AcceptanceTable(p), nodes, depth)
    print([solution.tree(n, d).parents.tobytes().hex() for d in range(depth + 1) for n in range(1, nodes + 1)])
    print(solution.expected_tokens.tobytes().hex(), solution.certificate)
"""


class TestFreshProcess:
    @pytest.mark.parametrize("environment", [{"PYTHONHASHSEED": "7"}, {"NUMBA_DISABLE_JIT": "1"}], ids=str)
    @pytest.mark.slow
    def test_equal_input_gives_equal_bytes(self, environment):
        """Ties are everywhere in these tables; the second process runs the kernels as plain Python."""
        asked = [(p, 16, depth_of(p, 4)) for p in NAMED.values()]
        fresh = subprocess.run(
            [sys.executable, "-c", ALL_PARENTS],
            input=json.dumps(asked),
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert fresh.splitlines() == [line for each in asked for line in self.lines(*each)]

    def lines(self, p, nodes, depth):
        solved = solve(AcceptanceTable(p), nodes, depth)
        trees = [solved.tree(n, d) for d in range(depth + 1) for n in range(1, nodes + 1)]
        yield str([tree.parents.tobytes().hex() for tree in trees])
        yield f"{solved.expected_tokens.tobytes().hex()} {solved.certificate}"

    @pytest.mark.slow
    @pytest.mark.process
    @pytest.mark.skipif(PLAIN_PYTHON, reason="this is the process that runs without numba")
    def test_the_solver_s_tests_pass_without_numba(self):
        """Fewer examples are drawn there; see `tables.py`."""
        tests = Path(__file__).parent
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(str(tests / name) for name in FILES)],
            cwd=tests.parents[1],
            env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout[-3000:]
