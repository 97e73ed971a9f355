"""Passes of the built-in transformer: trees, prompts of any length, padding, chunks and products."""

import copy
import io
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.drawn import examples
from tests.support.passes import feed_tokens, feed_tree, level_of, logits_after, new_cache
from treeopt.runtime import load_model
from treeopt.runtime.models import attention, linear
from treeopt.runtime.models import model as model_module
from treeopt.runtime.models.linear import LEAST_REORDERED, Linear, pad_row_count
from treeopt.runtime.models.model import RequestedStates, SequenceInput
from treeopt.trees import TokenTree, level_widths

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


def random_tokens(length, *, seed=0):
    return np.random.default_rng(seed).integers(23, size=length).tolist()


@pytest.fixture(scope="session")
def reference_logits(target_folder):
    """Return the function from a sequence to the target's logits (n, V) in transformers."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(tokens):
        return model(torch.tensor([tokens])).logits[0]

    return logits


def tree_logits(model, prefix, tree, tokens):
    """Return the logits (n, V) of the nodes of a tree after a prefix."""
    cache = new_cache(model, len(prefix) + tree.nodes)
    model.prefill(torch.tensor(prefix, dtype=torch.int64), cache)
    return feed_tree(model, cache, torch.tensor(tokens), tree).logits


def assert_same_entries(caches, length, compare=assert_close):
    """Compare the keys and values of caches with those of the last one."""
    *caches, reference = caches
    for cache in caches:
        assert cache.length == reference.length == length
        for layer, expected_layer in zip(cache.layers, reference.layers, strict=True):
            for entries, expected in zip(layer, expected_layer, strict=True):
                compare(entries[:, :, :length], expected[:, :, :length])


class TestPasses:
    @pytest.mark.parametrize("prompt", [0, 1, 11])
    def test_many_tokens_then_single_ones(self, target, reference_logits, prompt):
        tokens = random_tokens(30, seed=1)
        expected = reference_logits(tokens)
        cache = new_cache(target, 30)
        target.prefill(torch.tensor(tokens[:prompt], dtype=torch.int64), cache)
        assert_close(feed_tokens(target, cache, tokens[prompt:]).logits, expected[prompt:])
        assert cache.length == prompt
        for position in range(prompt, 20):
            assert_close(feed_tokens(target, cache, tokens[position : position + 1]).logits[0], expected[position])
            cache.length += 1

    @settings(max_examples=examples(25), deadline=None, derandomize=True)
    @given(st.lists(st.integers(0, 11), max_size=11), st.integers(0, 20), st.integers(0, 1000))
    def test_paths_of_any_tree_equal_sequences(self, target, reference_logits, picks, prompt, seed):
        tree = TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])
        prefix, tokens = random_tokens(prompt, seed=seed), random_tokens(tree.nodes, seed=seed + 1)
        logits = tree_logits(target, prefix, tree, tokens)
        for padded in tree.leaf_paths:
            path = padded[padded >= 0].tolist()
            expected = reference_logits([*prefix, *(tokens[node] for node in path)])
            assert_close(logits[path], expected[len(prefix) :])

    def test_tree_fed_level_by_level_equals_one_pass(self, target):
        tree, prefix = level_widths([3, 4, 5]), random_tokens(6)
        tokens = random_tokens(tree.nodes, seed=5)
        expected = tree_logits(target, prefix, tree, tokens)
        cache = new_cache(target, len(prefix) + tree.nodes)
        target.prefill(torch.tensor(prefix), cache)
        for level in tree.levels:
            nodes = level_of(tree, level.start, level.stop)
            logits = target.forward([SequenceInput(cache, torch.tensor(tokens[level]), nodes)]).logits
            assert_close(logits, expected[level])

    def test_last_trained_position(self, target, reference_logits):
        tokens = random_tokens(128, seed=7)
        assert_close(logits_after(target, tokens), reference_logits(tokens)[-1])


class TestPrefill:
    @pytest.mark.parametrize("layers", [1, 3])
    def test_entries_do_not_depend_on_requested_states(self, make_checkpoint, layers):
        model = load_model(make_checkpoint(seed=3, num_hidden_layers=layers))
        tokens, caches = torch.tensor(random_tokens(9)), model.new_caches(12, 2)
        assert model.prefill(tokens, caches[0]) is None
        assert model.prefill(tokens, caches[1], RequestedStates(last=True)) is not None
        assert_same_entries(caches, 9, partial(torch.testing.assert_close, rtol=0, atol=0))
        assert all(entries[:, :, :9].abs().amin(-1).min() > 0 for layer in caches[1].layers for entries in layer)

    @pytest.mark.parametrize("length", [33, 37])
    @pytest.mark.parametrize("room", [0, 1, 16])  # padding 33 tokens takes one slot
    def test_padded_prompt_equals_unpadded_one(self, target, monkeypatch, length, room):
        tokens, requested_states = (
            random_tokens(length + 1),
            RequestedStates(layer_ids=(1,), last=True, all_tokens=True),
        )
        prompt = torch.tensor(tokens[:-1])
        caches = [new_cache(target, length + room) for _ in range(2)]
        padded = target.prefill(prompt, caches[0], requested_states)
        (last,) = target.prefill(prompt, new_cache(target, 64), requested_states._replace(all_tokens=False)).last
        monkeypatch.setattr(linear, "COUNTS_PER_DOUBLING", 1 << 20)  # no padding
        plain = target.prefill(prompt, caches[1], requested_states)
        assert padded.last.shape == plain.last.shape == (length, target.config.hidden)
        assert_close(padded.last, plain.last)
        assert_close(padded.layers[0], plain.layers[0])
        assert_close(last, plain.last[-1])
        assert_same_entries(caches, length)
        if room:
            assert_close(feed_tokens(target, caches[0], tokens[-1:]).logits[0], logits_after(target, tokens))

    def test_padding_is_finite_with_a_broken_embedding(self, make_checkpoint):
        model = load_model(make_checkpoint(seed=3))
        with torch.inference_mode():
            model.weights.embedding[0] = float("nan")  # of a token that the prompt does not contain
        cache = new_cache(model, 64)
        model.prefill(1 + torch.arange(33) % 8, cache)
        assert all(entries.isfinite().all() for layer in cache.layers for entries in layer)

    def test_prompts_share_few_row_counts(self, target, monkeypatch):
        counts, product = set(), linear.Linear.__call__

        def record_rows(self, x):
            counts.add(x.shape[0])
            return product(self, x)

        monkeypatch.setattr(linear.Linear, "__call__", record_rows)
        for length in range(33, 65):
            target.prefill(torch.tensor(random_tokens(length)), new_cache(target, 80))
        assert counts == set(range(34, 65, 2))

    @pytest.mark.parametrize("window", [None, 9])
    @pytest.mark.parametrize("all_tokens", [True, False])
    def test_chunks_equal_one_pass(self, target, monkeypatch, window, all_tokens):
        layers = frozenset() if window is None else frozenset({0})
        monkeypatch.setattr(target, "config", replace(target.config, sliding_window=window, sliding_layers=layers))
        tokens, requested_states = random_tokens(71), RequestedStates(layer_ids=(1,), last=True, all_tokens=all_tokens)
        prompt, caches = torch.tensor(tokens[:-1]), target.new_caches(80, 3)
        states = target.prefill(prompt, caches[2], requested_states)
        monkeypatch.setattr(model_module, "PREFILL_TOKENS", 16)
        monkeypatch.setattr(attention, "BLOCK_ROWS", 7)
        in_chunks = target.prefill(prompt, caches[0], requested_states)
        target.prefill(prompt, caches[1])
        assert len(in_chunks.last) == (70 if all_tokens else 1)
        assert_close(in_chunks.last, states.last)
        assert_close(in_chunks.layers[0], states.layers[0])
        assert_same_entries(caches, 70)
        *logits, expected = (feed_tokens(target, cache, tokens[-1:]).logits for cache in caches)
        assert_close(torch.stack(logits), expected.expand(2, -1, -1))


class TestProducts:
    @pytest.mark.parametrize("inputs", [32, 256])
    @pytest.mark.parametrize("rows", [0, 1, 7, 64])
    def test_products_with_and_without_reordered_weights(self, inputs, rows):
        generator = torch.Generator().manual_seed(0)
        weight, x = (torch.randn((size, inputs), generator=generator) for size in (512, rows))
        assert (weight.numel() >= LEAST_REORDERED) == (inputs == 256)
        assert_close(Linear(weight)(x), x @ weight.t())
        bias = torch.randn(512, generator=generator)
        product = Linear(weight, bias)
        assert_close(product(x), x @ weight.t() + bias)
        assert product.parameters == Linear(weight).parameters + 512
        product.assign(2 * weight, -bias)
        assert_close(product(x), 2 * (x @ weight.t()) + product.bias)
        assert_close(product.weight, 2 * weight)

    @pytest.mark.parametrize("shape", [(3, 5), (400, 300)])
    @pytest.mark.parametrize("bias", [None, torch.arange(400.0)])
    def test_copied_and_pickled_products_have_the_same_weights(self, shape, bias):
        weight, x = (torch.randn(size, generator=torch.Generator().manual_seed(0)) for size in (shape, (4, shape[1])))
        product = Linear(weight, None if bias is None else bias[: shape[0]])
        file = io.BytesIO()
        torch.save(product, file)
        file.seek(0)
        for other in (copy.deepcopy(product), torch.load(file, weights_only=False)):
            assert torch.equal(other.weight, weight)
            assert torch.equal(other(x), product(x))
            assert other.parameters == product.parameters

    def test_row_counts_are_padded_by_at_most_a_sixteenth(self):
        for rows in range(1, 2000):
            padded = pad_row_count(rows, 1)
            assert rows <= padded <= rows * (1 + 1 / 16)
            assert pad_row_count(padded, 1) == padded
        assert len({pad_row_count(rows, 1) for rows in range(257, 513)}) == 16
        assert pad_row_count(257, 7_000_000) == 272
        assert pad_row_count(257, 7_000_000_000) == 257
