"""examples/show_npz.c draws what treeopt draws, and refuses a broken archive with one line."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.slow import slow
from treeopt.trees import TokenTree, chain, chains, draw_text, k_ary, level_widths
from treeopt.trees.formats.arrays import NPZ

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "show_npz.c"
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
SANITIZERS = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TOO_LARGE = "The tree is too large for this diagram; treeopt show draws the part that fits."
MUTANTS = 120

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")


def compiled(program, *flags):
    return subprocess.run(["cc", *FLAGS, *flags, "-o", program, SOURCE], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "show_npz"
    done = compiled(path)
    assert (done.returncode, done.stderr) == (0, "")
    return path


@pytest.fixture(scope="module")
def checked_program(tmp_path_factory):
    path = tmp_path_factory.mktemp("checked") / "show_npz"
    if compiled(path, *SANITIZERS).returncode:
        pytest.skip("cc has no address and undefined behaviour sanitizers")
    return path


@pytest.fixture(params=["program", *slow(["checked_program"])])
def either_program(request):
    """Return the program without sanitizers, and in the slow run with them."""
    return request.getfixturevalue(request.param)


def archive(path, tree):
    np.savez(path, parents=tree.parents, mask=tree.ancestor_mask)
    return path


def run(program, path):
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run([program, path], capture_output=True, check=False, env=environment)


def draw(program, path):
    result = run(program, path)
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout.decode()


def assert_refused(done):
    message = done.stderr.decode(errors="replace")
    assert (done.returncode, done.stdout) == (1, b"")
    assert message.startswith("show_npz: ")
    assert message.count("\n") == 1
    assert message.endswith(".\n")


def random_trees(seed, count, min_nodes, max_nodes, spreads):
    draw = random.Random(seed)
    for _ in range(count):
        nodes, spread = draw.randint(min_nodes, max_nodes), draw.choice(spreads)
        yield TokenTree.ordered([-1, *(draw.randint(max(0, node - spread), node - 1) for node in range(1, nodes))])


def fits(tree):
    return "left out" not in draw_text(tree)


def test_it_draws_what_treeopt_draws(program, tmp_path):
    trees = [TokenTree([-1]), chain(1), chain(20), chains(12, 7), k_ary(2, 5), k_ary(3, 3), level_widths([58])]
    assert all(map(fits, trees))
    trees += [tree for tree in random_trees(1, 40, 1, 60, [1, 3, 10, 60]) if fits(tree)]
    assert len(trees) > 30
    for tree in trees:
        assert draw(program, archive(tmp_path / "tree.npz", tree)) == draw_text(tree) + "\n"
    exported = tmp_path / "exported.npz"
    exported.write_bytes(NPZ.write(k_ary(2, 5)))
    assert draw(program, exported) == draw_text(k_ary(2, 5)) + "\n"


def test_of_a_large_tree_it_lists_the_levels(program, tmp_path):
    trees = [chain(21), chain(400), level_widths([59]), k_ary(4, 4), k_ary(2, 9), chains(99, 18), chains(100, 30)]
    assert not any(map(fits, trees))
    trees += [tree for tree in random_trees(2, 30, 60, 900, [2, 20, 200]) if not fits(tree)]
    for tree in trees:
        head = draw_text(tree).split("\n")[:6]
        assert draw(program, archive(tmp_path / "tree.npz", tree)).split("\n") == [*head, TOO_LARGE, ""]


def test_the_largest_tree(either_program, tmp_path):
    wide, deep = np.zeros((2, 65536), np.int32)
    wide[0] = -1
    deep[:] = np.arange(-1, 65535)
    for parents in (wide, deep):
        np.savez(tmp_path / "tree.npz", parents=parents)
        assert draw(either_program, tmp_path / "tree.npz").startswith("65536 nodes, depth ")


class TestBrokenFiles:
    def test_invalid_content_is_refused(self, either_program, tmp_path):
        path = tmp_path / "tree.npz"
        invalid = ([], [0], [-1, -1], [-1, 1], [-1, 0, 1, 0], [-1, 0, -5], [-1, 0, 2**31 - 1], [-1, 0, -(2**31)])
        arrays = [np.array(parents, np.int32) for parents in (*invalid, [[-1, 0]], -1, list(range(-1, 65536)))]
        for array in [
            *arrays,
            np.array([-1.0, 0.0]),
            *(np.array([1, 0]).astype(kind) for kind in ("<i8", ">i4", "<u4")),
        ]:
            np.savez(path, parents=array)
            assert_refused(run(either_program, path))
        np.savez_compressed(path, parents=chain(3).parents)
        assert_refused(run(either_program, path))
        np.savez(path, depth=np.arange(3, dtype=np.int32))
        assert_refused(run(either_program, path))
        for missing in (tmp_path / "nothing.npz", tmp_path):
            assert_refused(run(either_program, missing))

    def test_without_an_argument_it_prints_the_usage(self, program):
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "usage: show_npz FILE.npz\n")

    def test_every_truncation_is_refused(self, program, tmp_path):
        whole = archive(tmp_path / "tree.npz", chain(2)).read_bytes()
        for length in [*range(0, len(whole), 7), len(whole) - 1]:
            (tmp_path / "truncated.npz").write_bytes(whole[:length])
            assert_refused(run(program, tmp_path / "truncated.npz"))

    @pytest.mark.slow
    def test_mutated_files_are_drawn_or_refused(self, checked_program, tmp_path):
        generator = random.Random(3)
        whole = archive(tmp_path / "tree.npz", level_widths([3, 4, 3])).read_bytes()
        path, refused = tmp_path / "mutant.npz", 0
        central = whole.index(b"PK\x01\x02")
        for _ in range(MUTANTS):
            data = bytearray(whole)
            first = generator.choice([0, central, len(data) - 22])  # headers, directory, end
            last = min(len(data), first + generator.choice([22, 240]))
            for _ in range(generator.randint(1, 4)):
                data[generator.randrange(first, last)] = generator.choice(
                    [0, 1, 127, 128, 255, generator.randrange(256)]
                )
            path.write_bytes(bytes(data[: generator.choice([len(data)] * 3 + [generator.randrange(len(data))])]))
            done = run(checked_program, path)
            assert done.returncode in (0, 1), done.stderr.decode(errors="replace")
            if done.returncode:
                assert_refused(done)
            refused += done.returncode
        assert MUTANTS / 3 < refused < MUTANTS


@pytest.mark.slow
def test_the_sanitizers_detect_a_missing_check(checked_program, tmp_path):
    """Negative control."""
    text = SOURCE.read_text()
    check = "length > MAX_HEADER"
    assert check in text
    (tmp_path / "wrong.c").write_text(text.replace(check, "length > 65535"))
    wrong = tmp_path / "wrong"
    subprocess.run(["cc", *FLAGS, *SANITIZERS, "-o", wrong, tmp_path / "wrong.c"], check=True)
    data = bytearray(archive(tmp_path / "tree.npz", chain(900)).read_bytes())
    start = data.index(b"\x93NUMPY")
    data[start + 8 : start + 10] = b"\xff\x0b"
    (tmp_path / "mutant.npz").write_bytes(data)
    assert_refused(run(checked_program, tmp_path / "mutant.npz"))
    assert b"Sanitizer" in run(wrong, tmp_path / "mutant.npz").stderr
