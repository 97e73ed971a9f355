"""Errors of public functions name the wrong argument, its value and what to do."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import treeopt
from tests.cli.invented import invented
from treeopt import AcceptanceTable, InvalidValueError, LatencyTable, Profile, TokenTree, trees
from treeopt.arguments import check_instance, check_integer, to_float_array, to_int_array
from treeopt.planner import plan, schedule
from treeopt.records.acceptance import SequenceSums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.latency import Timing
from treeopt.records.sampling import Sampling
from treeopt.solver import Solution, solve
from treeopt.trees.drafter_parameters import DynamicTree

TABLE = AcceptanceTable([0.7, 0.2])
TREE = TokenTree([-1, 0])
PROFILE = invented()
SECOND = Timing([1.0])


def solution() -> Solution:
    return solve(TABLE, 4, 2)


WRONG: dict[str, tuple[Callable[[], Any], str, str]] = {
    "solve a list": (lambda: treeopt.solve([0.7, 0.2]), "table: expected an AcceptanceTable.", "list"),
    "max_nodes, a float": (lambda: solve(TABLE, max_nodes=64.0), "max_nodes: expected a whole number", "64.0"),
    "max_nodes, a boolean": (lambda: solve(TABLE, True), "max_nodes: expected a whole number", "True"),
    "max_nodes, a numpy boolean": (lambda: solve(TABLE, np.True_), "max_nodes: expected a whole number", "True"),
    "max_nodes, too few": (lambda: solve(TABLE, 0), "max_nodes: expected 1 to", "0"),
    "level_widths, a text": (lambda: solve(TABLE, 4, level_widths="x"), "level_widths: expected a whole number", "x"),
    "level_widths, uneven": (
        lambda: solve(TABLE, 4, 2, level_widths=[[1], [1, 2]]),
        "level_widths: expected a whole number",
        "[[1], [1, 2]]",
    ),
    "nodes of a tree, a float": (lambda: solution().tree(1.5, 2), "nodes: expected a whole number", "1.5"),
    "plan of a path": (lambda: treeopt.plan("profile.yaml"), "profile: expected a Profile.", "'profile.yaml'"),
    "plan, max_nodes": (lambda: plan(PROFILE, 32.0), "max_nodes: expected a whole number", "32.0"),
    "plan, rule": (lambda: plan(PROFILE, 8, rule=3), "rule: expected text.", "3"),
    "plan, temperature": (lambda: plan(PROFILE, 8, temperature="0.6"), "temperature: expected a number.", "'0.6'"),
    "plan, context": (lambda: plan(PROFILE, 8, context_tokens=256.0), "context_tokens: expected a whole", "256.0"),
    "plan, batch": (lambda: plan(PROFILE, 8, batch_size=0), "batch_size: expected at least 1.", "0"),
    "plan, raw": (lambda: plan(PROFILE, 8, raw="no"), "raw: expected True or False.", "'no'"),
    "schedule of a table": (lambda: schedule(TABLE), "profile: expected a Profile.", "AcceptanceTable"),
    "a table of texts": (lambda: AcceptanceTable(["0.5"]), "p: expected numbers", "'0.5'"),
    "a table with a boolean": (lambda: AcceptanceTable([0.5, True]), "p: expected numbers", "True"),
    "a table of a boolean array": (lambda: AcceptanceTable(np.array([True])), "p: expected numbers", "True"),
    "a table of uneven rows": (lambda: AcceptanceTable([[0.1], [0.2, 0.3]]), "p: expected numbers, as many in", "0.2"),
    "a table of no float": (lambda: AcceptanceTable([10**400]), "p: expected numbers", "list"),
    "counts of texts": (lambda: AcceptanceTable([0.5], counts=["9"]), "counts: expected numbers", "'9'"),
    "tokens of a list": (lambda: TABLE.expected_tokens([-1, 0]), "tree: expected a TokenTree.", "[-1, 0]"),
    "rows to a text": (lambda: TABLE.rows("a"), "depth: expected a whole number", "'a'"),
    "sums of texts": (lambda: SequenceSums([["9"], [9.0]], [[[1.0]], [[1.0]]]), "reached: expected", "'9'"),
    "times of one number": (lambda: Timing(0.1), "samples_s: expected", "0.1"),
    "latencies without samples": (lambda: LatencyTable([1, 2], [1, 2]), "timings[0]: expected a Timing.", "1"),
    "latencies of one number": (lambda: LatencyTable([1], 3), "timings: expected a list", "3"),
    "latencies at half a token": (lambda: LatencyTable([1.5], [SECOND]), "tokens: expected whole numbers", "1.5"),
    "ranks of floats": (lambda: AcceptedRanks([[0.5]]), "ranks: expected", "0.5"),
    "a tree of a text": (lambda: TokenTree("ab"), "parents: expected one integer per node", "<U2"),
    "a tree with a boolean": (lambda: TokenTree([-1, False]), "parents: expected one integer per node", "boolean"),
    "a file of a list": (lambda: trees.TreeFile(tree=[-1, 0]), "tree: expected a TokenTree.", "[-1, 0]"),
    "a chain of half a level": (lambda: trees.chain(1.5), "depth: expected a whole number", "1.5"),
    "level widths of a text": (lambda: trees.level_widths("ab"), "width at depth 1: expected a whole number", "'a'"),
    "level widths of a number": (lambda: trees.level_widths(3), "widths: expected a list", "3"),
    "a diagram of half a row": (lambda: trees.draw_text(TREE, max_rows=9.5), "max_rows: expected a whole", "9.5"),
    "a picture nowhere": (lambda: trees.save_figure(TREE, 3), "path: expected text or a pathlib.Path.", "3"),
    "a temperature of text": (lambda: Sampling("0.6"), "temperature: expected a number.", "'0.6'"),
    "half a token": (lambda: Sampling(0.6, 1.0, 1.5), "top_k: expected a whole number", "1.5"),
    "a dynamic tree of texts": (
        lambda: DynamicTree(top_k="4", depth=2, nodes=4),
        "top_k: expected a whole number",
        "'4'",
    ),
    "a speedup of text": (lambda: trees.Provenance(speedup="2"), "speedup: expected a number.", "'2'"),
    "load a profile from bytes": (lambda: Profile.load(b"x"), "path: expected text or a pathlib.Path.", "b'x'"),
    "save a profile nowhere": (lambda: PROFILE.save(None), "path: expected text or a pathlib.Path.", "None"),
    "load a tree file from True": (lambda: trees.load_file(True), "path: expected text or a pathlib.Path.", "True"),
    "load a solution from True": (lambda: Solution.load(True), "path: expected text or a pathlib.Path.", "True"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(name):
    call, expected, got = WRONG[name]
    with pytest.raises(InvalidValueError) as caught:
        call()
    text = str(caught.value)
    assert text.startswith(expected)
    assert got in text.partition("Got ")[2]
    assert "\n" not in text
    assert len(text) < 250


@pytest.mark.parametrize("number", [4, np.int8(4), np.int64(4), np.uint16(4), np.array(4), torch.tensor(4)], ids=repr)
def test_integers_of_every_type_are_accepted(number):
    assert solve(TABLE, number, np.int32(2)) == solve(TABLE, 4, 2)
    assert solution().tree(number, np.int32(2)) == solution().tree(4, 2)
    assert trees.chain(number) == trees.chain(4)
    planned = plan(PROFILE, number, batch_size=np.int64(1), context_tokens=np.int32(256))
    assert planned == plan(PROFILE, 4, batch_size=1, context_tokens=256)
    assert type(planned.context_tokens) is int
    assert type(check_integer("n", number, 0)) is int


@pytest.mark.parametrize(
    "values",
    [
        (0.5, 0.25),
        [Fraction(1, 2), Fraction(1, 4)],
        [np.float32(0.5), 0.25],
        np.array([0.5, 0.25], np.float16),
        np.array([0.5, 0.25], object),
        torch.tensor([0.5, 0.25]),
        range(0),
    ],
    ids=repr,
)
def test_numbers_of_every_type_are_accepted(values):
    if len(values):
        assert AcceptanceTable(values) == AcceptanceTable([0.5, 0.25])
    assert to_float_array("p", values).dtype == np.float64
    assert to_float_array("p", values).flags.owndata


def test_decimals_are_refused():
    with pytest.raises(InvalidValueError, match="p: expected numbers"):
        to_float_array("p", [Decimal("0.5")])


def test_whole_numbers_of_an_array_keep_their_value():
    assert to_int_array("n", [1, np.int8(2)]).tolist() == [1, 2]
    for wrong in ([1.0], [True], ["1"], [2**63], np.array([1.0]), 3.5, [[1], [2, 3]]):
        with pytest.raises(InvalidValueError, match="n: expected whole numbers"):
            to_int_array("n", wrong)


def test_errors_shorten_long_values():
    class NoRepr:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    for value in (NoRepr(), "x" * 9999, list(range(9999)), np.zeros((99, 99)), 10**5000, {"a": [1] * 99}):
        with pytest.raises(InvalidValueError) as caught:
            check_instance("tree", value, TokenTree, "make one")
        assert len(str(caught.value)) < 200
        assert "\n" not in str(caught.value)


def test_str_and_path_are_accepted(tmp_path):
    for path in (tmp_path / "tree.json", str(tmp_path / "tree.json")):
        TREE.save(path)
        assert trees.load(path) == trees.load(Path(path)) == TREE
