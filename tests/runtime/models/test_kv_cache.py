"""Compaction leaves what a fresh pass over the kept text would have left."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from tests.support.passes import feed_tokens, feed_tree, logits_after, new_cache
from treeopt.runtime.models.kv_cache import KVStore
from treeopt.trees import TokenTree, level_widths

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def random_tokens(length, seed=0):
    return np.random.default_rng(seed).integers(23, size=length).tolist()


def fed(model, text, tree, tokens):
    """Return a cache that holds a text and, behind it, the nodes of a tree."""
    cache = new_cache(model, len(text) + tree.nodes + 4)
    model.prefill(torch.tensor(text, dtype=torch.int64), cache)
    feed_tree(model, cache, torch.tensor(tokens), tree)
    return cache


def assert_holds(cache, model, text):
    fresh = new_cache(model, len(text))
    model.prefill(torch.tensor(text), fresh)
    assert cache.length == fresh.length == len(text)
    for kept, expected in zip(cache.layers, fresh.layers, strict=True):
        for kept_entries, expected_entries in zip(kept, expected, strict=True):
            assert_close(kept_entries[:, :, : len(text)], expected_entries[:, :, : len(text)])


def test_the_example(target):
    a, b, r, x, y, z = random_tokens(6)
    cache = fed(target, [a, b], level_widths([3]), [r, x, y, z])
    cache.commit([0, 2])
    assert_holds(cache, target, [a, b, r, y])


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 1, 4], [0, 1, 5], [0, 2], [0, 3], [0, 2, 6]])
def test_every_path_of_a_tree(target, path):
    tree, text = TokenTree([-1, 0, 0, 0, 1, 1, 2]), random_tokens(5)
    tokens = random_tokens(tree.nodes, seed=1)
    cache = fed(target, text, tree, tokens)
    cache.commit(path)
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
    cache.commit(path)
    text = text + [tokens[node] for node in path]
    assert_holds(cache, target, text)
    assert_close(feed_tokens(target, cache, [7]).logits[-1], logits_after(target, [*text, 7]), atol=1e-4)


def test_entries_move_by_slot(target):
    cache = new_cache(target, 8)
    for keys, values in cache.layers:
        keys[:, :, :8] = torch.arange(8)[:, None]
        values[:, :, :8] = -torch.arange(8)[:, None]
    cache.length = 2
    cache.commit([0, 2, 5])
    assert cache.length == 5
    for keys, values in cache.layers:
        assert keys[0, :, :5].unique(dim=1).shape == (2, 5, 8)
        assert keys[0, 0, :5, 0].tolist() == keys[0, 1, :5, 7].tolist() == [0, 1, 2, 4, 7]
        assert values[0, 1, :5, 3].tolist() == [0, -1, -2, -4, -7]


def test_clear_forgets_every_token(target):
    cache = fed(target, random_tokens(4), level_widths([2]), random_tokens(3))
    cache.clear()
    text = random_tokens(6, seed=3)
    target.prefill(torch.tensor(text), cache)
    assert_holds(cache, target, text)


def test_sequences_lie_side_by_side_with_a_slot_more_than_their_capacity(target):
    caches = target.new_caches(11, 5)
    assert [(cache.capacity, cache.length, cache.index) for cache in caches] == [(11, 0, place) for place in range(5)]
    assert caches[0].store.entries.shape == (2, 2, 5, 2, 12, 8)
    assert {tuple(entries.shape) for cache in caches for layer in cache.layers for entries in layer} == {(1, 2, 12, 8)}
    for cache in caches:
        for keys, values in cache.layers:
            keys.fill_(cache.index + 1)
            values.fill_(-cache.index - 1)
    assert caches[0].store.entries[0, :, 3].unique().tolist() == [4]
    assert caches[0].store.entries[1, :, 3].unique().tolist() == [-4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("path", [[0], [0, 1, 2], [0, 2, 5], [0, 1, 5], [0, 5]])
def test_one_sequence_of_several_side_by_side_moves_and_no_other(target, path, dtype):
    store = KVStore.empty(target.config, 11, 3, rotations=target._rotations, dtype=dtype)
    entries, caches = store.entries, store.caches()
    entries.copy_(torch.randn(entries.shape))
    before = entries.clone()
    caches[1].length = 4
    caches[1].commit(path)
    assert [each.length for each in caches] == [0, 4 + len(path), 0]
    assert entries[:, :, ::2].equal(before[:, :, ::2])
    slots = [*range(4), *(4 + offset for offset in path)]
    assert entries[:, :, 1, :, : len(slots)].equal(before[:, :, 1, :, slots])


def test_what_stands_after_each_text_is_set_to_zero(target):
    caches = target.new_caches(6, 2)
    for cache, length in zip(caches, (2, 5), strict=True):
        for entries in cache.layers:
            for each in entries:
                each.fill_(float("nan"))
        cache.length = length
        cache.zero_nodes()
        for keys, _ in cache.layers:
            assert int(keys[0, 0, :, 0].isnan().sum()) == length
        cache.clear()
        assert all(each.isfinite().all() for entries in cache.layers for each in entries)
