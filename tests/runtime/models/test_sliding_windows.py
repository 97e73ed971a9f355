"""Layers with sliding attention give the logits of transformers, in every kind of pass beyond the window."""

from dataclasses import replace

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from tests.contracts.drafters import CASES
from tests.contracts.test_batches import check_that_none_changes_another
from tests.support import recorded
from tests.support.hf_models import GROUPED, HEADS, VOCABULARY
from tests.support.passes import feed_tokens, feed_tree, level_of, new_cache
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models import attention
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.model import RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes, hide_before_window
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.trees import TokenTree, chain, level_widths

WINDOW = 8
LAYER_TYPES = ["sliding_attention", "full_attention"]
MODELS = {
    "Mistral": ("Mistral", GROUPED),
    "Qwen2": ("Qwen2", {**GROUPED, "use_sliding_window": True, "max_window_layers": 1}),
    "Qwen3": ("Qwen3", {**HEADS, "use_sliding_window": True, "layer_types": LAYER_TYPES}),
    "Gemma2": ("Gemma2", HEADS),
    "Gemma3": ("Gemma3Text", {**HEADS, "layer_types": LAYER_TYPES}),
    "gpt-oss": ("GptOss", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
BUILT_IN = ("Mistral", "Qwen2", "Qwen3")
RUNS = [*((name, load_model) for name in BUILT_IN), *((name, load_adapter) for name in MODELS if "Qwen" not in name)]
TREE = level_widths([2, 4, 3, 2, 2, 2, 1, 1, 1, 1])
"""Deeper than the window, so that the deepest nodes no longer see the root."""
TREES = (TREE, chain(0), level_widths([3, 3]), chain(2), TREE)
LENGTHS = (24, 9, 3, 30, 16)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # transformers rotates in float32
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of each model."""
    folders = {}
    for name, (kind, sizes) in MODELS.items():
        config = getattr(transformers, f"{kind}Config")(**{**sizes, "sliding_window": WINDOW, "eos_token_id": None})
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = transformers.AutoModelForCausalLM.from_config(config)
        folders[name] = tmp_path_factory.mktemp("models") / name
        model.save_pretrained(folders[name])
    return folders


def load_both(folders, name, load):
    """Return a model, and the function from a sequence to its logits (n, V) in transformers."""
    dtype = torch.float32 if name == "gpt-oss" else torch.float64  # its experts take no float64
    reference = transformers.AutoModelForCausalLM.from_pretrained(folders[name], dtype=dtype).eval()

    @torch.inference_mode()
    def logits_of(tokens):
        return reference(input_ids=tokens[None], use_cache=False).logits[0]

    return load(folders[name], dtype=dtype), logits_of


@pytest.fixture(scope="module", params=RUNS, ids=[f"{name}, {load.__name__}" for name, load in RUNS])
def run(request, folders):
    return load_both(folders, *request.param)


@pytest.fixture
def model(run):
    return run[0]


@pytest.fixture
def logits_of(run):
    return run[1]


def random_tokens(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def feed(model, cache, tokens, tree=TREE):
    return feed_tree(model, cache, tokens, tree).logits


def largest_difference(logits_of, logits, prefix, tokens, tree=TREE):
    """Return the largest difference between the logits of a tree's nodes and those of plain passes over each path."""
    largest = 0.0
    for padded in tree.leaf_paths:
        path = padded[padded >= 0].tolist()
        expected = logits_of(torch.cat([prefix, tokens[path]]))[len(prefix) :]
        largest = max(largest, float((logits[path] - expected).abs().max()))
    return largest


@pytest.mark.parametrize("prefilled", [3, 3 * WINDOW])
def test_single_tokens_beyond_the_window(model, logits_of, prefilled):
    tokens = random_tokens(4 * WINDOW)
    cache = new_cache(model, len(tokens))
    model.prefill(tokens[:prefilled], cache)
    logits = []
    for position in range(prefilled, len(tokens)):
        logits.append(feed_tokens(model, cache, tokens[position : position + 1]).logits[0])
        cache.commit([0])
    torch.testing.assert_close(torch.stack(logits), logits_of(tokens)[prefilled:], **CLOSE)


def test_prefill_in_chunks_shorter_than_the_window(model, logits_of, monkeypatch):
    monkeypatch.setattr("treeopt.runtime.models.model.PREFILL_TOKENS", 5)
    monkeypatch.setattr(attention, "BLOCK_ROWS", 5)
    tokens = random_tokens(4 * WINDOW)
    cache = new_cache(model, len(tokens))
    model.prefill(tokens[:-1], cache, RequestedStates(last=True, all_tokens=True))
    logits = feed_tokens(model, cache, tokens[-1:]).logits
    torch.testing.assert_close(logits[0], logits_of(tokens)[-1], **CLOSE)


@pytest.mark.parametrize("length", [WINDOW - 2, 3 * WINDOW])
def test_tree_before_and_after_a_commit(model, logits_of, length):
    prefix, tokens = random_tokens(length), random_tokens(TREE.nodes, seed=1)
    cache = new_cache(model, 96)
    model.prefill(prefix, cache)
    assert largest_difference(logits_of, feed(model, cache, tokens), prefix, tokens) < 1e-4
    path = TREE.leaf_paths[0][TREE.leaf_paths[0] >= 0].tolist()
    cache.commit(path)
    prefix = torch.cat([prefix, tokens[path]])
    assert largest_difference(logits_of, feed(model, cache, tokens.flip(0)), prefix, tokens.flip(0)) < 1e-4


def test_without_the_window_logits_differ(model, logits_of, monkeypatch):
    """Negative control of the tests above: each compares logits that depend on the window."""
    assert model.config.sliding_window == WINDOW
    monkeypatch.setattr(model, "config", replace(model.config, sliding_window=None))
    prefix, tokens = random_tokens(3 * WINDOW), random_tokens(TREE.nodes, seed=1)
    cache = new_cache(model, 96)
    model.prefill(prefix, cache)
    assert largest_difference(logits_of, feed(model, cache, tokens), prefix, tokens) > 0.01


def test_tree_fed_level_by_level_equals_one_pass(model):
    tokens = random_tokens(TREE.nodes, seed=2)
    cache = new_cache(model, 96)
    model.prefill(random_tokens(2 * WINDOW), cache)
    expected = feed(model, cache, tokens)
    for level in TREE.levels:
        logits = model.forward([SequenceInput(cache, tokens[level], level_of(TREE, level.start, level.stop))]).logits
        torch.testing.assert_close(logits, expected[level], **CLOSE)


@pytest.mark.parametrize(
    ("trees", "max_padding"),
    [(TREES, 0.0), (TREES, 100.0), ((chain(0),) * 5, 100.0)],
    ids=["one by one", "trees in a batch", "single tokens in a batch"],
)
def test_batch_of_unequal_sequences(model, logits_of, monkeypatch, trees, max_padding):
    monkeypatch.setattr(attention, "MOST_PADDING", max_padding)
    monkeypatch.setattr(attention, "CALL_BYTES", 2**40)
    prefixes, inputs = [random_tokens(length, seed=length) for length in LENGTHS], []
    for cache, prefix, tree in zip(model.new_caches(64, 5), prefixes, trees, strict=True):
        model.prefill(prefix, cache)
        inputs.append(SequenceInput(cache, random_tokens(tree.nodes, seed=4), PassNodes.whole(tree)))
    for sequence, prefix, tree, output in zip(inputs, prefixes, trees, model.forward(inputs), strict=True):
        assert largest_difference(logits_of, output.logits, prefix, sequence.tokens, tree) < 1e-4


@pytest.mark.parametrize(("name", "load"), [("Qwen2", load_model), ("Gemma3", load_adapter), ("gpt-oss", load_adapter)])
@pytest.mark.parametrize("length", [5, 3 * WINDOW])
def test_replayed_pass_equals_pass(folders, monkeypatch, name, load, length):
    recorded.replay_on_cpu(monkeypatch)
    model = load(folders[name])
    cache = new_cache(model, 90)
    model.prefill(random_tokens(length), cache)
    replayed = Runner(model, max_nodes=TREE.nodes + 3, pool=GraphPool(CPU))
    for seed in range(3):
        sequence = SequenceInput(cache, random_tokens(TREE.nodes, seed=seed), PassNodes.whole(TREE))
        torch.testing.assert_close(replayed.forward([sequence]).logits, model.forward([sequence]).logits, **CLOSE)
    assert replayed.captured


@pytest.mark.parametrize("name", BUILT_IN)
def test_pass_without_a_cache(folders, name, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_ROWS", 5)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float64)
    tokens = random_tokens(3 * WINDOW)
    logits = load_model(folders[name], dtype=torch.float64).forward_uncached(tokens)
    torch.testing.assert_close(logits, reference(input_ids=tokens[None]).logits[0], **CLOSE)


PROMPT, NEW_TOKENS = [5, 3, 40], 30


@pytest.fixture(scope="module", params=[("Qwen3", load_model), ("Gemma3", load_adapter)], ids=lambda run: run[0])
def target_and_text(request, folders):
    """Return a target of layers with and without a window, and its greedy text in transformers."""
    target, logits_of = load_both(folders, *request.param)
    tokens = list(PROMPT)
    for _ in range(NEW_TOKENS):
        tokens.append(int(logits_of(torch.tensor(tokens))[-1].argmax()))
    return target, tokens[len(PROMPT) :]


@pytest.fixture(scope="module")
def draft(folders):
    """Return a draft model whose layers all have a window."""
    return load_model(folders["Mistral"], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "target_drafts"),
    [("static tree", False), ("static tree", True), ("static chain as graphs", True), ("dynamic tree", False)],
)
def test_greedy_text_equals_plain_decoding(target_and_text, draft, name, target_drafts):
    target, expected = target_and_text
    arguments, options = CASES[name].arguments(target, target if target_drafts else draft)
    decoder = Decoder(target, *arguments, temperature=0.0, **options)
    assert list(decoder.generate(PROMPT, NEW_TOKENS)) == expected


def test_batched_texts_equal_single_ones(target_and_text, draft):
    target, _ = target_and_text
    decoder = Decoder(target, *CASES["static tree"].make(target, draft), temperature=0.9)
    prompts = [[5, 3, 40], [1], [2] * 12, [9, 30] * 10]
    check_that_none_changes_another(decoder, [GenerationRequest(prompt, 16, seed=2) for prompt in prompts], (3,))


def test_mask_of_a_window_depends_on_positions():
    generator = np.random.default_rng(0)
    for _ in range(30):
        length, window = int(generator.integers(0, 12)), int(generator.integers(1, 10))
        tree = TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, 12))])
        mask = PassNodes.whole(tree).mask_after(length, dtype=torch.float32, device=CPU)
        positions = np.concatenate([np.arange(length), length + tree.depth])
        hidden = positions <= (length + tree.depth)[:, None] - window
        expected = mask.masked_fill(torch.tensor(hidden), float("-inf"))
        assert torch.equal(hide_before_window(mask, window), expected)
