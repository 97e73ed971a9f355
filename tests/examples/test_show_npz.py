"""The C reader draws what treeopt draws, and a broken archive ends it with one line."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from treeopt.trees import TokenTree, chain, chains, draw_text, k_ary, level_widths
from treeopt.trees.formats import WriteOptions, format_named

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "show_npz.c"
FLAGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]
SANITIZERS = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TOO_LARGE = "The tree is too large for this diagram; treeopt show draws the part that fits."
MUTANTS = 200

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


def arrays(tree):
    return {
        "parents": tree.parents,
        "mask": tree.ancestor_mask,
    }


def archive(path, tree, **changes):
    np.savez(path, **(arrays(tree) | changes))
    return path


def shown(program, path):
    return subprocess.run(
        [program, path], capture_output=True, check=False, env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    )


def drawn(program, path):
    done = shown(program, path)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def assert_refused(done):
    message = done.stderr.decode(errors="replace")
    assert (done.returncode, done.stdout) == (1, b"")
    assert message.startswith("show_npz: ")
    assert message.count("\n") == 1
    assert message.endswith(".\n")


def random_tree(draw):
    nodes, spread = draw.randint(1, 60), draw.choice([1, 3, 10, 60])
    return TokenTree.ordered([-1, *(draw.randint(max(0, node - spread), node - 1) for node in range(1, nodes))])


def fits(tree):
    return "left out" not in draw_text(tree)


class TestTrees:
    @pytest.mark.parametrize(
        "tree",
        [
            TokenTree([-1]),
            chain(1),
            chain(20),
            chains(12, 7),
            k_ary(2, 5),
            k_ary(3, 3),
            level_widths([58]),
            level_widths([4, 6, 5, 3, 1, 1]),
        ],
        ids=repr,
    )
    def test_it_draws_what_treeopt_draws(self, program, tmp_path, tree):
        assert fits(tree)
        assert drawn(program, archive(tmp_path / "tree.npz", tree)) == draw_text(tree) + "\n"

    def test_it_draws_what_treeopt_exports(self, program, tmp_path):
        tree, path = k_ary(2, 5), tmp_path / "tree.npz"
        path.write_bytes(format_named("npz").write(tree, WriteOptions()))
        assert drawn(program, path) == draw_text(tree) + "\n"

    def test_many_random_trees(self, program, tmp_path):
        draw = random.Random(1)
        trees = [tree for tree in (random_tree(draw) for _ in range(60)) if fits(tree)]
        assert len(trees) > 40
        for tree in trees:
            assert drawn(program, archive(tmp_path / "tree.npz", tree)) == draw_text(tree) + "\n"

    @pytest.mark.parametrize(
        "tree",
        [chain(21), chain(400), level_widths([59]), k_ary(4, 4), k_ary(2, 9), chains(99, 18), chains(100, 30)],
        ids=repr,
    )
    def test_a_large_tree_has_its_levels_only(self, program, tmp_path, tree):
        head = draw_text(tree).split("\n")[:6]
        assert not fits(tree)
        assert drawn(program, archive(tmp_path / "tree.npz", tree)).split("\n") == [*head, TOO_LARGE, ""]

    def test_large_random_trees(self, program, tmp_path):
        draw = random.Random(2)
        for _ in range(60):
            nodes, spread = draw.randint(60, 900), draw.choice([2, 20, 200])
            tree = TokenTree.ordered([-1, *(draw.randint(max(0, n - spread), n - 1) for n in range(1, nodes))])
            head = draw_text(tree).split("\n")[:6]
            if not fits(tree):
                assert drawn(program, archive(tmp_path / "tree.npz", tree)).split("\n") == [*head, TOO_LARGE, ""]

    def test_the_largest_tree(self, checked_program, tmp_path):
        wide, deep = np.zeros((2, 65536), np.int32)
        wide[0] = -1
        deep[:] = np.arange(-1, 65535)
        for parents in (wide, deep):
            np.savez(tmp_path / "tree.npz", parents=parents)
            assert drawn(checked_program, tmp_path / "tree.npz").startswith("65536 nodes, depth ")


class TestBrokenFiles:
    @pytest.mark.parametrize(
        "parents",
        [
            [],
            [0],
            [-1, -1],
            [-1, 1],
            [-1, 0, 1, 0],
            [-1, 0, -5],
            [-1, 0, 2**31 - 1],
            [-1, 0, -(2**31)],
            [[-1, 0]],
            -1,
            [-1.0, 0.0],
            list(range(-1, 65536)),
        ],
        ids=lambda parents: str(parents)[:30],
    )
    def test_what_is_no_tree(self, checked_program, tmp_path, parents):
        array = np.array(parents)
        array = array.astype(np.int32) if array.dtype.kind == "i" or not array.size else array
        np.savez(tmp_path / "tree.npz", parents=array)
        assert_refused(shown(checked_program, tmp_path / "tree.npz"))

    def test_another_type_of_number(self, checked_program, tmp_path):
        for kind in ("<i8", ">i4", "<u4"):
            np.savez(tmp_path / "tree.npz", parents=np.array([1, 0]).astype(kind))
            assert_refused(shown(checked_program, tmp_path / "tree.npz"))

    def test_a_compressed_archive(self, checked_program, tmp_path):
        np.savez_compressed(tmp_path / "tree.npz", **arrays(chain(3)))
        assert_refused(shown(checked_program, tmp_path / "tree.npz"))

    def test_no_parents(self, checked_program, tmp_path):
        np.savez(tmp_path / "tree.npz", depth=np.arange(3, dtype=np.int32))
        assert_refused(shown(checked_program, tmp_path / "tree.npz"))

    def test_no_file_and_a_folder(self, checked_program, tmp_path):
        assert_refused(shown(checked_program, tmp_path / "nothing.npz"))
        assert_refused(shown(checked_program, tmp_path))

    def test_no_argument(self, program):
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "usage: show_npz FILE.npz\n")

    def test_every_cut(self, program, tmp_path):
        whole = archive(tmp_path / "tree.npz", chain(2)).read_bytes()
        for length in [*range(0, len(whole), 7), len(whole) - 1]:
            (tmp_path / "cut.npz").write_bytes(whole[:length])
            assert_refused(shown(program, tmp_path / "cut.npz"))

    def test_mutants(self, checked_program, tmp_path):
        draw = random.Random(3)
        whole = archive(tmp_path / "tree.npz", level_widths([3, 4, 3])).read_bytes()
        path, refused = tmp_path / "mutant.npz", 0
        central = whole.index(b"PK\x01\x02")
        for _ in range(MUTANTS):
            data = bytearray(whole)
            first = draw.choice([0, central, len(data) - 22])  # headers, directory, end
            last = min(len(data), first + draw.choice([22, 240]))
            for _ in range(draw.randint(1, 4)):
                data[draw.randrange(first, last)] = draw.choice([0, 1, 127, 128, 255, draw.randrange(256)])
            path.write_bytes(bytes(data[: draw.choice([len(data)] * 3 + [draw.randrange(len(data))])]))
            done = shown(checked_program, path)
            assert done.returncode in (0, 1), done.stderr.decode(errors="replace")
            if done.returncode:
                assert_refused(done)
            refused += done.returncode
        assert MUTANTS / 3 < refused < MUTANTS


def test_the_sanitizers_would_tell(checked_program, tmp_path):
    """A missing check must fail the tests above."""
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
    assert_refused(shown(checked_program, tmp_path / "mutant.npz"))
    assert b"Sanitizer" in shown(wrong, tmp_path / "mutant.npz").stderr
