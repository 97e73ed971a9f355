"""Checkpoints of every architecture give the logits of transformers, for sequences, trees, commits and batches."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.passes import feed_tokens, feed_tree, new_cache
from treeopt.errors import FormatError
from treeopt.runtime import load_model
from treeopt.runtime.models.config import parse_config
from treeopt.runtime.models.model import RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.trees import level_widths

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)

VOCABULARY = 29
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,  # not hidden / heads
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 300.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,  # some of six frequencies are kept, some divided, some in between
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 2.0,  # some of six frequencies are kept, some divided, some in between
    "beta_slow": 0.3,
}
LARGE = {
    "hidden_size": 256,
    "intermediate_size": 448,
    "head_dim": 96,
    "num_hidden_layers": 1,
    "initializer_range": 0.08,
}

CHECKPOINTS = {
    "Llama": ("Llama", {}),
    "Llama, as many keys as queries": ("Llama", {"num_key_value_heads": 4}),
    "Llama, one key for all queries": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "Llama, stored as bfloat16": ("Llama", {"stored_dtype": torch.bfloat16}),
    "Llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "Llama, linear rope": ("Llama", {"rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "Llama, yarn rope": ("Llama", {"rope_parameters": YARN}),
    "Llama, exported yarn rope": ("Llama", {"rope_parameters": {**YARN, "beta_fast": None, "beta_slow": None}}),
    "Llama, all biases, large": ("Llama", {"attention_bias": True, "mlp_bias": True, **LARGE}),
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Qwen2": ("Qwen2", {}),
    "Qwen2, tied": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "Qwen2, yarn rope, attention factor": (
        "Qwen2",
        {"rope_parameters": {**YARN, "attention_factor": 1.3, "rope_theta": 10_000.0}},
    ),
    "Qwen3": ("Qwen3", {}),
    "Qwen3, tied, biases": ("Qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "Qwen3, large epsilon": ("Qwen3", {"rms_norm_eps": 0.1}),
    "Qwen3, linear rope, large": ("Qwen3", {"rope_parameters": LINEAR, **LARGE}),
    "Qwen3, yarn rope, untruncated": (
        "Qwen3",
        {"rope_parameters": {**YARN, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.5}},
    ),
}
LAST = RequestedStates(last=True)
TREE = level_widths([3, 4, 3])


def save_checkpoint(folder, name, *, seed=1, stored_dtype=torch.float32, **changes):
    """Save a random checkpoint, with random norms and biases, and return its folder."""
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.5 * torch.randn_like(parameter)
    model.to(stored_dtype).save_pretrained(folder)
    return folder


def reference(folder):
    """Return the function from a sequence to the logits (n, V) that transformers computes."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(tokens):
        return model(torch.tensor([tokens])).logits[0]

    return logits


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def random_tokens(length, seed=0):
    return np.random.default_rng(seed).integers(VOCABULARY, size=length).tolist()


def second_half_logits(model, tokens):
    """Return the logits after the second half of a sequence, fed in one pass after a prefill of the first."""
    cache, half = new_cache(model, len(tokens)), len(tokens) // 2
    model.prefill(torch.tensor(tokens[:half]), cache)
    return feed_tokens(model, cache, tokens[half:]).logits


def largest_difference(folder, expected, tokens):
    """Return the largest difference between a checkpoint's logits and those expected."""
    return (second_half_logits(load_model(folder), tokens) - expected[len(tokens) // 2 :]).abs().max()


@pytest.fixture(scope="module", params=CHECKPOINTS)
def loaded(request, tmp_path_factory):
    """Return a model, its reference, and the reference's number of parameters."""
    name, changes = CHECKPOINTS[request.param]
    folder = save_checkpoint(tmp_path_factory.mktemp("model"), name, **changes)
    count = transformers.AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    return load_model(folder), reference(folder), count


def test_prompt_and_one_token(loaded):
    model, logits_of, parameters = loaded
    tokens = random_tokens(40)
    cache = new_cache(model, 40)
    last = model.prefill(torch.tensor(tokens[:-1]), cache, LAST).last
    expected = logits_of(tokens)
    assert last.shape == (1, model.config.hidden)
    assert_close(model.logits(last)[0], expected[-2])
    assert_close(feed_tokens(model, cache, tokens[-1:]).logits[0], expected[-1])
    assert model.parameters == parameters


def test_tree_and_commit(loaded):
    model, logits_of, _ = loaded
    prefix, tokens = random_tokens(20, seed=1), random_tokens(TREE.nodes, seed=2)
    cache = new_cache(model, len(prefix) + TREE.nodes)
    model.prefill(torch.tensor(prefix), cache)
    logits = feed_tree(model, cache, torch.tensor(tokens), TREE).logits
    for padded in TREE.leaf_paths:
        path = padded[padded >= 0].tolist()
        assert_close(logits[path], logits_of([*prefix, *(tokens[node] for node in path)])[len(prefix) :])
    last = next(path for path in TREE.leaf_paths.tolist() if path != sorted(range(len(path))) and min(path) >= 0)
    cache.commit(last)
    prefix += [tokens[node] for node in last] + [5]
    assert_close(feed_tokens(model, cache, [5]).logits[0], logits_of(prefix)[-1])


@pytest.mark.parametrize("loaded", ["Llama, all biases, large", "Qwen3, tied, biases"], indirect=True)
def test_batched_and_replayed_passes_equal_single_ones(loaded):
    model, *_ = loaded
    runner = Runner(model, max_nodes=TREE.nodes, pool=GraphPool(torch.device("cpu")))
    prompts = [torch.tensor(random_tokens(length, seed=length)) for length in (17, 5, 11)]
    trees = [torch.tensor(random_tokens(TREE.nodes, seed)) for seed in range(3)]
    caches = model.new_caches(17 + TREE.nodes, 3)
    single = [new_cache(model, 17 + TREE.nodes) for _ in prompts]
    for prompt, *both in zip(prompts, caches, single, strict=True):
        last, expected = (model.prefill(prompt, cache, LAST).last for cache in both)
        assert_close(last, expected)
    inputs = [SequenceInput(cache, tokens, PassNodes.whole(TREE)) for cache, tokens in zip(caches, trees, strict=True)]
    outputs = model.forward(inputs)
    for output, cache, tokens in zip(outputs, single, trees, strict=True):
        assert_close(output.logits, feed_tree(model, cache, tokens, TREE).logits)
    for _ in range(2):
        assert_close(runner.forward(inputs).logits, outputs.logits)
    assert runner.captured
    for cache in (*caches, *single):
        cache.commit([0, 2, 5])
    after = model.forward([SequenceInput.causal(cache, torch.tensor([3 + row])) for row, cache in enumerate(caches)])
    for row, (output, cache) in enumerate(zip(after, single, strict=True)):
        assert_close(output.logits, feed_tokens(model, cache, [3 + row]).logits)


@pytest.mark.parametrize(
    ("name", "dtype", "changes"),
    [
        ("Llama", torch.bfloat16, {"attention_bias": True, "mlp_bias": True}),
        ("Mistral", torch.float16, {}),
        ("Qwen2", torch.bfloat16, {}),
        ("Qwen3", torch.float16, {"attention_bias": True}),
    ],
)
def test_half_precision(tmp_path, name, dtype, changes):
    folder, tokens = save_checkpoint(tmp_path, name, **{**LARGE, **changes}), random_tokens(24)
    model, exact = load_model(folder, dtype=dtype), reference(folder)(tokens)[12:]
    logits = second_half_logits(model, tokens)
    assert logits.dtype == model.dtype == new_cache(model, 1).layers[0][0].dtype == dtype
    assert (logits.float() - exact).norm() < 0.05 * exact.norm()


class TestConfig:
    TOKENS = random_tokens(40, seed=4)

    @pytest.mark.parametrize(
        ("name", "settings", "changes"),
        [
            ("Llama", {"attention_bias": True}, {"attention_bias": False}),
            ("Llama", {"mlp_bias": True}, {"mlp_bias": False}),
            ("Llama", {"rope_parameters": LLAMA3}, {"rope_parameters": {"rope_theta": 300.0}}),
            ("Mistral", {"rope_parameters": LINEAR}, {"rope_parameters": {"rope_theta": 500.0}}),
            ("Qwen2", {}, {"architectures": ["LlamaForCausalLM"]}),
            ("Qwen3", {"attention_bias": True}, {"attention_bias": False}),
            ("Qwen3", {}, {"architectures": ["LlamaForCausalLM"]}),
        ],
    )
    def test_each_part_changes_the_logits(self, tmp_path, name, settings, changes):
        """Negative control of the comparisons above."""
        folder = save_checkpoint(tmp_path, name, **settings)
        expected = reference(folder)(self.TOKENS)
        change_config(folder, **changes)
        assert largest_difference(folder, expected, self.TOKENS) > 0.05

    def test_mimo_is_qwen2(self, tmp_path):
        folder = save_checkpoint(tmp_path, "Qwen2")
        expected = reference(folder)(self.TOKENS)
        change_config(folder, architectures=["MiMoForCausalLM"], model_type="mimo", num_nextn_predict_layers=1)
        assert largest_difference(folder, expected, self.TOKENS) < 1e-4

    def test_missing_bias_is_named(self, tmp_path):
        folder = save_checkpoint(tmp_path, "Llama")
        for field, weight in (("mlp_bias", "mlp.gate_proj.bias"), ("attention_bias", "self_attn.q_proj.bias")):
            change_config(folder, **{field: True})
            with pytest.raises(FormatError, match=rf"model.layers.0.{weight}: this tensor is missing"):
                load_model(folder)

    @pytest.mark.parametrize("name", ["Mistral", "Qwen2"])
    def test_biases_that_the_architecture_lacks_are_ignored(self, tmp_path, name):
        folder = save_checkpoint(tmp_path, name)
        expected = reference(folder)(self.TOKENS)
        change_config(folder, attention_bias=True, mlp_bias=True)
        assert largest_difference(folder, expected, self.TOKENS) < 1e-4

    def test_stored_head_of_a_tied_model_is_ignored(self, tmp_path):
        folder = save_checkpoint(tmp_path, "Llama", tie_word_embeddings=True)
        path, expected = folder / "model.safetensors", reference(folder)(self.TOKENS)
        tensors = load_file(path)
        assert "lm_head.weight" not in tensors
        save_file(tensors | {"lm_head.weight": torch.ones_like(tensors["model.embed_tokens.weight"])}, path)
        assert largest_difference(folder, expected, self.TOKENS) < 1e-4


class TestRotaryScaling:
    @pytest.mark.parametrize(("name", "rope", "key"), [("Llama", LLAMA3, "rope_type"), ("Qwen2", LINEAR, "type")])
    def test_older_spelling(self, tmp_path, name, rope, key):
        folder, tokens = save_checkpoint(tmp_path, name, rope_parameters=rope), random_tokens(40)
        expected, path = reference(folder)(tokens), folder / "config.json"
        content = json.loads(path.read_text())
        del content["rope_parameters"]
        scaling = {field: value for field, value in rope.items() if field not in ("rope_theta", "rope_type")}
        scaling[key] = rope["rope_type"]
        path.write_text(json.dumps(content | {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}))
        assert largest_difference(folder, expected, tokens) < 1e-4

    def test_frequencies_of_llama_3_1(self):
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rope = LLAMA3 | {"rope_theta": 500_000.0, "factor": 8.0, "original_max_position_embeddings": 8192}
        config = transformers.LlamaConfig(head_dim=128, max_position_embeddings=131_072, rope_parameters=rope)
        expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        ours = parse_config("config.json", config.to_dict() | {"architectures": ["LlamaForCausalLM"]})
        plain = ours.rope_base ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
        scaled = ours.rope_scaling.scale(plain)
        torch.testing.assert_close(scaled.float(), expected, rtol=1e-5, atol=0)
        assert 0 < (scaled == plain).sum() < (scaled > plain / 7.9).sum() < 64

    def test_rotations_are_computed_for_the_largest_cache(self, tmp_path):
        model = load_model(save_checkpoint(tmp_path, "Llama", max_position_embeddings=2**40))
        small = new_cache(model, 8)
        before = small.rotations.clone()
        large = new_cache(model, 300)
        assert (len(small.rotations), len(large.rotations)) == (8, 300)
        assert torch.equal(small.rotations, before)
        assert new_cache(model, 100).rotations.data_ptr() == large.rotations.data_ptr()


SLIDING = {"use_sliding_window": True, "sliding_window": 7}


class TestSlidingWindow:
    @pytest.mark.parametrize(
        ("name", "changes", "window", "layers"),
        [
            ("Mistral", {"sliding_window": None}, None, ()),
            ("Mistral", {"sliding_window": 7, "layer_types": ["full_attention"] * 2}, 7, (0, 1)),
            ("Llama", SLIDING, None, ()),
            ("Qwen2", {**SLIDING, "use_sliding_window": False}, None, ()),
            ("Qwen2", {**SLIDING, "sliding_window": None}, None, ()),
            ("Qwen2", {**SLIDING, "max_window_layers": 2}, None, ()),
            ("Qwen2", {**SLIDING, "max_window_layers": 1}, 7, (1,)),
            ("Qwen3", {**SLIDING, "layer_types": ["full_attention"] * 2}, None, ()),
            ("Qwen3", {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}, 7, (0,)),
        ],
    )
    def test_layers_that_slide(self, name, changes, window, layers):
        content = SIZES | {"architectures": [f"{name}ForCausalLM"], "rms_norm_eps": 1e-6} | changes
        config = parse_config("config.json", content)
        assert (config.sliding_window, config.sliding_layers) == (window, set(layers))

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"layer_types": ["sliding_attention"] * 2}, "layer_types: expected no sliding attention"),
            ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types: expected a list of 2 full_att"),
            ({"layer_types": ["full_attention"]}, "layer_types: expected a list of 2"),
            ({"layer_types": "full_attention"}, "layer_types: expected a list"),
            ({**SLIDING, "max_window_layers": 1, "sliding_window": 0}, "sliding_window: .* at least 1"),
            ({**SLIDING, "max_window_layers": "1"}, "max_window_layers: .*whole number"),
        ],
    )
    def test_wrong_fields_are_refused(self, changes, reason):
        content = SIZES | {"architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6} | changes
        with pytest.raises(FormatError, match=reason):
            parse_config("config.json", content)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_missing_fields_have_the_defaults_of_transformers(name):
    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 40, "vocab_size": 8}
    content = {"intermediate_size": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "use_sliding_window": True}
    expected = getattr(transformers, f"{name}Config")(**sizes, **content)
    config = parse_config("config.json", sizes | content | {"architectures": [f"{name}ForCausalLM"]})
    assert config.key_value_heads == expected.num_key_value_heads
    assert config.head_size == (getattr(expected, "head_dim", None) or 64)
    assert config.tied_head == expected.tie_word_embeddings
    assert config.sliding_window == (None if name == "Llama" else expected.sliding_window)
    assert config.rope_base == expected.rope_parameters["rope_theta"]
