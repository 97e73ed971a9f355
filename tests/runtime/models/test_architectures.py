"""Checkpoints of every architecture give the logits of transformers, for texts, trees, compacted caches and batches."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from tests.support.passes import feed_tokens, feed_tree, new_cache
from treeopt.errors import FormatError
from treeopt.runtime import load_model
from treeopt.runtime.models.config import LAYER_KINDS, parse_config, why_not_built_in
from treeopt.runtime.models.folder import ModelFolder
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
    "original_max_position_embeddings": 32,  # so that of six frequencies some are kept, some divided, some in between
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 2.0,  # so that of six frequencies some are kept, some divided, some in between
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
    "Llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "Llama, linear rope": ("Llama", {"rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "Llama, yarn rope": ("Llama", {"rope_parameters": YARN}),
    "Llama, yarn rope as it is exported": (
        "Llama",
        {"rope_parameters": {**YARN, "beta_fast": None, "beta_slow": None}},
    ),
    "Qwen3, yarn rope, untruncated": (
        "Qwen3",
        {"rope_parameters": {**YARN, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.5}},
    ),
    "Qwen2, yarn rope, own factor": (
        "Qwen2",
        {"rope_parameters": {**YARN, "attention_factor": 1.3, "rope_theta": 10_000.0}},
    ),
    "Llama, all biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Llama, all biases, large": ("Llama", {"attention_bias": True, "mlp_bias": True, **LARGE}),
    "Mistral": ("Mistral", {"sliding_window": None}),
    "Mistral, tied": ("Mistral", {"sliding_window": None, "tie_word_embeddings": True}),
    "Mistral, a window": ("Mistral", {"sliding_window": 48}),
    "Qwen2": ("Qwen2", {}),
    "Qwen2, tied": ("Qwen2", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "Qwen2, large": ("Qwen2", LARGE),
    "Qwen2, a window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 1}),
    "Qwen3": ("Qwen3", {}),
    "Qwen3, tied, biases": ("Qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "Qwen3, an epsilon that shows": ("Qwen3", {"rms_norm_eps": 0.1}),
    "Qwen3, linear rope, large": ("Qwen3", {"rope_parameters": LINEAR, **LARGE}),
}
LAST = RequestedStates(last=True)
TREE = level_widths([3, 4, 3])


def make(folder, name, *, seed=1, **changes):
    """Save a random checkpoint, norms and biases random too, and return its folder."""
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.data += 0.5 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def reference(folder):
    """Return the function from a text to the logits (n, V) that transformers computes."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def logits(tokens):
        return model(torch.tensor([tokens])).logits[0]

    return logits


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def random_text(length, seed=0):
    return np.random.default_rng(seed).integers(VOCABULARY, size=length).tolist()


def reference_logits(model, tokens):
    """Return the logits (n, V) of a text of which half is prefilled, and the rest fed at once after it."""
    cache, half = new_cache(model, len(tokens)), len(tokens) // 2
    model.prefill(torch.tensor(tokens[:half]), cache)
    return feed_tokens(model, cache, tokens[half:]).logits


def distance(folder, expected, tokens):
    """Return how far the logits of a text are from those expected, at most."""
    return (reference_logits(load_model(folder), tokens) - expected[len(tokens) // 2 :]).abs().max()


@pytest.fixture(scope="module", params=CHECKPOINTS.values(), ids=CHECKPOINTS.keys())
def loaded(request, tmp_path_factory):
    """Return a model and its reference."""
    name, changes = request.param
    folder = make(tmp_path_factory.mktemp("model"), name, **changes)
    return load_model(folder), reference(folder)


def test_a_prompt_and_one_token(loaded):
    model, logits_of = loaded
    text = random_text(40)
    cache = new_cache(model, 40)
    last = model.prefill(torch.tensor(text[:-1]), cache, LAST).last
    expected = logits_of(text)
    assert last.shape == (1, model.config.hidden)
    assert_close(model.logits(last)[0], expected[-2])
    assert_close(feed_tokens(model, cache, text[-1:]).logits[0], expected[-1])


def test_a_tree_and_what_is_kept_of_it(loaded):
    model, logits_of = loaded
    text, tokens = random_text(20, seed=1), random_text(TREE.nodes, seed=2)
    cache = new_cache(model, len(text) + TREE.nodes)
    model.prefill(torch.tensor(text), cache)
    logits = feed_tree(model, cache, torch.tensor(tokens), TREE).logits
    for padded in TREE.leaf_paths:
        path = padded[padded >= 0].tolist()
        assert_close(logits[path], logits_of([*text, *(tokens[node] for node in path)])[len(text) :])
    last = next(path for path in TREE.leaf_paths.tolist() if path != sorted(range(len(path))) and min(path) >= 0)
    cache.commit(last)
    text += [tokens[node] for node in last] + [5]
    assert_close(feed_tokens(model, cache, [5]).logits[0], logits_of(text)[-1])


def test_a_batch_is_its_texts_one_by_one(loaded):
    model, _ = loaded
    texts = [torch.tensor(random_text(n, seed=n)) for n in (17, 5, 11)]
    trees = [torch.tensor(random_text(TREE.nodes, seed)) for seed in range(3)]
    caches = model.new_caches(17 + TREE.nodes, 3)
    alone = [new_cache(model, 17 + TREE.nodes) for _ in texts]
    for text, *both in zip(texts, caches, alone, strict=True):
        last, expected = (model.prefill(text, cache, LAST).last for cache in both)
        assert_close(last, expected)
    outputs = model.forward(
        [SequenceInput(cache, tokens, PassNodes.whole(TREE)) for cache, tokens in zip(caches, trees, strict=True)]
    )
    for output, cache, tokens in zip(outputs, alone, trees, strict=True):
        assert_close(output.logits, feed_tree(model, cache, tokens, TREE).logits)
    for cache in (*caches, *alone):
        cache.commit([0, 2, 5])
    after = model.forward([SequenceInput.causal(cache, torch.tensor([3 + row])) for row, cache in enumerate(caches)])
    for row, (output, cache) in enumerate(zip(after, alone, strict=True)):
        assert_close(output.logits, feed_tokens(model, cache, [3 + row]).logits)


def test_a_pass_of_a_batch_that_is_replayed(loaded):
    model, _ = loaded
    runner = Runner(model, max_nodes=TREE.nodes, pool=GraphPool(torch.device("cpu")))
    caches = model.new_caches(40, 2)
    for row, cache in enumerate(caches):
        model.prefill(torch.tensor(random_text(9 + row, row)), cache)
    for seed in range(3):
        tokens = torch.tensor(random_text(TREE.nodes, seed))
        inputs = [SequenceInput(cache, tokens, PassNodes.whole(TREE)) for cache in caches]
        assert_close(runner.forward(inputs).logits, model.forward(inputs).logits)
    assert runner.captured


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_half_precision_is_near(tmp_path, name, dtype):
    biases = {"Llama": {"attention_bias": True, "mlp_bias": True}, "Qwen3": {"attention_bias": True}}
    folder, text = make(tmp_path, name, **{**LARGE, **biases.get(name, {})}), random_text(24)
    logits, exact = reference_logits(load_model(folder, dtype=dtype), text), reference(folder)(text)[12:]
    assert logits.dtype == dtype
    assert (logits.float() - exact).norm() < 0.05 * exact.norm()


def test_parameters_are_counted_once(tmp_path):
    for number, (name, changes) in enumerate(CHECKPOINTS.values()):
        folder = make(tmp_path / str(number), name, **changes)
        count = transformers.AutoModelForCausalLM.from_pretrained(folder).num_parameters()
        assert load_model(folder).parameters == count


class TestWhatMatters:
    """Without a part of the model, logits are others: each part is really compared above."""

    TEXT = random_text(40, seed=4)

    @pytest.mark.parametrize(
        ("name", "settings", "changes"),
        [
            ("Llama", {"attention_bias": True}, {"attention_bias": False}),
            ("Llama", {"mlp_bias": True}, {"mlp_bias": False}),
            ("Llama", {"rope_parameters": LLAMA3}, {"rope_parameters": {"rope_theta": 300.0}}),
            ("Llama", {"rope_parameters": LLAMA3}, {"rope_parameters": LLAMA3 | {"low_freq_factor": 2.0}}),
            ("Llama", {"rope_parameters": LLAMA3}, {"rope_parameters": LLAMA3 | {"high_freq_factor": 8.0}}),
            ("Mistral", {"rope_parameters": LINEAR}, {"rope_parameters": {"rope_theta": 500.0}}),
            ("Qwen2", {}, {"architectures": ["LlamaForCausalLM"]}),
            ("Qwen3", {"attention_bias": True}, {"attention_bias": False}),
            ("Qwen3", {}, {"architectures": ["LlamaForCausalLM"]}),
        ],
    )
    def test_logits_differ_without(self, tmp_path, name, settings, changes):
        folder = make(tmp_path, name, **settings)
        expected = reference(folder)(self.TEXT)
        assert distance(folder, expected, self.TEXT) < 1e-4
        change_config(folder, **changes)
        assert distance(folder, expected, self.TEXT) > 0.05

    def test_mimo_is_qwen2(self, tmp_path):
        folder = make(tmp_path, "Qwen2")
        expected = reference(folder)(self.TEXT)
        change_config(folder, architectures=["MiMoForCausalLM"], model_type="mimo", num_nextn_predict_layers=1)
        assert distance(folder, expected, self.TEXT) < 1e-4

    def test_a_bias_that_is_missing_is_named(self, tmp_path):
        folder = make(tmp_path, "Llama")
        for field, weight in (("mlp_bias", "mlp.gate_proj.bias"), ("attention_bias", "self_attn.q_proj.bias")):
            change_config(folder, **{field: True})
            with pytest.raises(FormatError, match=rf"model.layers.0.{weight}: this tensor is missing"):
                load_model(folder)

    def test_biases_that_the_architecture_does_not_know_are_ignored(self, tmp_path):
        for name in ("Mistral", "Qwen2"):
            folder = make(tmp_path / name, name)
            expected = reference(folder)(self.TEXT)
            change_config(folder, attention_bias=True, mlp_bias=True)
            assert distance(folder, expected, self.TEXT) < 1e-4


class TestRotaryScaling:
    def test_older_spelling(self, tmp_path):
        folder = make(tmp_path, "Llama", rope_parameters=LLAMA3)
        path, text = folder / "config.json", random_text(40)
        content = json.loads(path.read_text())
        del content["rope_parameters"]
        scaling = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
        path.write_text(json.dumps(content | {"rope_theta": 300.0, "rope_scaling": scaling}))
        assert distance(folder, reference(folder)(text), text) < 1e-4

    def test_older_spelling_of_linear(self, tmp_path):
        folder = make(tmp_path, "Qwen2", rope_parameters=LINEAR)
        path, text = folder / "config.json", random_text(40)
        content = json.loads(path.read_text())
        expected = reference(folder)(text)
        del content["rope_parameters"]
        path.write_text(json.dumps(content | {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 3.0}}))
        assert distance(folder, expected, text) < 1e-4

    def test_frequencies_of_llama_3_1(self):
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        rope = LLAMA3 | {"rope_theta": 500_000.0, "factor": 8.0, "original_max_position_embeddings": 8192}
        config = transformers.LlamaConfig(head_dim=128, max_position_embeddings=131_072, rope_parameters=rope)
        expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
        ours = parse_config("config.json", config.to_dict() | {"architectures": ["LlamaForCausalLM"]})
        plain = ours.rope_base ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
        found = ours.rope_scaling.scale(plain)
        torch.testing.assert_close(found.float(), expected, rtol=1e-5, atol=0)
        assert 0 < (found == plain).sum() < (found > plain / 7.9).sum() < 64

    def test_rotations_are_computed_as_far_as_caches_need_them(self, tmp_path):
        model = load_model(make(tmp_path, "Llama", max_position_embeddings=2**40))
        small = new_cache(model, 8)
        before = small.rotations.clone()
        large = new_cache(model, 300)
        assert (len(small.rotations), len(large.rotations)) == (8, 300)
        assert torch.equal(small.rotations, before)
        assert new_cache(model, 100).rotations.data_ptr() == large.rotations.data_ptr()


class TestSlidingWindow:
    @pytest.mark.parametrize(
        ("name", "changes", "window", "layers"),
        [
            ("Mistral", {"sliding_window": None}, None, ()),
            ("Mistral", {"sliding_window": 7, "layer_types": ["full_attention"] * 2}, 7, (0, 1)),
            ("Mistral", {"sliding_window": 4096}, 4096, (0, 1)),
            ("Llama", {"sliding_window": 7, "use_sliding_window": True}, None, ()),
            ("Qwen2", {"use_sliding_window": False, "sliding_window": 7}, None, ()),
            ("Qwen2", {"use_sliding_window": True, "sliding_window": None}, None, ()),
            ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}, None, ()),
            ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}, 7, (1,)),
            ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}, 7, (0, 1)),
            (
                "Qwen3",
                {"use_sliding_window": True, "sliding_window": 7, "layer_types": ["full_attention"] * 2},
                None,
                (),
            ),
            (
                "Qwen3",
                {"use_sliding_window": True, "sliding_window": 7, "layer_types": [LAYER_KINDS[1], LAYER_KINDS[0]]},
                7,
                (0,),
            ),
        ],
    )
    def test_which_layers_have_one(self, name, changes, window, layers):
        content = SIZES | {"architectures": [f"{name}ForCausalLM"], "rms_norm_eps": 1e-6} | changes
        config = parse_config("config.json", content)
        assert (config.sliding_window, config.sliding_layers) == (window, set(layers))
        assert config.max_positions == 64

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"layer_types": ["sliding_attention"] * 2}, "layer_types: expected no sliding attention"),
            (
                {"layer_types": ["full_attention", "linear_attention"]},
                "layer_types: expected a list of 2 full_attention",
            ),
            ({"layer_types": ["full_attention"]}, "layer_types: expected a list of 2"),
            ({"layer_types": "full_attention"}, "layer_types: expected a list"),
            (
                {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 0},
                "sliding_window: .* at least 1",
            ),
            ({"use_sliding_window": True, "max_window_layers": "1"}, "max_window_layers: .*whole number"),
        ],
    )
    def test_wrong_fields(self, changes, reason):
        content = SIZES | {"architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6} | changes
        with pytest.raises(FormatError, match=reason):
            parse_config("config.json", content)
        assert why_not_built_in(content)


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_fields_left_out_are_what_transformers_takes(name):
    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 40, "vocab_size": 8}
    content = {"intermediate_size": 8, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "use_sliding_window": True}
    expected = getattr(transformers, f"{name}Config")(**sizes, **content)
    config = parse_config("config.json", sizes | content | {"architectures": [f"{name}ForCausalLM"]})
    assert config.key_value_heads == expected.num_key_value_heads
    assert config.head_size == (getattr(expected, "head_dim", None) or 64)
    assert config.tied_head == expected.tie_word_embeddings
    assert config.sliding_window == (None if name == "Llama" else expected.sliding_window)
    assert config.rope_base == expected.rope_parameters["rope_theta"]


class TestTiedHead:
    @pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
    def test_the_weight_of_the_head_may_be_there_too(self, tmp_path, name):
        from safetensors.torch import load_file, save_file

        folder = make(tmp_path, name, tie_word_embeddings=True)
        path, text = folder / "model.safetensors", random_text(20)
        tensors = load_file(path)
        assert "lm_head.weight" not in tensors
        expected = reference(folder)(text)
        assert distance(folder, expected, text) < 1e-4
        save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, path)
        assert distance(folder, expected, text) < 1e-4


def test_a_sharded_checkpoint_of_biases_and_norms(tmp_path):
    whole = make(tmp_path / "whole", "Qwen3", attention_bias=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(whole)
    model.save_pretrained(tmp_path / "shards", max_shard_size="12KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 3
    text = random_text(20)
    assert ModelFolder.of(tmp_path / "shards").config == ModelFolder.of(whole).config
    logits, expected = (reference_logits(load_model(folder), text) for folder in (tmp_path / "shards", whole))
    assert torch.equal(logits, expected)
