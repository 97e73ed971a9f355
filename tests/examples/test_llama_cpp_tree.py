"""examples/llama_cpp_tree.py gives plain decoding's output in fewer steps."""

import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="needs the gguf extra")
pytest.importorskip("gguf", reason="needs the gguf extra")

from tests.scripts import ROOT, script, together
from treeopt import bundled
from treeopt.trees import TokenTree, chain, level_widths
from treeopt.trees.formats.arrays import arrays_from_tree

PATH = ROOT / "examples" / "llama_cpp_tree.py"
PROMPT = list(b"import os\n\ndef read(path):\n")
TREES = [chain(0), chain(5), level_widths([3, 3, 2, 1]), TokenTree([-1, 0, 0, 1, 2, 3, 3, 4])]
NEW_TOKENS = 40


@pytest.fixture(scope="module")
def example():
    return script(PATH)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return GGUF files of the bundled pair."""
    folder = tmp_path_factory.mktemp("gguf")
    make_gguf = together("tools", "make_gguf")[0].make_gguf
    for name, source in (("target", bundled.TARGET), ("draft", bundled.DRAFT)):
        make_gguf(source, folder / f"{name}.gguf", "f16")
    return [str(folder / "target.gguf"), str(folder / "draft.gguf")]


@pytest.mark.slow
def test_output_equals_plain_decoding_in_fewer_steps(example, files):
    from treeopt.runtime import Decoder
    from treeopt.runtime.models.gguf import load_gguf

    (expected, most), *others = (example.generate(files, tree.parents.tolist(), PROMPT, NEW_TOKENS) for tree in TREES)
    assert most == len(expected) == NEW_TOKENS
    assert expected == list(Decoder(load_gguf(files[0]), None, temperature=0).generate(PROMPT, NEW_TOKENS))
    for output, steps in others:
        assert output == expected
        assert steps < 0.6 * NEW_TOKENS


@pytest.mark.slow
def test_sequence_ids_of_another_leaf_are_detected(example, files, monkeypatch):
    """Negative control: each node carries the ids of the next leaf."""
    feed = example.Model.feed

    def shifted(self, tokens, positions, sequences):
        count = len(self.sequences)
        return feed(self, tokens, positions, [[(number + 1) % count for number in ids] for ids in sequences])

    tree = TREES[2].parents.tolist()
    expected, _ = example.generate(files, tree, PROMPT, NEW_TOKENS)
    monkeypatch.setattr(example.Model, "feed", shifted)
    try:
        output, _ = example.generate(files, tree, PROMPT, NEW_TOKENS)
    except SystemExit:  # llama.cpp's own checks
        output = []
    assert output != expected


@pytest.mark.slow
@pytest.mark.process
def test_the_command_compares_with_plain_decoding(files, tmp_path):
    tree = str(tmp_path / "tree.npz")
    np.savez(tree, **arrays_from_tree(TREES[2]))
    options = ["--draft", files[1], "--tree", tree, "--prompt", "import os\n", "--max-new-tokens", "24"]

    def run(target):
        command = [sys.executable, str(PATH), "--target", target, *options]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)

    result = run(files[0])
    assert (result.returncode, result.stdout.startswith("import os\n")) == (0, True)
    assert result.stderr.endswith(" tokens per step; equals plain decoding: True\n")
    result = run(tree)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)


def test_the_example_does_not_import_treeopt():
    text = PATH.read_text("utf-8")
    assert "import treeopt" not in text
    assert "from treeopt" not in text
