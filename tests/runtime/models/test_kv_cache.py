"""A commit leaves the keys and values of a fresh pass over the committed sequence."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from tests.support.passes import feed_tokens, feed_tree, logits_after, new_cache
from treeopt.runtime.models import kv_cache
from treeopt.runtime.models.kv_cache import KVStore
from treeopt.trees import TokenTree

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def random_tokens(length, seed=0):
    return np.random.default_rng(seed).integers(23, size=length).tolist()


def assert_contains(cache, model, tokens):
    fresh = new_cache(model, len(tokens))
    model.prefill(torch.tensor(tokens), fresh)
    assert cache.length == fresh.length == len(tokens)
    for layer, expected_layer in zip(cache.layers, fresh.layers, strict=True):
        for entries, expected in zip(layer, expected_layer, strict=True):
            assert_close(entries[:, :, : len(tokens)], expected[:, :, : len(tokens)])


@settings(max_examples=examples(40, fast=40), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 11), max_size=11), st.integers(0, 9), st.data())
def test_commit_of_any_path_and_the_step_after_it(target, picks, prompt, data):
    tree = TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])
    sequence, tokens = random_tokens(prompt), random_tokens(tree.nodes, seed=1)
    path = [data.draw(st.integers(0, tree.nodes - 1))]
    while path[0] > 0:
        path.insert(0, int(tree.parents[path[0]]))
    cache = new_cache(target, len(sequence) + tree.nodes + 4)
    target.prefill(torch.tensor(sequence, dtype=torch.int64), cache)
    feed_tree(target, cache, torch.tensor(tokens), tree)
    cache.commit(path)
    sequence = sequence + [tokens[node] for node in path]
    assert_contains(cache, target, sequence)
    assert_close(feed_tokens(target, cache, [7]).logits[-1], logits_after(target, [*sequence, 7]), atol=1e-4)
    cache.clear()
    target.prefill(torch.tensor(tokens), cache)
    assert_contains(cache, target, tokens)


def test_store_has_a_spare_slot_per_sequence(target):
    caches = target.new_caches(11, 5)
    assert [(cache.capacity, cache.length, cache.index) for cache in caches] == [(11, 0, index) for index in range(5)]
    (entries,) = caches[0].store.entries
    assert entries.shape == (2, 2, 5, 2, 12, 8)
    for cache in caches:
        for keys, values in cache.layers:
            keys.fill_(cache.index + 1)
            values.fill_(-cache.index - 1)
    assert entries[0, :, 3].unique().tolist() == [4]
    assert entries[1, :, 3].unique().tolist() == [-4]


@pytest.mark.parametrize("with_torch", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_commit_moves_one_sequence_only(target, dtype, with_torch, monkeypatch):
    if with_torch:  # as on a GPU
        monkeypatch.setattr(kv_cache, "movable_entries", lambda entries: entries)
    for path in ([0], [0, 1, 2], [0, 2, 5], [0, 1, 5], [0, 5]):
        store = KVStore.empty(target.config, 11, 3, rotations=target._rotations, dtype=dtype)
        (entries,), caches = store.entries, store.caches()
        entries.copy_(torch.randn(entries.shape))
        before = entries.clone()
        caches[1].length = 4
        caches[1].commit(path)
        assert [cache.length for cache in caches] == [0, 4 + len(path), 0]
        assert entries[:, :, ::2].equal(before[:, :, ::2])
        slots = [*range(4), *(4 + offset for offset in path)]
        assert entries[:, :, 1, :, : len(slots)].equal(before[:, :, 1, :, slots])


def test_slots_after_the_sequence_are_reset(target):
    caches = target.new_caches(6, 2)
    for cache, length in zip(caches, (2, 5), strict=True):
        for layer in cache.layers:
            for entries in layer:
                entries.fill_(float("nan"))
        cache.length = length
        cache.zero_nodes()
        assert all(int(keys[0, 0, :, 0].isnan().sum()) == length for keys, _ in cache.layers)
        cache.clear()
        assert all(entries.isfinite().all() for layer in cache.layers for entries in layer)


def test_layers_of_different_sizes_are_allocated_one_by_one():
    store = KVStore(3, 6)
    for index, (heads, size) in enumerate([(2, 8), (1, 4)]):
        key, value = torch.ones((3, heads, 2, size)), torch.ones((3, heads, 2, size + 1), dtype=torch.bfloat16)
        store.add_layer(2 * index, key, value)
        assert [entries.shape for entries in store.layers[2 * index]] == [(3, heads, 7, size), (3, heads, 7, size + 1)]
        assert not any(entries.any() for entries in store.layers[2 * index])
    before = [entries.copy_(torch.randn(entries.shape)).clone() for entries in store.entries]
    cache = store.caches()[1]
    cache.length = 1
    cache.commit([0, 2, 3])
    for entries, old in zip(store.entries, before, strict=True):
        assert entries[1, :, :4].equal(old[1][:, [0, 1, 3, 4]])
        assert entries[::2].equal(old[::2])
    cache.zero_nodes()
    assert not any(entries[1, :, 4:].any() for entries in store.entries)
    cache.clear()
    assert not any(entries[1].any() for entries in store.entries)
    assert all(entries[0].all() for entries in store.entries)
