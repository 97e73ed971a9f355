"""The example decoder gives the text of transformers' own plain decoding, and would not with a mistake in it."""

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from treeopt import bundled
from treeopt.texts.prompts import load_prompts
from treeopt.trees import TokenTree, chain, k_ary, level_widths

PATH = Path(__file__).resolve().parents[2] / "examples" / "decode.py"
TREES = [TokenTree([-1]), chain(1), k_ary(3, 3), level_widths([4, 6, 5, 3, 1, 1])]
NEW = 32


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("example_decode", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models():
    load = transformers.AutoModelForCausalLM.from_pretrained
    return [load(folder, dtype=torch.float32) for folder in (bundled.TARGET, bundled.DRAFT)]


@pytest.fixture(scope="module")
def texts():
    """Return prompts as tokens, which are bytes."""
    return [list(text.encode())[-200:] for text in load_prompts()[:2]]


@pytest.fixture(scope="module")
def plain(models):
    """Return a function that continues a text by transformers' greedy decoding."""

    @cache
    def continued(text, count, ends):
        asked = {"max_new_tokens": count, "eos_token_id": list(ends) or None}
        return models[0].generate(torch.tensor([text]), do_sample=False, **asked)[0].tolist()

    return lambda text, count=NEW, end_tokens=(): continued(tuple(text), count, tuple(end_tokens))


@pytest.fixture
def decoded(example, models):
    """Return a function that continues a text with the example."""

    def continued(tree, text, count=NEW, end_tokens=()):
        with torch.inference_mode():
            return example.generate(*models, tree.parents.tolist(), text, count, end_tokens)

    return continued


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_text_equals_plain_decoding(decoded, plain, texts, tree):
    for text in texts:
        assert decoded(tree, text)[0] == plain(text)


def test_trees_save_steps(decoded, texts):
    steps = [sum(decoded(tree, text)[1] for text in texts) for tree in (TREES[0], TREES[1], TREES[-1])]
    assert steps[0] == len(texts) * NEW
    assert steps[1] < 0.7 * steps[0]
    assert steps[2] < 0.4 * steps[0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_it_ends_after_so_many_tokens(decoded, plain, texts, count):
    assert decoded(TREES[-1], texts[0], count)[0] == (plain(texts[0], count) if count else texts[0])


@pytest.mark.parametrize("ends", [[32], [10, 101]], ids=str)
def test_it_ends_with_an_end_token(decoded, plain, texts, ends):
    for text in texts:
        assert decoded(TREES[-1], text, end_tokens=ends)[0] == plain(text, end_tokens=ends)


def test_a_prompt_of_one_token_and_one_that_ends_with_an_end_token(decoded, plain):
    assert decoded(TREES[-1], [105])[0] == plain([105])
    assert decoded(TREES[-1], [105, 32], end_tokens=[32])[0] == plain([105, 32], end_tokens=[32])


def equal_texts(decoded, plain, texts):
    """Count the texts that still equal plain decoding."""
    return sum(decoded(k_ary(3, 3), text)[0] == plain(text) for text in texts)


class TestMistakes:
    """Each must be seen by the comparison of texts."""

    def test_a_causal_mask_over_the_tree(self, example, decoded, plain, texts, monkeypatch):
        forward = example.forward
        monkeypatch.setattr(
            example,
            "forward",
            lambda *rest: forward(*rest[:-1], torch.ones_like(rest[-1]).tril(rest[-1].shape[1] - len(rest[-1]))),
        )
        assert equal_texts(decoded, plain, texts) < len(texts)

    def test_positions_in_the_order_of_the_nodes(self, example, decoded, plain, texts, monkeypatch):
        forward = example.forward
        monkeypatch.setattr(
            example,
            "forward",
            lambda model, cache, tokens, at, seen: forward(
                model, cache, tokens, list(range(at[0], at[0] + len(at))), seen
            ),
        )
        assert equal_texts(decoded, plain, texts) < len(texts)

    def test_the_first_entries_kept_in_place_of_the_path(self, example, decoded, plain, texts, monkeypatch):
        keep = example.keep
        monkeypatch.setattr(example, "keep", lambda cache, length, offsets: keep(cache, length, range(len(offsets))))
        assert equal_texts(decoded, plain, texts) < len(texts)

    def test_a_wrong_mask_of_the_draft_costs_steps_but_no_text(
        self, example, models, decoded, plain, texts, monkeypatch
    ):
        steps = [decoded(TREES[-1], text)[1] for text in texts]
        forward = example.forward

        def blind(model, cache, tokens, at, seen):
            if model is models[1]:
                seen = torch.ones_like(seen)
            return forward(model, cache, tokens, at, seen)

        monkeypatch.setattr(example, "forward", blind)
        results = [decoded(TREES[-1], text) for text in texts]
        assert [text for text, _ in results] == [plain(text) for text in texts]
        assert sum(taken for _, taken in results) > sum(steps)


class TestCommand:
    def printed(self, tmp_path, *options):
        command = [sys.executable, str(PATH), "--target", str(bundled.TARGET), "--draft", str(bundled.DRAFT), *options]
        environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return done.stdout, done.stderr.splitlines()[-1]

    @pytest.mark.slow
    @pytest.mark.process
    def test_both_ways_print_one_text(self, tmp_path):
        tree = tmp_path / "tree.json"
        TREES[-1].save(tree)
        asked = ["--tree", str(tree), "--prompt", "import os\n\ndef ", "--max-new-tokens", "40"]
        text, speed = self.printed(tmp_path, *asked)
        plain, unit = self.printed(tmp_path, *asked, "--plain")
        assert text == plain
        assert text.startswith("import os\n\ndef ")
        assert unit == "1.00 tokens per step"
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


def test_it_imports_nothing_of_treeopt():
    assert "import treeopt" not in PATH.read_text()
    assert "from treeopt" not in PATH.read_text()
