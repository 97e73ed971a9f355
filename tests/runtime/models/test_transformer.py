"""The transformer's logits are those of transformers, for texts and for every path of a tree."""

import json
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
from treeopt.trees import TokenTree, k_ary, level_widths

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)

CHECKPOINTS = {
    "tied, grouped queries": {"tie_word_embeddings": True},
    "untied, grouped queries": {"tie_word_embeddings": False},
    "as many keys as queries": {"num_key_value_heads": 4},
    "one key for all queries": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "heads wider than hidden / heads": {"head_dim": 16},
    "large enough for reordered weights": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "head_dim": 64,
        "num_hidden_layers": 1,
        "initializer_range": 0.08,
    },
    "one layer, other epsilon": {"num_hidden_layers": 1, "rms_norm_eps": 1e-2},
    "other rotary base": {"rope_parameters": {"rope_type": "default", "rope_theta": 200.0}},
    "stored as float16": {"stored_dtype": torch.float16},
    "stored as bfloat16, tied": {"stored_dtype": torch.bfloat16, "tie_word_embeddings": True},
    "in several files": {"max_shard_size": "20KB"},
}


@pytest.fixture(scope="module", params=CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def folder(request, make_checkpoint):
    return make_checkpoint(seed=3, **request.param)


def random_text(length, *, seed=0, vocabulary=23):
    return np.random.default_rng(seed).integers(vocabulary, size=length).tolist()


def reference(folder):
    """Return the function from a text to the logits (n, V) that transformers computes."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(tokens):
        return model(torch.tensor([tokens])).logits[0]

    return logits


def forward_tree(model, text, tree, tokens):
    """Return the logits (n, V) after each node of a tree after a text."""
    cache = new_cache(model, len(text) + tree.nodes)
    model.prefill(torch.tensor(text, dtype=torch.int64), cache)
    return feed_tree(model, cache, torch.tensor(tokens), tree).logits


def test_a_prompt_and_then_token_by_token(folder):
    model, tokens = load_model(folder), random_text(40)
    expected = reference(folder)(tokens)
    cache = new_cache(model, 40)
    model.prefill(torch.tensor(tokens[:17]), cache)
    for position in range(17, 40):
        logits = feed_tokens(model, cache, tokens[position : position + 1]).logits
        assert logits.dtype == torch.float32
        assert_close(logits[0], expected[position])
        cache.length += 1


@pytest.mark.parametrize("prompt", [0, 1, 11])
def test_many_tokens_at_once_under_a_causal_mask(folder, prompt):
    model, tokens = load_model(folder), random_text(30, seed=1)
    cache = new_cache(model, 30)
    model.prefill(torch.tensor(tokens[:prompt], dtype=torch.int64), cache)
    logits = feed_tokens(model, cache, tokens[prompt:]).logits
    assert_close(logits, reference(folder)(tokens)[prompt:])
    assert cache.length == prompt


@pytest.mark.parametrize("tree", [k_ary(2, 3), level_widths([4, 3, 2, 2])])
def test_each_path_of_a_tree_is_a_text_of_its_own(folder, tree):
    assert_paths_are_texts(load_model(folder), reference(folder), random_text(9), tree, random_text(tree.nodes))


@settings(max_examples=examples(25), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 11), max_size=11), st.integers(0, 20), st.integers(0, 1000))
def test_each_path_of_any_tree_is_a_text_of_its_own(target, target_reference, picks, prompt, seed):
    tree = TokenTree.ordered([-1, *(pick % (node + 1) for node, pick in enumerate(picks))])
    text, tokens = random_text(prompt, seed=seed), random_text(tree.nodes, seed=seed + 1)
    assert_paths_are_texts(target, target_reference, text, tree, tokens)


@pytest.fixture(scope="session")
def target_reference(target_folder):
    return reference(target_folder)


def assert_paths_are_texts(model, reference, text, tree, tokens):
    logits = forward_tree(model, text, tree, tokens)
    for padded in tree.leaf_paths:
        path = padded[padded >= 0].tolist()
        expected = reference([*text, *(tokens[node] for node in path)])
        assert_close(logits[path], expected[len(text) :])


def test_a_tree_fed_level_by_level_equals_one_pass(target):
    tree, text = level_widths([3, 4, 5]), random_text(6)
    tokens = random_text(tree.nodes, seed=5)
    expected = forward_tree(target, text, tree, tokens)
    cache = new_cache(target, len(text) + tree.nodes)
    target.prefill(torch.tensor(text), cache)
    for level in tree.levels:
        nodes = level_of(tree, level.start, level.stop)
        logits = target.forward([SequenceInput(cache, torch.tensor(tokens[level]), nodes)]).logits
        assert_close(logits, expected[level])


def test_siblings_do_not_see_each_other(target):
    tree, text = level_widths([3, 3]), random_text(5)
    tokens = random_text(tree.nodes)
    changed = [*tokens[:2], (tokens[2] + 1) % 23, *tokens[3:]]
    before, after = (forward_tree(target, text, tree, each) for each in (tokens, changed))
    same = [node for node in range(tree.nodes) if not tree.ancestor_mask[node, 2]]
    assert_close(after[same], before[same])
    assert (after[2] - before[2]).abs().max() > 0.1


def test_the_last_position_that_was_trained(target, target_reference):
    tokens = random_text(128, seed=7)
    assert_close(logits_after(target, tokens), target_reference(tokens)[-1])


def test_a_config_of_older_transformers(target_folder, tmp_path):
    for path in target_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"], config["head_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 300.0, "rope_scaling": None}))
    model, tokens = load_model(tmp_path), random_text(20)
    assert_close(logits_after(model, tokens), reference(tmp_path)(tokens)[-1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_cast_to_the_dtype_asked_for(target_folder, dtype):
    model, tree, tokens = load_model(target_folder, dtype=dtype), level_widths([2, 2]), random_text(5)
    logits = forward_tree(model, random_text(6), tree, tokens)
    assert logits.dtype == model.dtype == new_cache(model, 1).layers[0][0].dtype == dtype
    exact = forward_tree(load_model(target_folder), random_text(6), tree, tokens)
    assert (logits.float() - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("inputs", [32, 256])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_products_small_and_reordered(inputs, rows):
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn((size, inputs), generator=generator) for size in (512, rows))
    assert (weight.numel() >= LEAST_REORDERED) == (inputs == 256)
    assert_close(Linear(weight)(x), x @ weight.t())
    bias = torch.randn(512, generator=generator)
    assert_close(Linear(weight, bias)(x), x @ weight.t() + bias)
    assert Linear(weight, bias).parameters == Linear(weight).parameters + 512
    product = Linear(weight, bias)
    product.assign(2 * weight, -bias)
    assert_close(product(x), 2 * (x @ weight.t()) + product.bias)
    assert_close(product.weight, 2 * weight)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_prefill_that_nothing_is_wanted_of_leaves_the_same_keys_and_values(make_checkpoint, layers):
    model, tokens = (
        load_model(make_checkpoint(seed=3, num_hidden_layers=layers)),
        torch.tensor(random_text(9)),
    )
    caches = model.new_caches(12, 2)
    assert model.prefill(tokens, caches[0]) is None
    assert model.prefill(tokens, caches[1], RequestedStates(last=True)) is not None
    assert caches[0].length == caches[1].length == 9
    for found, expected in zip(caches[0].layers, caches[1].layers, strict=True):
        for entries, others in zip(found, expected, strict=True):
            assert others[:, :, :9].abs().amin(-1).min() > 0
            assert torch.equal(entries, others)


@pytest.mark.parametrize("length", [33, 37])
@pytest.mark.parametrize("room", [0, 1, 16])  # one slot is what is added
def test_a_prompt_of_an_uneven_length_reads_as_one_that_is_not_padded(target, monkeypatch, length, room):
    tokens, requested_states = random_text(length + 1), RequestedStates(layer_ids=(1,), last=True, all_tokens=True)
    caches = [new_cache(target, length + room) for _ in range(2)]
    padded = target.prefill(torch.tensor(tokens[:-1]), caches[0], requested_states)
    monkeypatch.setattr(linear, "COUNTS_PER_DOUBLING", 1 << 20)  # none is padded
    plain = target.prefill(torch.tensor(tokens[:-1]), caches[1], requested_states)
    assert padded.last.shape == plain.last.shape == (length, target.config.hidden)
    assert_close(padded.last, plain.last)
    assert_close(padded.layers[0], plain.layers[0])
    assert caches[0].length == caches[1].length == length
    for found, expected in zip(caches[0].layers, caches[1].layers, strict=True):
        for entries, others in zip(found, expected, strict=True):
            assert_close(entries[:, :, :length], others[:, :, :length])
    if room:
        assert_close(feed_tokens(target, caches[0], tokens[-1:]).logits[0], logits_after(target, tokens))
    monkeypatch.undo()
    (last,) = target.prefill(
        torch.tensor(tokens[:-1]), new_cache(target, 64), requested_states._replace(all_tokens=False)
    ).last
    assert_close(last, plain.last[-1])


def test_what_a_prompt_is_padded_with_leaves_nothing_that_is_not_finite(make_checkpoint):
    model = load_model(make_checkpoint(seed=3))
    with torch.inference_mode():
        model.weights.embedding[0] = float("nan")  # of a token that the text has not
    cache = new_cache(model, 64)
    model.prefill(1 + torch.arange(33) % 8, cache)
    assert all(entries.isfinite().all() for layer in cache.layers for entries in layer)


def test_prompts_of_any_length_share_few_counts_of_rows(target, monkeypatch):
    counts, product = set(), linear.Linear.__call__

    def counted(self, x):
        counts.add(x.shape[0])
        return product(self, x)

    monkeypatch.setattr(linear.Linear, "__call__", counted)
    for length in range(33, 65):
        target.prefill(torch.tensor(random_text(length)), new_cache(target, 80))
    assert counts == set(range(34, 65, 2))


def test_rows_are_padded_by_little_and_where_that_pays():
    for rows in range(1, 5000):
        padded = pad_row_count(rows, 1)
        assert rows <= padded <= rows * (1 + 1 / 16)
        assert pad_row_count(padded, 1) == padded
    assert len({pad_row_count(rows, 1) for rows in range(257, 513)}) == 16
    assert pad_row_count(257, 7_000_000) == 272
    assert pad_row_count(257, 7_000_000_000) == 257


def test_parameters_are_counted_once(folder):
    from transformers import LlamaForCausalLM

    assert load_model(folder).parameters == LlamaForCausalLM.from_pretrained(folder).num_parameters()


def test_one_model_serves_several_caches(target):
    texts = [random_text(8, seed=seed) for seed in range(3)]
    caches = [new_cache(target, 8) for _ in texts]
    for text, cache in zip(texts, caches, strict=True):
        target.prefill(torch.tensor(text[:-1]), cache)
    for text, cache in zip(texts, caches, strict=True):
        assert_close(feed_tokens(target, cache, text[-1:]).logits[0], logits_after(target, text))


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("all_tokens", [True, False])
def test_a_prompt_read_in_chunks_is_one_that_is_read_at_once(target, monkeypatch, window, all_tokens):
    layers = frozenset() if window is None else frozenset({0})
    monkeypatch.setattr(target, "config", replace(target.config, sliding_window=window, sliding_layers=layers))
    tokens, requested_states = random_text(71), RequestedStates(layer_ids=(1,), last=True, all_tokens=all_tokens)
    caches = target.new_caches(80, 4)
    at_once = target.prefill(torch.tensor(tokens[:-1]), caches[0], requested_states)
    target.prefill(torch.tensor(tokens[:-1]), caches[1])
    monkeypatch.setattr(model_module, "PREFILL_TOKENS", 16)
    monkeypatch.setattr(attention, "BLOCK_ROWS", 7)
    in_chunks = target.prefill(torch.tensor(tokens[:-1]), caches[2], requested_states)
    target.prefill(torch.tensor(tokens[:-1]), caches[3])
    assert len(in_chunks.last) == (70 if all_tokens else 1)
    assert_close(in_chunks.last, at_once.last)
    assert_close(in_chunks.layers[0], at_once.layers[0])
    for cache in caches:
        assert cache.length == 70
        for found, expected in zip(cache.layers, caches[0].layers, strict=True):
            for entries, others in zip(found, expected, strict=True):
                assert_close(entries[:, :, :70], others[:, :, :70])
    expected, *others = (feed_tokens(target, cache, tokens[-1:]).logits for cache in caches)
    for logits in others:
        assert_close(logits, expected)
