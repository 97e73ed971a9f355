"""examples/decode.py gives the output of transformers' plain decoding."""

import json
import os
import runpy
import subprocess
import sys
from functools import cache

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from tests.scripts import ROOT, script
from treeopt import bundled
from treeopt.texts.prompts import load_prompts
from treeopt.trees import TokenTree, chain, k_ary, level_widths

PATH = ROOT / "examples" / "decode.py"
TREES = [TokenTree([-1]), chain(1), level_widths([4, 6, 5, 3, 1, 1])]
MODELS = ["--target", str(bundled.TARGET), "--draft", str(bundled.DRAFT)]
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def example():
    return script(PATH)


@pytest.fixture(scope="module")
def models():
    load = transformers.AutoModelForCausalLM.from_pretrained
    return [load(folder, dtype=torch.float32) for folder in (bundled.TARGET, bundled.DRAFT)]


@pytest.fixture(scope="module")
def prompts():
    """Return prompts as tokens, which are bytes."""
    return [list(text.encode())[-200:] for text in load_prompts()[:2]]


@pytest.fixture(scope="module")
def plain(models):
    """Return a function that continues a prompt by transformers' greedy decoding."""

    @cache
    def generate(prompt, count, end_tokens):
        options = {"max_new_tokens": count, "eos_token_id": list(end_tokens) or None}
        return models[0].generate(torch.tensor([prompt]), do_sample=False, **options)[0].tolist()

    return lambda prompt, count=NEW_TOKENS, end_tokens=(): generate(tuple(prompt), count, tuple(end_tokens))


@pytest.fixture
def decode(example, models):
    """Return a function that continues a prompt with the example."""

    def generate(tree, prompt, count=NEW_TOKENS, end_tokens=()):
        with torch.inference_mode():
            return example.generate(*models, tree.parents.tolist(), prompt, count, end_tokens)

    return generate


def test_output_equals_plain_decoding_in_fewer_steps(decode, plain, prompts):
    steps = []
    for tree in TREES:
        outputs, tree_steps = zip(*(decode(tree, prompt) for prompt in prompts), strict=True)
        assert list(outputs) == [plain(prompt) for prompt in prompts]
        steps.append(sum(tree_steps))
    assert steps[0] == len(prompts) * NEW_TOKENS
    assert steps[1] < 0.7 * steps[0]
    assert steps[-1] < 0.4 * steps[0]


def test_output_has_the_requested_length(decode, plain, prompts):
    for count in (0, 1, 3, 7):
        assert decode(TREES[-1], prompts[0], count)[0] == (plain(prompts[0], count) if count else prompts[0])


def test_output_ends_with_an_end_token(decode, plain, prompts):
    """Also after a prompt of one token, and after one that ends with an end token."""
    for prompt, end_tokens in ((prompts[0], [32]), (prompts[1], [10, 101]), ([105], []), ([105, 32], [32])):
        assert decode(TREES[-1], prompt, end_tokens=end_tokens)[0] == plain(prompt, end_tokens=end_tokens)


def count_equal(decode, plain, prompts):
    """Return the number of outputs that equal plain decoding's."""
    return sum(decode(k_ary(3, 3), prompt)[0] == plain(prompt) for prompt in prompts)


@pytest.mark.slow
class TestMistakes:
    """Negative controls: the comparison of outputs detects each mistake."""

    def test_a_causal_mask_over_the_tree(self, example, decode, plain, prompts, monkeypatch):
        forward = example.forward
        monkeypatch.setattr(
            example,
            "forward",
            lambda *rest: forward(*rest[:-1], torch.ones_like(rest[-1]).tril(rest[-1].shape[1] - len(rest[-1]))),
        )
        assert count_equal(decode, plain, prompts) < len(prompts)

    def test_positions_by_node_instead_of_depth(self, example, decode, plain, prompts, monkeypatch):
        forward = example.forward
        monkeypatch.setattr(
            example,
            "forward",
            lambda model, cache, tokens, at, seen: forward(
                model, cache, tokens, list(range(at[0], at[0] + len(at))), seen
            ),
        )
        assert count_equal(decode, plain, prompts) < len(prompts)

    def test_first_cache_entries_instead_of_the_path(self, example, decode, plain, prompts, monkeypatch):
        keep = example.keep
        monkeypatch.setattr(example, "keep", lambda cache, length, offsets: keep(cache, length, range(len(offsets))))
        assert count_equal(decode, plain, prompts) < len(prompts)

    def test_a_wrong_mask_of_the_draft_only_costs_steps(self, example, models, decode, plain, prompts, monkeypatch):
        steps = [decode(TREES[-1], prompt)[1] for prompt in prompts]
        forward = example.forward

        def blind(model, cache, tokens, at, seen):
            if model is models[1]:
                seen = torch.ones_like(seen)
            return forward(model, cache, tokens, at, seen)

        monkeypatch.setattr(example, "forward", blind)
        results = [decode(TREES[-1], prompt) for prompt in prompts]
        assert [output for output, _ in results] == [plain(prompt) for prompt in prompts]
        assert sum(taken for _, taken in results) > sum(steps)


class TestCommand:
    def run(self, tmp_path, *options):
        command = [sys.executable, str(PATH), *MODELS, *options]
        environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return done.stdout, done.stderr.splitlines()[-1]

    @pytest.mark.slow
    @pytest.mark.process
    def test_tree_and_plain_decoding_print_the_same_output(self, tmp_path, monkeypatch, capsys):
        tree = tmp_path / "tree.json"
        TREES[-1].save(tree)
        options = ["--tree", str(tree), "--prompt", "import os\n\ndef ", "--max-new-tokens", "40"]
        text, speed = self.run(tmp_path, *options)
        monkeypatch.setattr(sys, "argv", [str(PATH), *MODELS, *options, "--plain"])
        runpy.run_path(str(PATH), run_name="__main__")  # here, where transformers is imported already
        plain, speeds = capsys.readouterr()
        assert text == plain
        assert text.startswith("import os\n\ndef ")
        assert speeds.splitlines()[-1] == "1.00 tokens per step"
        assert 1.5 < float(speed.split()[0]) < 7

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"version": 2}, "expected version 1"),
            ({"drafter": {"name": "medusa"}}, "expected a tree for a draft model"),
        ],
    )
    def test_other_files_are_refused(self, example, tmp_path, fields, reason):
        path = tmp_path / "tree.json"
        path.write_text(json.dumps({"format": "treeopt-tree", "version": 1, "parents": [-1]} | fields))
        with pytest.raises(ValueError, match=reason):
            example.load_parents(path)


def test_the_example_does_not_import_treeopt():
    assert "import treeopt" not in PATH.read_text()
    assert "from treeopt" not in PATH.read_text()
