"""Solutions written and read back: every tree the same, and nothing wrong let in."""

import io
import pickle
import zipfile

import numpy as np
import pytest

from treeopt.errors import FormatError, TreeoptError
from treeopt.records.acceptance import AcceptanceTable
from treeopt.solver import Solution, solve

NODES = 12
SOLVED = {
    "one non-increasing row": ([0.6, 0.2, 0.1], {}),
    "non-increasing rows": ([[0.6, 0.2], [0.5, 0.1], [0.9, 0.0]], {}),
    "one non-monotone row": ([0.1, 0.5, 0.2], {}),
    "non-monotone rows": ([[0.1, 0.5], [0.9, 0.1], [0.0, 1.0]], {}),
    "parent ranks": ([[[0.5, 0.2], [0.1, 0.6]]] * 3, {}),
    "limits, non-increasing": ([[0.6, 0.3]] * 3, {"level_widths": 2}),
    "no levels": ([[0.1, 0.5]] * 3, {"max_depth": 0}),
}
solved = pytest.mark.parametrize("name", SOLVED)


def solution_of(name: str) -> Solution:
    p, options = SOLVED[name]
    return solve(AcceptanceTable(p), NODES, **{"max_depth": 3, **options})


@solved
def test_every_tree_comes_back(name, tmp_path):
    before = solution_of(name)
    before.save(tmp_path / "solution.npz")
    after = Solution.load(tmp_path / "solution.npz")
    assert np.array_equal(after.expected_tokens, before.expected_tokens)
    assert np.array_equal(after.table.p, before.table.p)
    assert after.certificate == before.certificate
    for depth in range(before.max_depth + 1):
        assert np.array_equal(after.draft_widths(depth), before.draft_widths(depth))
        for nodes in range(1, NODES + 1):
            assert after.tree(nodes, depth) == before.tree(nodes, depth)


@solved
def test_equal_solutions_give_equal_bytes(name, tmp_path):
    for file in ("a.npz", "b.npz"):
        solution_of(name).save(tmp_path / file)
    with zipfile.ZipFile(tmp_path / "a.npz") as a, zipfile.ZipFile(tmp_path / "b.npz") as b:
        assert a.namelist() == b.namelist()
        assert all(a.read(item) == b.read(item) for item in a.namelist())


def changed(path, name, **changes):
    """Write a solution with some of its arrays changed, or left out where the change is None."""
    solution_of(name).save(path)
    arrays = dict(np.load(path))
    for key, change in changes.items():
        arrays[key] = change(arrays[key]) if callable(change) else change
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})


def set_at(place, value):
    def change(array):
        array = array.copy()
        array[place] = value
        return array

    return change


def swapped(place, other):
    def change(array):
        array = array.copy()
        array[place], array[other] = array[other], array[place]
        return array

    return change


BAD = [
    ("one non-increasing row", {"format": np.array("other")}, "format: expected 'treeopt-solution'"),
    ("one non-increasing row", {"version": np.array(2)}, "version: expected 1. Got 2"),
    ("one non-increasing row", {"method": np.array("luck")}, "method: expected one of best-first"),
    ("one non-increasing row", {"p": np.array([0.9, 0.9])}, "p: p: expected each row to sum"),
    ("one non-increasing row", {"p": None}, "p: is missing"),
    ("one non-increasing row", {"parent": set_at(3, 3)}, "parent: expected -1 and then"),
    ("one non-increasing row", {"parent": set_at(3, 10**6)}, "parent: expected -1 to"),
    ("one non-increasing row", {"parent": lambda array: array[:-1]}, "parent: expected as many"),
    ("one non-increasing row", {"rank": set_at(1, 3)}, "rank: expected 0 to 2. Got 0 to 3"),  # the first number beyond
    ("one non-increasing row", {"order": set_at((2, 1), 10**6)}, "order: expected -1 to"),
    ("one non-increasing row", {"order": set_at((3, 1), 5)}, "order: expected every node once, after its parent"),
    ("non-increasing rows", {"order": swapped((3, 1), (3, 2))}, "order: expected every node once, after its parent"),
    ("one non-increasing row", {"order": lambda array: array[0]}, "order: expected kind 'i', 2 dimensions"),
    ("one non-increasing row", {"order": lambda array: array[:, :0]}, "order: expected every node once"),
    ("non-monotone rows", {"values_0": None}, "values_0: is missing"),
    ("non-monotone rows", {"values_2": lambda array: array[:, :, 1:]}, "values_2: expected shape"),
    ("non-monotone rows", {"values_1": set_at((0, 0, 3), np.inf)}, "values_1: expected finite"),
    ("non-monotone rows", {"p": lambda array: array[:2]}, "p: expected rows to depth 3"),
]


@pytest.mark.parametrize(("name", "changes", "reason"), BAD, ids=[reason[:40] for _, _, reason in BAD])
def test_wrong_array_raises_by_name(name, changes, reason, tmp_path):
    path = tmp_path / "solution.npz"
    changed(path, name, **changes)
    with pytest.raises(FormatError) as caught:
        Solution.load(path)
    assert str(caught.value).startswith(f"{path}: {reason}")


def test_nothing_in_a_file_is_executed(tmp_path):
    path = tmp_path / "solution.npz"
    changed(path, "one non-increasing row", p=np.array([Trap()], object))
    with pytest.raises(FormatError, match="expected a numpy archive"):
        Solution.load(path)
    assert not Trap.sprung


class Trap:
    sprung = False

    def __reduce__(self):
        return Trap.spring, ()

    @staticmethod
    def spring():
        Trap.sprung = True


def test_the_trap_would_spring():
    """The negative control: unpickled, it does."""
    data = pickle.dumps(Trap())
    pickle.loads(data)
    assert Trap.sprung
    Trap.sprung = False


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"no archive at all"], ids=repr)
def test_other_files_raise(data, tmp_path):
    path = tmp_path / "solution.npz"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="expected a numpy archive"):
        Solution.load(path)


@pytest.mark.parametrize("bytes_added", [-8, 8])
def test_array_of_another_size_raises(bytes_added, tmp_path):
    path, buffer = tmp_path / "solution.npz", io.BytesIO()
    solution_of("one non-increasing row").save(path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(buffer, "w") as changed_archive:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "p.npy":
                data = data[:bytes_added] if bytes_added < 0 else data + bytes(bytes_added)
            changed_archive.writestr(name, data)
    path.write_bytes(buffer.getvalue())
    with pytest.raises(FormatError, match="expected a numpy archive"):
        Solution.load(path)


def test_archive_beyond_the_limit_raises(tmp_path, monkeypatch):
    path = tmp_path / "solution.npz"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("p.npy", bytes(20_000_000))
    path.write_bytes(buffer.getvalue())
    monkeypatch.setattr("treeopt.solver.solution.MAX_BYTES", 1_000_000)
    with pytest.raises(FormatError, match="more than a file like this has"):
        Solution.load(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(TreeoptError, match="no such file"):
        Solution.load(tmp_path / "none.npz")
