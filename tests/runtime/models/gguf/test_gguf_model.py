"""GGUF models give the logits of the built-in transformer with the same weights, and run a tree in one pass."""

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
from treeopt.runtime.models.model import NO_STATES, RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.tree_check import EXACT, ROUNDED, check_tree_mask
from treeopt.trees import TokenTree, chain, level_widths

TREE = level_widths([4, 6, 5, 3])
PROMPT = [100, 101, 102, 32, 40, 7, 9, 200]


def random_tokens(count, seed=0):
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed))


def feed(model, cache, tokens, tree=TREE, first=0, end=None):
    end = tree.nodes if end is None else end
    return model.forward([SequenceInput(cache, tokens[first:end], level_of(tree, first, end))]).logits


def path_logits(model, prefix, tokens):
    """Return the logits after each node, from a plain pass over each path."""
    logits = [None] * TREE.nodes
    for padded in TREE.leaf_paths:
        path = padded[padded >= 0].tolist()
        rows = model.reference_logits(torch.cat([prefix, tokens[path]])[None])[0, len(prefix) :]
        for node, row in zip(path, rows, strict=True):
            logits[node] = row
    return torch.stack(logits)


@pytest.mark.parametrize(("weight_dtype", "tolerance"), [("f32", 1e-5), ("f16", 0.01), ("q8_0", 0.15)])
def test_logits_equal_the_built_in_transformer(byte_folders, gguf_files, weight_dtype, tolerance):
    tokens = random_tokens(40)
    for folder, path in zip(byte_folders, gguf_files(weight_dtype), strict=True):
        built_in, model = load_model(folder), load_gguf(path)
        expected = built_in.forward_uncached(tokens)
        assert (model.config.vocabulary, model.config.max_positions, model.config.end_tokens) == (256, 128, (0,))
        assert model.parameters == built_in.parameters
        for logits in (
            model.reference_logits(tokens[None])[0],
            feed_tokens(model, new_cache(model, 40), tokens).logits,
        ):
            assert (logits - expected).square().mean().sqrt() < tolerance * expected.std()


@pytest.mark.parametrize(("weight_dtype", "tolerance"), [("f32", 1e-3), ("q8_0", 0.2)])
def test_tree_before_and_after_commits(gguf_files, weight_dtype, tolerance):
    model = load_gguf(gguf_files(weight_dtype)[0])
    prefix, tokens = random_tokens(11), random_tokens(TREE.nodes, seed=1)
    cache = new_cache(model, 60)
    model.prefill(prefix, cache)
    for padded in TREE.leaf_paths[::5]:
        expected = path_logits(model, prefix, tokens)
        whole = feed(model, cache, tokens)
        edges = pairwise([0, 1, 5, 11, 16, TREE.nodes])
        by_level = torch.cat([feed(model, cache, tokens, first=first, end=end) for first, end in edges])
        for logits in (whole, by_level):
            torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
        path = padded[padded >= 0].tolist()
        cache.commit(path)
        prefix = torch.cat([prefix, tokens[path]])
        assert cache.length == len(prefix)


def test_check_accepts_every_dtype_and_detects_ids_of_a_neighbour(gguf_files, monkeypatch):
    """Negative control: sequence ids shifted by one leaf."""
    for weight_dtype, tolerance in (("f32", EXACT), ("f16", ROUNDED), ("q8_0", ROUNDED)):
        assert check_tree_mask(load_gguf(gguf_files(weight_dtype)[0]), tolerance=tolerance) < tolerance / 2
    ids = NodeIds.ids

    def shift_ids(self):
        counts, node_ids = ids(self)
        lines = sorted({line.id for line in self._lines})
        return counts, np.roll(lines, 1)[np.searchsorted(lines, node_ids)].astype(np.int32)

    monkeypatch.setattr(NodeIds, "ids", shift_ids)
    for weight_dtype in ("f32", "q8_0"):
        with pytest.raises(TreeoptError, match=r"^target: cannot take a tree mask: .*"):
            load_gguf(gguf_files(weight_dtype)[0])


def test_check_detects_positions_by_slot(gguf_pair):

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


@pytest.mark.parametrize("tree", [chain(3), TREE, TokenTree([-1, 0, 0, 1, 2, 3, 3, 4])], ids=str)
def test_greedy_texts_equal_plain_decoding(gguf_files, tree):
    target, draft = (load_gguf(path) for path in gguf_files("q8_0"))
    expected = list(Decoder(target, None, temperature=0).generate(PROMPT, 20))
    assert len(set(expected)) > 5
    for drafter in (draft, target):  # one that is rarely accepted, one that always is
        decoder = Decoder(target, drafter, tree, temperature=0)
        for _ in range(2):  # the second text reuses the caches
            assert list(decoder.generate(PROMPT, 20)) == expected


def test_hidden_states_and_too_many_leaves_are_refused(gguf_pair):
    target, draft = gguf_pair
    with pytest.raises(InvalidValueError, match=r"^target: expected a drafter without hidden states.*: take a draft"):
        target.prefill(random_tokens(3), new_cache(target, 8), RequestedStates(last=True))
    decoder = Decoder(target, draft, level_widths([255]), temperature=0, max_nodes=300)
    assert len(list(decoder.generate(PROMPT, 3))) == 3
    with pytest.raises(InvalidValueError, match=r"^tree: expected at most 255 leaves, because llama.cpp has 256 seq"):
        list(Decoder(target, target, level_widths([128, 256]), temperature=0).generate(PROMPT, 3))
