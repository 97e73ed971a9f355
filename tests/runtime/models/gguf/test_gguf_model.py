"""GGUF models: the logits of the same weights in the built-in transformer, and one pass for a tree."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.support.passes import feed_tokens, level_of, new_cache

pytest.importorskip("llama_cpp", reason="needs the gguf extra")

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.gguf import load_gguf
from treeopt.runtime.models.gguf.cache import NodeIds
from treeopt.runtime.models.gguf.model import GGUFModel
from treeopt.runtime.models.hf.checks import EXACT, ROUNDED, check_tree_mask
from treeopt.runtime.models.model import NO_STATES, RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import TokenTree, chain, level_widths

TREE = level_widths([4, 6, 5, 3])
PROMPT = [100, 101, 102, 32, 40, 7, 9, 200]


def random_tokens(count, seed=0):
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed))


def feed(model, cache, tokens, tree=TREE, first=0, end=None):
    end = tree.nodes if end is None else end
    return model.forward([SequenceInput(cache, tokens[first:end], level_of(tree, first, end))]).logits


def path_logits(model, text, tokens, tree=TREE):
    """Return the logits after each node, each from a plain pass over its path's text."""
    found = [None] * tree.nodes
    for padded in tree.leaf_paths:
        path = padded[padded >= 0].tolist()
        logits = model.reference_logits(torch.cat([text, tokens[path]])[None])[0, len(text) :]
        for node, row in zip(path, logits, strict=True):
            found[node] = row
    return torch.stack(found)


@pytest.mark.parametrize(("weight_dtype", "most"), [("f32", 1e-5), ("f16", 0.01), ("q8_0", 0.15)])
def test_logits_are_those_of_the_same_weights_in_the_built_in_transformer(byte_folders, gguf_files, weight_dtype, most):
    text = random_tokens(40)
    for folder, path in zip(byte_folders, gguf_files(weight_dtype), strict=True):
        built_in = load_model(folder)
        expected = built_in.forward_uncached(text)
        found = load_gguf(path)
        assert (found.config.vocabulary, found.config.max_positions, found.config.end_tokens) == (256, 128, (0,))
        assert found.parameters == built_in.parameters
        at_once = feed_tokens(found, new_cache(found, 40), text).logits
        for logits in (found.reference_logits(text[None])[0], at_once):
            assert (logits - expected).square().mean().sqrt() < most * expected.std()


@pytest.mark.parametrize("weight_dtype", ["f32", "f16", "q8_0"])
def test_each_path_of_a_tree_is_a_text_of_its_own_before_and_after_a_path_is_kept(gguf_files, weight_dtype):
    model = load_gguf(gguf_files(weight_dtype)[0])
    text, tokens = random_tokens(11), random_tokens(TREE.nodes, seed=1)
    cache = new_cache(model, 60)
    model.prefill(text, cache)
    most = 1e-3 if weight_dtype == "f32" else 0.2
    edges = [0, 1, 5, 11, 16, TREE.nodes]
    for padded in TREE.leaf_paths[::5]:
        expected = path_logits(model, text, tokens)
        at_once = feed(model, cache, tokens)
        by_levels = torch.cat([feed(model, cache, tokens, first=a, end=b) for a, b in pairwise(edges)])
        for found in (at_once, by_levels):
            torch.testing.assert_close(found, expected, rtol=most, atol=most)
        path = padded[padded >= 0].tolist()
        cache.commit(path)
        text = torch.cat([text, tokens[path]])
        assert cache.length == len(text)


def test_the_check_lets_every_format_through_and_finds_ids_of_a_neighbour(gguf_files, monkeypatch):
    """Negative control: sequence ids shifted by one leaf."""
    for weight_dtype, tolerance in (("f32", EXACT), ("f16", ROUNDED), ("q8_0", ROUNDED)):
        assert check_tree_mask(load_gguf(gguf_files(weight_dtype)[0]), tolerance=tolerance) < tolerance / 2
    ids = NodeIds.ids

    def shifted(self):
        counts, found = ids(self)
        lines = sorted({line.id for line in self._lines})
        return counts, np.roll(lines, 1)[np.searchsorted(lines, found)].astype(np.int32)

    monkeypatch.setattr(NodeIds, "ids", shifted)
    for weight_dtype in ("f32", "q8_0"):
        with pytest.raises(TreeoptError, match=r"^target: cannot take a tree mask: .*"):
            load_gguf(gguf_files(weight_dtype)[0])


def test_positions_that_are_ignored_are_found(gguf_pair):
    """Negative control: every node at the position of its slot."""

    class WithoutPositions(GGUFModel):
        def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
            wrong = []
            for sequence in inputs:
                nodes = sequence.nodes
                depth = nodes.start + np.arange(nodes.rows)
                wrong.append(sequence._replace(nodes=PassNodes(depth=depth, visible=nodes.visible, start=nodes.start)))
            return super().forward(wrong, requested_states, last_only=last_only)

    wrong = WithoutPositions(gguf_pair[0]._handle, gguf_pair[0].config, name="wrong")
    with pytest.raises(TreeoptError, match=r"^wrong: cannot take a tree mask"):
        check_tree_mask(wrong, tolerance=EXACT)


TREES = [chain(1), chain(3), TREE, level_widths([2, 2, 2]), TokenTree([-1, 0, 0, 1, 2, 3, 3, 4])]


def test_greedy_texts_of_chains_and_trees_are_plain_decoding_s(gguf_files):
    models = [load_gguf(path) for path in gguf_files("q8_0")]
    expected = list(Decoder(models[0], None, temperature=0).generate(PROMPT, 20))
    assert len(set(expected)) > 5
    for tree in TREES:
        for draft in (models[1], models[0]):  # one that is seldom right, one that is always
            decoder = Decoder(models[0], draft, tree, temperature=0)
            assert list(decoder.generate(PROMPT, 20)) == expected
            assert list(decoder.generate(PROMPT, 20)) == expected  # a second text in the same caches


def test_hidden_states_are_refused_in_one_line(gguf_pair):
    cache = new_cache(gguf_pair[0], 8)
    with pytest.raises(InvalidValueError, match=r"^target: expected a drafter without hidden states.*: take a draft"):
        gguf_pair[0].prefill(random_tokens(3), cache, RequestedStates(last=True))


def test_more_leaves_than_sequences_are_refused_in_one_line(gguf_pair):
    decoder = Decoder(gguf_pair[0], gguf_pair[1], level_widths([255]), temperature=0, max_nodes=300)
    assert len(list(decoder.generate(PROMPT, 3))) == 3
    with pytest.raises(InvalidValueError, match=r"^tree: expected at most 255 leaves, because llama.cpp has 256 seq"):
        list(Decoder(gguf_pair[0], gguf_pair[0], level_widths([128, 256]), temperature=0).generate(PROMPT, 3))
