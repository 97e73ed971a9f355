"""Compaction leaves what a fresh pass over the kept text would have left."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.caches import keep_in_all
from tests.support.drawn import examples
from treeopt.errors import InvalidValueError
from treeopt.runtime.models.kv_cache import KVCache
from treeopt.runtime.models.mask import TreeMask
from treeopt.trees import TokenTree, level_widths

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def random_tokens(length, seed=0):
    return np.random.default_rng(seed).integers(23, size=length).tolist()


def fed(model, text, tree, tokens):
    """Return a cache that holds a text and, behind it, the nodes of a tree."""
    cache = model.new_cache(len(text) + tree.nodes + 4)
    model.prefill(torch.tensor(text, dtype=torch.int64), cache)
    visible = torch.from_numpy(tree.ancestor_mask)
    mask = TreeMask(visible, cache.capacity, dtype=model.dtype, device=model.device).behind(cache.length)
    model.forward(torch.tensor(tokens), torch.tensor(tree.positions + len(text)), cache, mask)
    return cache


def assert_holds(cache, model, text):
    fresh = model.new_cache(len(text))
    model.prefill(torch.tensor(text), fresh)
    assert cache.length == fresh.length == len(text)
    for kept, expected in zip(cache.layers, fresh.layers, strict=True):
        for kept_entries, expected_entries in zip(kept, expected, strict=True):
            assert_close(kept_entries[:, :, : len(text)], expected_entries)


def test_the_example(target):
    a, b, r, x, y, z = random_tokens(6)
    cache = fed(target, [a, b], level_widths([3]), [r, x, y, z])
    keep_in_all(cache, [0, 2])
    assert_holds(cache, target, [a, b, r, y])


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 1, 4], [0, 1, 5], [0, 2], [0, 3], [0, 2, 6]])
def test_every_path_of_a_tree(target, path):
    tree, text = TokenTree([-1, 0, 0, 0, 1, 1, 2]), random_tokens(5)
    tokens = random_tokens(tree.nodes, seed=1)
    cache = fed(target, text, tree, tokens)
    keep_in_all(cache, path)
    assert_holds(cache, target, text + [tokens[node] for node in path])


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 11), max_size=11), st.integers(0, 9), st.data())
def test_any_path_of_any_tree_and_another_step_after_it(target, picks, prompt, data):
    tree = TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])
    text, tokens = random_tokens(prompt), random_tokens(tree.nodes, seed=1)
    path = [data.draw(st.integers(0, tree.nodes - 1))]
    while path[0] > 0:
        path.insert(0, int(tree.parents[path[0]]))
    cache = fed(target, text, tree, tokens)
    keep_in_all(cache, path)
    text = text + [tokens[node] for node in path]
    assert_holds(cache, target, text)
    logits = target.forward(torch.tensor([7]), torch.tensor([len(text)]), cache, None).logits
    fresh = target.new_cache(len(text) + 1)
    target.prefill(torch.tensor(text), fresh)
    assert_close(logits, target.forward(torch.tensor([7]), torch.tensor([len(text)]), fresh, None).logits, atol=1e-4)


def test_entries_move_by_slot(target):
    cache = target.new_cache(8)
    for keys, values in cache.layers:
        keys[:] = torch.arange(8)[:, None]
        values[:] = -torch.arange(8)[:, None]
    cache.length = 2
    keep_in_all(cache, [0, 2, 5])
    assert cache.length == 5
    for keys, values in cache.layers:
        assert keys[0, :, :5].unique(dim=1).shape == (2, 5, 8)
        assert keys[0, 0, :5, 0].tolist() == keys[0, 1, :5, 7].tolist() == [0, 1, 2, 4, 7]
        assert values[0, 1, :5, 3].tolist() == [0, -1, -2, -4, -7]


def test_all_texts_of_a_batch_keep_the_same_path(target):
    tree, path = TokenTree([-1, 0, 0, 0, 1, 1, 2]), [0, 2, 6]
    texts, nodes = ([random_tokens(length, seed=seed) for seed in (1, 2, 3)] for length in (5, tree.nodes))
    cache = target.new_cache(5 + tree.nodes, batch_size=3)
    target.prefill(torch.tensor(texts), cache)
    visible = torch.from_numpy(tree.ancestor_mask)
    mask = TreeMask(visible, cache.capacity, dtype=target.dtype, device=target.device).behind(5)
    target.forward(torch.tensor(nodes), torch.tensor(tree.positions + 5), cache, mask)
    keep_in_all(cache, path)
    fresh = target.new_cache(8, batch_size=3)
    target.prefill(
        torch.tensor([text + [row[node] for node in path] for text, row in zip(texts, nodes, strict=True)]), fresh
    )
    assert cache.length == fresh.length == 8
    for kept, expected in zip(cache.layers, fresh.layers, strict=True):
        for kept_entries, expected_entries in zip(kept, expected, strict=True):
            assert_close(kept_entries[:, :, :8], expected_entries)


def test_clear_forgets_every_token(target):
    cache = fed(target, random_tokens(4), level_widths([2]), random_tokens(3))
    cache.clear()
    text = random_tokens(6, seed=3)
    target.prefill(torch.tensor(text), cache)
    assert_holds(cache, target, text)


def test_shapes(target):
    cache = target.new_cache(11)
    assert (cache.capacity, cache.length, len(cache.layers)) == (11, 0, 2)
    assert {tuple(entries.shape) for layer in cache.layers for entries in layer} == {(1, 2, 11, 8)}
    batch = target.new_cache(11, batch_size=5)
    assert {tuple(entries.shape) for layer in batch.layers for entries in layer} == {(5, 2, 11, 8)}
    assert batch.batch_size == 5


class TestLengths:
    """Texts of one cache that grow by paths of different lengths."""

    @pytest.mark.parametrize("paths", [([0, 2, 5], [0]), ([0, 1], [0, 2, 4, 5]), ([0, 3], [0, 1, 4])])
    def test_each_text_keeps_its_own_path(self, target, paths):
        texts, nodes = [[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]], [[7, 8, 9, 10, 11, 12], [1, 2, 3, 4, 5, 6]]
        cache = target.new_cache(11, 2)
        target.prefill(torch.tensor(texts), cache)
        target.forward(torch.tensor(nodes), torch.arange(5, 11), cache, None)
        before = [[each.clone() for each in entries] for entries in cache.layers]
        for text, path in enumerate(paths):
            cache.keep(text, path)
        assert cache.lengths == [5 + len(path) for path in paths]
        for entries, old in zip(cache.layers, before, strict=True):
            for each, was in zip(entries, old, strict=True):
                for text, path in enumerate(paths):
                    slots = [*range(5), *(5 + offset for offset in path)]
                    assert torch.equal(each[text, :, : len(slots)], was[text, :, slots])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("path", [[0], [0, 1, 2], [0, 2, 5], [0, 1, 5], [0, 5]])
    def test_one_text_of_several_side_by_side_moves_and_no_other(self, target, path, dtype):
        texts = KVCache.empty(target.config, 11, 3, rotations=target._rotations, dtype=dtype).texts()
        store = texts[0].whole._store
        store.copy_(torch.randn(store.shape))
        before = store.clone()
        texts[1].length = 4
        texts[1].keep(0, path)
        assert [each.length for each in texts] == [0, 4 + len(path), 0]
        assert store[:, :, ::2].equal(before[:, :, ::2])
        slots = [*range(4), *(4 + offset for offset in path)]
        assert store[:, :, 1, :, : len(slots)].equal(before[:, :, 1, :, slots])

    def test_what_stands_behind_each_text_is_wiped(self, target):
        cache = target.new_cache(6, 2)
        for entries in cache.layers:
            for each in entries:
                each.fill_(float("nan"))
        cache.lengths[:] = [2, 5]
        cache.wipe()
        for keys, _ in cache.layers:
            assert [int(keys[text, 0, :, 0].isnan().sum()) for text in (0, 1)] == [2, 5]

    def test_a_pass_is_for_texts_of_one_length(self, target):
        cache = target.new_cache(11, 2)
        cache.lengths[:] = [3, 4]
        with pytest.raises(InvalidValueError, match=r"cache: expected texts of one length. Got \[3, 4\]"):
            target.forward(torch.tensor([[1], [2]]), torch.tensor([3]), cache, None)
        cache.clear()
        assert (cache.length, cache.lengths) == (0, [0, 0])
