"""Models of transformers give the logits of their own plain passes, for every path of a tree."""

import json
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from tests.support.hf_models import ARCHITECTURES, GROUPED, VOCABULARY, random_model
from tests.support.passes import feed_tokens, feed_tree, new_cache
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.runtime import Decoder
from treeopt.runtime.models.hf import Placement, load_adapter
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.trees import TokenTree, level_widths

TREE = level_widths([4, 6, 5, 3])
CLOSE = {"rtol": 1e-3, "atol": 1e-3}


def random_tokens(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def plain_logits(model, tokens):
    """Return the logits (n, V) of a sequence from the model's own pass."""
    with torch.inference_mode():
        return model._model(input_ids=tokens[None], use_cache=False).logits[0]


def check_paths(model, cache, prefix, tokens):
    """Feed a tree, and compare the logits of every path with a plain pass over it."""
    logits = feed_tree(model, cache, tokens, TREE).logits
    for padded in TREE.leaf_paths:
        path = padded[padded >= 0].tolist()
        expected = plain_logits(model, torch.cat([prefix, tokens[path]]))[len(prefix) :]
        torch.testing.assert_close(logits[path], expected, **CLOSE)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_passes_the_load_time_checks(loaded_adapter, name):
    assert loaded_adapter(name).batches


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma3_text", "deepseek_v3"])
class TestPasses:
    """Passes independently of the load-time checks."""

    def test_single_tokens(self, loaded_adapter, name):
        model, tokens = loaded_adapter(name), random_tokens(16)
        cache = new_cache(model, 16)
        assert model.prefill(tokens[:9], cache) is None
        logits = []
        for position in range(9, 16):
            logits.append(feed_tokens(model, cache, tokens[position : position + 1]).logits[0])
            cache.commit([0])
        torch.testing.assert_close(torch.stack(logits), plain_logits(model, tokens)[9:], **CLOSE)

    def test_tree_before_and_after_a_commit(self, loaded_adapter, name):
        model, prefix, tokens = loaded_adapter(name), random_tokens(11), random_tokens(TREE.nodes, seed=1)
        cache = new_cache(model, 60)
        model.prefill(prefix, cache)
        check_paths(model, cache, prefix, tokens)
        path = TREE.leaf_paths[-1][TREE.leaf_paths[-1] >= 0].tolist()
        cache.commit(path)
        prefix = torch.cat([prefix, tokens[path]])
        assert cache.length == len(prefix)
        check_paths(model, cache, prefix, tokens.flip(0))


class TestSizes:
    def test_weight_bytes_are_those_of_stored_weights(self, loaded_adapter):
        whole, model = loaded_adapter("llama"), random_model("llama")
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to(torch.int8), requires_grad=False)
        quantised = AdapterModel(model, name="quantised")
        model.register_buffer("zeros", torch.zeros(9, dtype=torch.int8))
        in_buffers = AdapterModel(model, name="quantised")
        assert whole.parameters == quantised.parameters == in_buffers.parameters
        assert 4 * whole.parameters <= whole.weight_bytes < 4.01 * whole.parameters
        assert in_buffers.weight_bytes == quantised.weight_bytes + 9
        assert whole.weight_bytes - quantised.weight_bytes == 3 * model.lm_head.weight.numel()

    @pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])  # an untied head and two tied ones
    def test_parameters_are_counted_once(self, loaded_adapter, name):
        model = loaded_adapter(name)
        assert model.parameters == random_model(name).num_parameters()
        assert (model.name, model.config.vocabulary, model.config.end_tokens) == (name, VOCABULARY, (7,))

    @pytest.mark.parametrize(
        ("name", "changes", "longest", "window"),
        [
            ("llama", {}, 96, None),
            ("gpt2", {}, 96, None),
            ("mistral", {}, 96, 64),
            ("mistral", {"sliding_window": None}, 96, None),
            ("mistral", {"attention_chunk_size": 32}, 32, 64),
            ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}, 96, 64),
            ("gemma3_text", {"layer_types": ["full_attention", "full_attention"]}, 96, None),
            ("qwen3", {"use_sliding_window": False, "sliding_window": 64}, 96, None),
        ],
    )
    def test_longest_sequence_and_sliding_window(self, name, changes, longest, window):
        config = AdapterModel(random_model(name, **changes), name=name).config
        assert (config.max_positions, config.sliding_window) == (longest, window)

    def test_longrope_limits_sequences_to_the_original_length(self):
        rope = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
        config = transformers.Phi3Config(**GROUPED, original_max_position_embeddings=32, rope_scaling=rope)
        model = transformers.AutoModelForCausalLM.from_config(config)
        assert AdapterModel(model, name="phi3").config.max_positions == 32

    @pytest.mark.parametrize(("original", "longest"), [(8, 96), (24, 192)])
    def test_yarn_extends_the_longest_sequence(self, original, longest):
        rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": original}
        rope |= {"rope_theta": 10_000.0}
        assert AdapterModel(random_model("llama", rope_parameters=rope), name="x").config.max_positions == longest

    @pytest.mark.parametrize("name", ["llama", "qwen3", "deepseek_v3"])  # the last compresses keys and values
    def test_cache_bytes_are_those_of_the_cache(self, loaded_adapter, name):
        model = loaded_adapter(name)
        cache = new_cache(model, 20)
        model.prefill(random_tokens(5), cache)
        assert model.cache_bytes(20) == sum(entries[0].nbytes for entries in cache.store.entries)

    @pytest.mark.skipif(not hasattr(transformers, "Gemma4TextConfig"), reason="needs a newer transformers")
    def test_layers_may_have_heads_of_different_sizes(self):
        sizes = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "global_head_dim": 16}
        config = transformers.Gemma4TextConfig(**{**GROUPED, "num_hidden_layers": 6}, **sizes, head_dim=8)
        model = AdapterModel(transformers.AutoModelForCausalLM.from_config(config), name="gemma4")
        cache = new_cache(model, 20)
        model.prefill(random_tokens(5), cache)
        assert model.cache_bytes(20) == sum(entries[0].nbytes for entries in cache.store.entries)

    def test_several_end_tokens(self):
        model = random_model("llama")
        model.generation_config.eos_token_id = [3, 5]
        assert AdapterModel(model, name="x").config.end_tokens == (3, 5)


def test_prefill_in_chunks(loaded_adapter, monkeypatch):
    model, tokens = loaded_adapter("gemma2"), random_tokens(40)
    monkeypatch.setattr("treeopt.runtime.models.model.PREFILL_TOKENS", 7)
    cache = new_cache(model, 40)
    model.prefill(tokens[:-1], cache)
    assert cache.length == 39
    logits = feed_tokens(model, cache, tokens[-1:]).logits
    torch.testing.assert_close(logits[0], plain_logits(model, tokens)[-1], **CLOSE)


def test_empty_prompt_and_cleared_cache(loaded_adapter):
    model = loaded_adapter("gpt2")
    cache = new_cache(model, 40)
    for _ in range(2):
        model.prefill(random_tokens(0), cache)
        check_paths(model, cache, random_tokens(0), random_tokens(TREE.nodes))
        cache.commit([0, 1])
        cache.clear()


@pytest.mark.parametrize("name", ["gpt2", "gemma3_text"])
def test_decoder_equals_plain_decoding_up_to_the_last_position(loaded_adapter, name):
    model, draft = loaded_adapter(name), AdapterModel(random_model("llama", seed=3), name="draft")
    prompt = random_tokens(60).tolist()
    count = min(model.config.max_positions, draft.config.max_positions) - len(prompt)
    expected = list(prompt)
    for _ in range(count):
        expected.append(int(plain_logits(model, torch.tensor(expected))[-1].argmax()))
        if expected[-1] == 7:
            break
    for tree in (TokenTree([-1]), TREE):
        decoder = Decoder(model, draft, tree, temperature=0.0)
        assert [*prompt, *decoder.generate(prompt, count)] == expected


def test_dtype_is_that_of_the_logits(adapter_folder):
    model = load_adapter(adapter_folder("llama"), dtype=torch.bfloat16)
    logits = feed_tokens(model, new_cache(model, 1), random_tokens(1)).logits
    assert logits.dtype == model.dtype == torch.bfloat16


def test_loading_prints_nothing_without_a_terminal(adapter_folder, capfd):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_adapter(adapter_folder("llama"))
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


class TestRefusals:
    @pytest.fixture
    def folder(self, adapter_folder, tmp_path):
        """Return a copy of a model."""
        for path in adapter_folder("llama").iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        return tmp_path

    def check(self, folder, *words):
        with pytest.raises(TreeoptError) as caught:
            load_adapter(folder)
        message = str(caught.value)
        assert "\n" not in message
        assert [word for word in words if word not in message] == []

    def change_config(self, folder, **changes):
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | changes))

    def test_missing_files(self, folder):
        (folder / "config.json").unlink()
        self.check(folder, str(folder), "config.json")
        self.check(folder / "missing", "no such folder")

    def test_code_in_the_folder_is_not_run(self, folder):
        code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
        (folder / "own.py").write_text("raise SystemExit('was run')")
        self.change_config(folder, model_type="own", auto_map=code)
        self.check(folder, str(folder), "auto_map", "not run")

    def test_unknown_architecture(self, folder):
        self.change_config(folder, model_type="nothing_known")
        self.check(folder, str(folder), "nothing_known")

    def test_missing_weight(self, folder):
        from safetensors.torch import load_file, save_file

        weights = load_file(folder / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        self.check(folder, "model.layers.1.mlp.up_proj.weight", "missing")

    def test_unreadable_sizes(self, folder, monkeypatch):
        def fail(_):
            raise RuntimeError("no meta\ndevice")

        monkeypatch.setattr("treeopt.runtime.models.hf.sizes._build_skeleton", fail)
        self.check(folder, str(folder), "no meta device")

    def test_quantiser_that_is_not_installed(self, folder):
        pytest.importorskip("accelerate")
        self.change_config(folder, quantization_config={"quant_method": "hqq", "quant_config": {}})
        self.check(folder, str(folder), "hqq")

    def test_placement_and_tensor_parallelism(self, folder):
        with pytest.raises(InvalidValueError, match="at most"):
            load_adapter(folder, placement=Placement(max_memory=()), tensor_parallel=True)

    def test_transformers_not_installed(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        self.check(folder, 'pip install "treeopt[hf]"')
