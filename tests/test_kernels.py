"""Every loop that numba compiles equals its Python code; loops are found by inspection."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from tests.solver.oracles import depth_of, rows_of
from tests.solver.tables import NAMED
from treeopt.records.rules import RULES
from treeopt.solver import dynamic_program
from treeopt.trees import level_widths

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {"treeopt": "treeopt", "trees": "treeopt.trees", "profiler": "treeopt.profiler", "cli": "treeopt.cli"}


def compiling_modules() -> set[str]:
    """Return the names of the modules whose source imports numba."""
    found = set()
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            if re.search(r"^\s*(from numba import|import numba)\b", path.read_text("utf-8"), re.MULTILINE):
                found.add(".".join([package, *path.relative_to(ROOT / folder).with_suffix("").parts]))
    return found


def kernels_of(module) -> dict[str, object]:
    """Return the compiled functions of a module by name."""
    return {name: value for name, value in vars(module).items() if hasattr(value, "py_func")}


def solved():
    """Return what the dynamic program finds for every named table: values, counts, trees and their widths."""
    found = []
    for p in NAMED.values():
        depth = depth_of(p, 4)
        trees, *counts = dynamic_program.solve_values(
            np.array(rows_of(p, depth)).reshape(depth, -1, np.shape(p)[-1]), 12
        )
        parents = [np.array(trees.parents(nodes, depth)) for nodes in range(1, 13)]
        found += [*trees.values, np.array(counts), trees.draft_widths(depth), *parents]
    return found


def verified():
    """Return what every rule makes of random distributions on a tree with wide and narrow levels, and sampled tokens."""
    from treeopt.runtime.rules import kernels

    tree, rng = level_widths([3, 4, 2]), np.random.default_rng(0)
    parents = np.flatnonzero(tree.child_counts)
    groups = np.stack([parents, tree.first_child[parents], tree.child_counts[parents]], axis=1).astype(np.int64)
    found = []
    for rule in RULES:
        tokens = np.concatenate([[0], *(rng.permutation(7)[:count] for count in groups[:, 2])]).astype(np.int64)
        draft, target = rng.dirichlet(np.full(7, 0.5), (2, tree.nodes))
        residual, acceptance = np.zeros((len(groups), 7)), np.ones(tree.nodes)
        getattr(kernels, rule)(groups, tokens, draft, target, residual, acceptance)
        found += [residual, acceptance]
    weights = rng.dirichlet(np.ones(700)).astype(np.float32)
    found.append(np.array([kernels.inverse_cdf(each, u) for each in (weights, np.zeros(7)) for u in (0.0, 0.4, 0.9)]))
    probs = np.zeros((2, 3, 700), np.float32)
    probs[:, :2] = rng.dirichlet(np.ones(700), (2, 2))
    for replace in (True, False):
        tokens = np.zeros((2, 6), np.int64)
        kernels.sample_children(probs, np.array([0, 0, 0, 1, 2, 2]), rng.random((2, 6)), replace, tokens)
        found.append(tokens)
    return found


def grown():
    """Return the nodes and trees of three texts, whose beams are fed, then the best of all; one is not finite."""
    from treeopt.runtime.drafters import expansion_kernels

    rng, k, nodes = np.random.default_rng(0), 3, expansion_kernels.allocate_nodes(3, 22, 7, 5)
    for array in nodes:
        array[:] = 0
    trees, found = np.zeros((3, 3, 6), np.int64), []
    for feed in (expansion_kernels.feed_beams, lambda nodes, k: expansion_kernels.feed_best(nodes, k, 2)):
        expansion_kernels.begin(nodes, np.arange(3))
        for number in range(3):
            rows = nodes.counts[:, expansion_kernels.LAST_FED].sum()
            log_probs = np.sort(rng.integers(-9, 0, (rows, k)).astype(np.float32))[:, ::-1].copy()
            log_probs[-1] = np.nan if number == 1 else log_probs[-1]
            expansion_kernels.add_children(nodes, log_probs, rng.integers(0, 7, (rows, k)), -20.0)
            if number < 2:
                feed(nodes, k)
        expansion_kernels.write_trees(nodes, k, trees)
        found += [each.copy() for each in (*nodes, trees)]
    return found


def grown_best_first():
    """Return the trees of blocks with and without ties, and the tokens that trees need to reach one path."""
    from treeopt.runtime.drafters.dflash import best_first

    rng = np.random.default_rng(0)
    log_probs = -np.sort(rng.integers(1, 9, (3, 4, 5)).astype(float))
    trees = best_first.grow_trees(log_probs, np.array([9, 1, 40]))
    return [*trees, best_first.count_tokens_to_reach(log_probs, rng.integers(-1, 3, (3, 4)), 30)]


WORK = {
    "treeopt.solver.kernels": solved,
    "treeopt.runtime.drafters.expansion_kernels": grown,
    "treeopt.runtime.drafters.dflash.best_first": grown_best_first,
    "treeopt.runtime.rules.kernels": verified,
}
"""For each module with compiled loops, what all of them are called for."""


@pytest.mark.source
def test_every_compiled_module_is_tested():
    assert compiling_modules() == set(WORK)


@pytest.mark.parametrize("name", WORK)
def test_compiled_loops_equal_python(name, monkeypatch):
    module = importlib.import_module(name)
    kernels, called = kernels_of(module), set()
    compiled = WORK[name]()

    def python(kernel_name, function):
        def noted(*arguments):
            called.add(kernel_name)
            return function(*arguments)

        return noted

    for kernel_name, kernel in kernels.items():
        monkeypatch.setattr(module, kernel_name, python(kernel_name, kernel.py_func))
    for fast, slow in zip(compiled, WORK[name](), strict=True):
        assert (fast.dtype, fast.shape) == (slow.dtype, slow.shape)
        if name.startswith("treeopt.solver"):
            assert fast.tobytes() == slow.tobytes()  # trees hang on ties
        else:
            np.testing.assert_allclose(fast, slow, rtol=1e-12, atol=1e-15)  # sums in another order
    assert called == set(kernels), "a loop that is not called is compared with nothing"
