"""examples/llama_cpp_tree.py writes plain decoding's text in fewer steps, and uses nothing of treeopt."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="needs the gguf extra")
pytest.importorskip("gguf", reason="needs the gguf extra")

from tests.scripts import together
from treeopt import bundled
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.formats.arrays import arrays_from_tree

PATH = Path(__file__).parents[2] / "examples" / "llama_cpp_tree.py"
PROMPT = list(b"import os\n\ndef read(path):\n")
TREES = [chain(0), chain(5), level_widths([3, 3, 2, 1]), TokenTree([-1, 0, 0, 1, 2, 3, 3, 4])]
NEW = 40


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("example_llama_cpp_tree", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return GGUF files of the bundled pair."""
    folder = tmp_path_factory.mktemp("gguf")
    make_gguf = together("tools", "make_gguf")[0].make_gguf
    for name, source in (("target", bundled.TARGET), ("draft", bundled.DRAFT)):
        make_gguf(source, folder / f"{name}.gguf", "f16")
    return [str(folder / "target.gguf"), str(folder / "draft.gguf")]


@pytest.mark.slow
def test_text_equals_plain_decoding_in_fewer_steps(example, files):
    (expected, most), *others = (example.generate(files, tree.parents.tolist(), PROMPT, NEW) for tree in TREES)
    assert most == len(expected) == NEW
    for text, steps in others:
        assert text == expected
        assert steps < 0.6 * NEW


@pytest.mark.slow
def test_it_is_the_text_of_treeopt_s_own_decoder(example, files):
    from treeopt.runtime import Decoder
    from treeopt.runtime.models.gguf import load_gguf

    own = list(Decoder(load_gguf(files[0]), None, temperature=0).generate(PROMPT, NEW))
    assert example.generate(files, TREES[2].parents.tolist(), PROMPT, NEW)[0] == own


@pytest.mark.slow
def test_ids_of_a_neighbouring_leaf_are_found(example, files, monkeypatch):
    """Negative control: each node carries the ids of the next leaf."""
    feed = example.Model.feed

    def shifted(self, tokens, positions, sequences):
        count = len(self.sequences)
        return feed(self, tokens, positions, [[(each + 1) % count for each in ids] for ids in sequences])

    tree = TREES[2].parents.tolist()
    expected, _ = example.generate(files, tree, PROMPT, NEW)
    monkeypatch.setattr(example.Model, "feed", shifted)
    try:
        found, _ = example.generate(files, tree, PROMPT, NEW)
    except SystemExit:  # llama.cpp's own checks
        found = []
    assert found != expected


@pytest.mark.slow
@pytest.mark.process
def test_the_command_says_whether_the_texts_are_equal(files, tmp_path):
    np.savez(tmp_path / "tree.npz", **arrays_from_tree(TREES[2]))
    command = [
        sys.executable,
        str(PATH),
        "--target",
        files[0],
        "--draft",
        files[1],
        "--tree",
        str(tmp_path / "tree.npz"),
    ]
    asked = ["--prompt", "import os\n", "--max-new-tokens", "24"]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.startswith("import os\n")
    assert done.stderr.endswith(" tokens per step; equals plain decoding: True\n")
    command[command.index(files[0])] = str(tmp_path / "tree.npz")
    done = subprocess.run([*command, *asked], capture_output=True, text=True, env=os.environ, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


def test_it_imports_nothing_of_treeopt():
    text = PATH.read_text("utf-8")
    assert "import treeopt" not in text
    assert "from treeopt" not in text
