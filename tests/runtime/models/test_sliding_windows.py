"""Layers with sliding attention see what those of transformers see, in every kind of pass beyond the window."""

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
from treeopt.runtime.models import attention, runner
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.model import RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes, TreeMask, hide_before_window
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.trees import TokenTree, chain, level_widths

WINDOW = 8
BOTH = ["sliding_attention", "full_attention"]
MODELS = {
    "Mistral": ("Mistral", GROUPED),
    "Qwen2": ("Qwen2", {**GROUPED, "use_sliding_window": True, "max_window_layers": 1}),
    "Qwen3": ("Qwen3", {**HEADS, "use_sliding_window": True, "layer_types": BOTH}),
    "Gemma2": ("Gemma2", HEADS),
    "Gemma3": ("Gemma3Text", {**HEADS, "layer_types": BOTH}),
    "gpt-oss": ("GptOss", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}),
}
BUILT_IN = ("Mistral", "Qwen2", "Qwen3")
RUNS = [*((name, load_model) for name in BUILT_IN), *((name, load_adapter) for name in MODELS)]
TREE = level_widths([2, 4, 3, 2, 2, 2, 1, 1, 1, 1])
"""Deeper than the window, so that the deepest nodes no longer see the root."""
TREES = (TREE, chain(0), level_widths([3, 3]), chain(2), TREE)
LENGTHS = (24, 9, 3, 30, 16)
CLOSE = {"rtol": 1e-4, "atol": 1e-4}  # transformers rotates in float32
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of each model."""
    found = {}
    for name, (kind, sizes) in MODELS.items():
        config = getattr(transformers, f"{kind}Config")(**{**sizes, "sliding_window": WINDOW, "eos_token_id": None})
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = transformers.AutoModelForCausalLM.from_config(config)
        found[name] = tmp_path_factory.mktemp("models") / name
        model.save_pretrained(found[name])
    return found


@pytest.fixture(scope="module", params=RUNS, ids=[f"{name}, {load.__name__}" for name, load in RUNS])
def run(request, folders):
    """Return a model and the function from a text to its logits (n, V) in transformers."""
    name, load = request.param
    dtype = torch.float32 if name == "gpt-oss" else torch.float64  # its experts take no float64
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folders[name], dtype=dtype).eval()

    @torch.inference_mode()
    def logits_of(text):
        return theirs(input_ids=text[None], use_cache=False).logits[0]

    return load(folders[name], dtype=dtype), logits_of


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


def difference(logits_of, logits, text, tokens, tree=TREE):
    """Return how far the logits of a tree's nodes are from those of plain passes over each path, at most."""
    most = 0.0
    for padded in tree.leaf_paths:
        path = padded[padded >= 0].tolist()
        expected = logits_of(torch.cat([text, tokens[path]]))[len(text) :]
        most = max(most, float((logits[path] - expected).abs().max()))
    return most


def test_a_text_goes_on_token_by_token_beyond_the_window(model, logits_of):
    text = random_tokens(4 * WINDOW)
    for prefilled in (3, WINDOW, 3 * WINDOW):
        cache = new_cache(model, len(text))
        model.prefill(text[:prefilled], cache)
        logits = []
        for place in range(prefilled, len(text)):
            logits.append(feed_tokens(model, cache, text[place : place + 1]).logits[0])
            cache.commit([0])
        torch.testing.assert_close(torch.stack(logits), logits_of(text)[prefilled:], **CLOSE)


@pytest.mark.parametrize("chunk", [5, WINDOW])
def test_a_text_is_prefilled_in_parts(model, logits_of, monkeypatch, chunk):
    monkeypatch.setattr("treeopt.runtime.models.model.PREFILL_TOKENS", chunk)
    monkeypatch.setattr(attention, "BLOCK_ROWS", chunk)
    text = random_tokens(4 * WINDOW)
    cache = new_cache(model, len(text))
    model.prefill(text[:-1], cache, RequestedStates(last=True, all_tokens=True))
    logits = feed_tokens(model, cache, text[-1:]).logits
    torch.testing.assert_close(logits[0], logits_of(text)[-1], **CLOSE)


@pytest.mark.parametrize("length", [0, WINDOW - 2, 3 * WINDOW])
def test_each_path_of_a_tree_is_a_text_of_its_own_before_and_after_a_path_is_kept(model, logits_of, length):
    text, tokens = random_tokens(length), random_tokens(TREE.nodes, seed=1)
    cache = new_cache(model, 96)
    model.prefill(text, cache)
    assert difference(logits_of, feed(model, cache, tokens), text, tokens) < 1e-4
    path = TREE.leaf_paths[0][TREE.leaf_paths[0] >= 0].tolist()
    cache.commit(path)
    text = torch.cat([text, tokens[path]])
    assert difference(logits_of, feed(model, cache, tokens.flip(0)), text, tokens.flip(0)) < 1e-4


def test_a_model_without_its_window_gives_other_logits(model, logits_of, monkeypatch):
    """The tests above would fail: each of them compares logits that depend on the window."""
    monkeypatch.setattr(model, "config", replace(model.config, sliding_window=None))
    text, tokens = random_tokens(3 * WINDOW), random_tokens(TREE.nodes, seed=1)
    cache = new_cache(model, 96)
    model.prefill(text, cache)
    assert difference(logits_of, feed(model, cache, tokens), text, tokens) > 0.01


def test_a_tree_fed_level_by_level_equals_one_pass(model):
    tokens, length = random_tokens(TREE.nodes, seed=2), 2 * WINDOW
    cache = new_cache(model, 96)
    model.prefill(random_tokens(length), cache)
    expected = feed(model, cache, tokens)
    for level in TREE.levels:
        logits = model.forward([SequenceInput(cache, tokens[level], level_of(TREE, level.start, level.stop))]).logits
        torch.testing.assert_close(logits, expected[level], **CLOSE)


@pytest.mark.parametrize("trees", [TREES, (chain(0),) * 5], ids=["trees", "single tokens"])
@pytest.mark.parametrize("most_padding", [0.0, 100.0])
def test_texts_of_unlike_lengths_in_one_pass(model, logits_of, monkeypatch, trees, most_padding):
    monkeypatch.setattr(attention, "MOST_PADDING", most_padding)
    monkeypatch.setattr(attention, "CALL_BYTES", 2**40)
    caches, texts = model.new_caches(64, 5), [random_tokens(length, seed=length) for length in LENGTHS]
    inputs = []
    for cache, text, tree in zip(caches, texts, trees, strict=True):
        model.prefill(text, cache)
        inputs.append(SequenceInput(cache, random_tokens(tree.nodes, seed=4), PassNodes.whole(tree)))
    for sequence, text, tree, output in zip(inputs, texts, trees, model.forward(inputs), strict=True):
        assert difference(logits_of, output.logits, text, sequence.tokens, tree) < 1e-4


@pytest.mark.parametrize("length", [5, 3 * WINDOW])
def test_a_pass_that_is_replayed_equals_a_pass(folders, monkeypatch, length):
    monkeypatch.setattr(runner, "SHORTEST_KV_LENGTH", 16)
    monkeypatch.setattr(GraphPool, "capture", recorded.capture)
    model = load_model(folders["Qwen2"], dtype=torch.float64)
    cache = new_cache(model, 90)
    model.prefill(random_tokens(length), cache)
    replayed = Runner(model, max_nodes=TREE.nodes + 3, pool=GraphPool(CPU))
    for seed in range(4):
        sequence = SequenceInput(cache, random_tokens(TREE.nodes, seed=seed), PassNodes.whole(TREE))
        torch.testing.assert_close(replayed.forward([sequence]).logits, model.forward([sequence]).logits, **CLOSE)
    assert replayed.captured


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_text_that_is_kept_in_no_cache(folders, name, monkeypatch):
    """What a draft model learns from."""
    monkeypatch.setattr(attention, "BLOCK_ROWS", 5)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float64)
    text = random_tokens(3 * WINDOW)
    found = load_model(folders[name], dtype=torch.float64).forward_uncached(text)
    torch.testing.assert_close(found, theirs(input_ids=text[None]).logits[0], **CLOSE)


PROMPT, COUNT = (5, 3, 40), 40


@pytest.fixture(scope="module")
def greedy_text(run):
    text = list(PROMPT)
    for _ in range(COUNT):
        text.append(int(run[1](torch.tensor(text))[-1].argmax()))
    return text[len(PROMPT) :]


class TestDecoding:
    DRAFTERS = ("static tree", "static chain as graphs", "dynamic tree", "best first", "lookahead", "prompt lookup")

    @pytest.fixture
    def draft(self, folders):
        """Return a draft model with a window of its own, which is not always right."""
        return load_model(folders["Mistral"], dtype=torch.float64)

    @pytest.mark.parametrize("name", DRAFTERS)
    @pytest.mark.parametrize("draft_is_target", [True, False])
    def test_greedy_texts_are_those_of_plain_decoding(self, model, draft, greedy_text, name, draft_is_target):
        arguments, options = CASES[name].arguments(model, model if draft_is_target else draft)
        decoder = Decoder(model, *arguments, temperature=0.0, **options)
        assert list(decoder.generate(list(PROMPT), COUNT)) == greedy_text

    @pytest.mark.parametrize("name", ["plain", "static tree", "dynamic tree"])
    def test_texts_of_a_batch_are_those_decoded_alone(self, model, draft, name):
        decoder = Decoder(model, *CASES[name].make(model, draft), temperature=0.9)
        prompts = [[5, 3, 40], [1], [2] * 12, [9, 30] * 10]
        wanted = [GenerationRequest(prompt, 16, seed=2) for prompt in prompts]
        check_that_none_changes_another(decoder, wanted, (3,))

    def test_texts_end_at_the_trained_length(self, model):
        assert model.config.max_positions == 96
        assert model.config.sliding_window == WINDOW


def test_a_mask_within_a_window_goes_by_positions():
    generator = np.random.default_rng(0)
    for _ in range(30):
        length, window = generator.integers(0, 12), generator.integers(1, 10)
        tree = TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, 12))])
        whole = TreeMask(torch.tensor(tree.ancestor_mask), length, dtype=torch.float32, device=CPU).after(length)
        positions = np.concatenate([np.arange(length), length + tree.depth])
        hidden = positions <= (length + tree.depth)[:, None] - window
        expected = whole.masked_fill(torch.tensor(hidden), float("-inf"))
        assert torch.equal(hide_before_window(whole, window), expected)
