"""Compaction leaves what a fresh pass over the kept text would have left."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
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
    cache.keep([0, 2])
    assert_holds(cache, target, [a, b, r, y])


@pytest.mark.parametrize("path", [[0], [0, 1], [0, 1, 4], [0, 1, 5], [0, 2], [0, 3], [0, 2, 6]])
def test_every_path_of_a_tree(target, path):
    tree, text = TokenTree([-1, 0, 0, 0, 1, 1, 2]), random_tokens(5)
    tokens = random_tokens(tree.nodes, seed=1)
    cache = fed(target, text, tree, tokens)
    cache.keep(path)
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
    cache.keep(path)
    text = text + [tokens[node] for node in path]
    assert_holds(cache, target, text)
    logits = target.forward(torch.tensor([7]), torch.tensor([len(text)]), cache, None)
    fresh = target.new_cache(len(text) + 1)
    target.prefill(torch.tensor(text), fresh)
    assert_close(logits, target.forward(torch.tensor([7]), torch.tensor([len(text)]), fresh, None), atol=1e-4)


def test_entries_move_by_slot(target):
    cache = target.new_cache(8)
    for keys, values in cache.layers:
        keys[:] = torch.arange(8)[:, None]
        values[:] = -torch.arange(8)[:, None]
    cache.length = 2
    cache.keep([0, 2, 5])
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
    cache.keep(path)
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
