"""Errors of model folders name the file and the field; weights in one file or several load alike."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from treeopt.errors import FormatError, TreeoptError, TreeoptWarning
from treeopt.runtime import load_model
from treeopt.runtime.models.config import parse_config, why_not_built_in
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.rotary import Llama3Scaling


@pytest.fixture
def folder(target_folder, tmp_path):
    """Return a copy of a valid checkpoint."""
    return shutil.copytree(target_folder, tmp_path / "model")


@pytest.fixture(scope="module")
def content(target_folder):
    """Return a valid configuration."""
    return json.loads((target_folder / "config.json").read_text("utf-8"))


def change_tensors(folder, changes):
    """Replace weights; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def load_error(folder):
    with pytest.raises(TreeoptError) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    return caught.value


def assert_refused(folder, path, field, reason):
    error = load_error(folder)
    assert isinstance(error, FormatError)
    assert (error.path, error.field) == (path, field)
    assert re.search(reason, error.reason)
    assert str(error).startswith(f"{error.path}: {field}: ")


class TestConfig:
    def parse(self, content, **changes):
        """Parse a configuration with changed fields; None removes one."""
        changed = {name: value for name, value in (content | changes).items() if value is not None}
        return parse_config("config.json", changed)

    def test_valid_folder(self, folder):
        model = load_model(str(folder))
        assert (model.name, model.dtype, model.device) == ("model", torch.float32, torch.device("cpu"))
        config = ModelFolder.of(folder).config
        assert config == model.config
        assert (config.vocabulary, config.hidden, config.intermediate, config.layers) == (23, 32, 48, 2)
        assert (config.heads, config.key_value_heads, config.head_size) == (4, 2, 8)
        assert (config.rope_base, config.max_positions, config.tied_head, config.end_tokens) == (10_000, 128, False, ())

    def test_optional_fields(self, content):
        missing = dict.fromkeys(["num_key_value_heads", "head_dim", "rope_parameters", "tie_word_embeddings"])
        config = self.parse(content, **missing)
        assert (config.key_value_heads, config.head_size, config.rope_base, config.tied_head) == (4, 8, 10_000, False)

    @pytest.mark.parametrize(
        ("end_token", "generation", "expected"),
        [
            (7, None, (7,)),
            (7, {"eos_token_id": [3, 7, 5]}, (7, 3, 5)),
            ([7, 5], {"eos_token_id": 7}, (7, 5)),
            (None, {"eos_token_id": [9, 2]}, (9, 2)),
            (7, {"eos_token_id": None}, (7,)),
            (7, {"temperature": 0.6}, (7,)),
        ],
    )
    def test_end_tokens_of_both_files(self, folder, content, end_token, generation, expected):
        (folder / "config.json").write_text(json.dumps(content | {"eos_token_id": end_token}), "utf-8")
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
        assert ModelFolder.of(folder).config.end_tokens == expected

    @pytest.mark.parametrize(
        ("file", "text", "field", "reason"),
        [
            ("generation_config.json", '{"eos_token_id": "</s>"}', "eos_token_id", "expected a token id"),
            ("generation_config.json", '{"eos_token_id": [1, true]}', "eos_token_id", "expected a token id"),
            ("generation_config.json", "[1]", "content", "expected"),
            ("config.json", "", "content", "expected JSON"),
            ("config.json", '{"vocab_size": 23', "content", "expected JSON"),
            ("config.json", "[" * 100_000, "content", "expected JSON"),
            ("config.json", '"LlamaForCausalLM"', "content", "expected fields"),
        ],
    )
    def test_wrong_file_is_refused(self, folder, file, text, field, reason):
        (folder / file).write_text(text, "utf-8")
        assert_refused(folder, folder / file, field, reason)

    @pytest.mark.parametrize("is_file", [False, True])
    def test_missing_folder_is_refused(self, tmp_path, is_file):
        path = tmp_path / "model"
        if is_file:
            path.touch()
        assert str(load_error(path)).startswith(f"{path}: no such folder. Expected a model folder")

    def test_missing_config_is_refused(self, folder):
        (folder / "config.json").unlink()
        assert str(load_error(folder)) == f"{folder}: no config.json. Expected a model folder in Hugging Face layout."

    @pytest.mark.parametrize(
        ("field", "changes", "reason"),
        [
            (
                "architectures",
                {"architectures": ["MambaForCausalLM"]},
                "one of LlamaForCausalLM, Mistral.* Got .*Mamba",
            ),
            ("architectures", {"architectures": None}, "expected one of"),
            ("architectures", {"architectures": "LlamaForCausalLM"}, "expected one of"),
            ("architectures", {"architectures": [["LlamaForCausalLM"], {}]}, "expected one of"),
            (
                "quantization_config",
                {"quantization_config": {"quant_method": "fp8"}},
                "expected none: .* not quantised",
            ),
            ("hidden_act", {"hidden_act": "gelu"}, "expected 'silu'. Got 'gelu'"),
            ("rope_theta", {"rope_parameters": {"rope_theta": -1.0}}, "above 0. Got -1.0"),
            ("rope_theta", {"rope_parameters": None, "rope_theta": "many"}, "above 0. Got 'many'"),
            ("rope_theta", {"rope_parameters": {"rope_theta": True}}, "above 0. Got True"),
            ("rope_theta", {"rope_parameters": {"rope_theta": 1e999}}, "above 0. Got inf"),
            ("rope_parameters", {"rope_parameters": "default"}, "expected fields with names"),
            (
                "rope_parameters",
                {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
                "the same for all layers",
            ),
            ("partial_rotary_factor", {"partial_rotary_factor": 0.5}, "expected 1. Got 0.5"),
            ("partial_rotary_factor", {"rope_parameters": {"partial_rotary_factor": 0.25}}, "expected 1. Got 0.25"),
            ("num_key_value_heads", {"num_key_value_heads": 3}, "expected a divisor of 4 heads. Got 3"),
            ("num_attention_heads", {"num_attention_heads": None}, "is missing"),
            ("num_hidden_layers", {"num_hidden_layers": 1.5}, "whole number"),
            ("vocab_size", {"vocab_size": 0}, "at least 1"),
            ("head_dim", {"head_dim": 7}, "an even number, for rotary positions. Got 7"),
            ("rms_norm_eps", {"rms_norm_eps": "small"}, "a number"),
        ],
    )
    def test_wrong_field_is_refused(self, content, field, changes, reason):
        with pytest.raises(FormatError) as caught:
            self.parse(content, **changes)
        assert caught.value.field == field
        assert re.search(reason, caught.value.reason)

    def test_why_not_built_in(self, content):
        assert why_not_built_in(content) is None
        assert why_not_built_in(content | {"hidden_act": "gelu"}) == "hidden_act: expected 'silu'. Got 'gelu'."
        for other in (3, [], {}, {"architectures": ["MambaForCausalLM"]}):
            assert why_not_built_in(other)


class TestRotaryScaling:
    LLAMA3 = (
        ("rope_type", "llama3"),
        ("factor", 8.0),
        ("low_freq_factor", 1.0),
        ("high_freq_factor", 4.0),
        ("original_max_position_embeddings", 16),
    )

    @pytest.mark.parametrize(("field", "key"), [("rope_parameters", "rope_type"), ("rope_scaling", "type")])
    @pytest.mark.parametrize("kind", ["dynamic", "longrope", ["default"]])
    def test_unknown_kind_is_refused(self, content, field, key, kind):
        with pytest.raises(FormatError, match=re.escape(f"{field}: expected one of default, linear, llama3, yarn")):
            parse_config("config.json", content | {"rope_parameters": None, field: {key: kind, "factor": 8.0}})

    @pytest.mark.parametrize(
        ("field", "changes", "reason"),
        [
            ("factor", {"factor": None}, "a number"),
            ("factor", {"factor": 0.5}, "at least 1"),
            ("factor", {"type": "linear", "rope_type": "linear", "factor": "x"}, "a number"),
            ("high_freq_factor", {"high_freq_factor": 1.0}, "expected more than low_freq_factor, 1. Got 1"),
            ("original_max_position_embeddings", {"original_max_position_embeddings": 0}, "at least 1"),
            ("factor", {"rope_type": "yarn", "factor": 0.9}, "at least 1"),
            ("attention_factor", {"rope_type": "yarn", "attention_factor": "1"}, "a number"),
            ("beta_fast", {"rope_type": "yarn", "beta_fast": 2, "beta_slow": 3}, "more than beta_slow, 3. Got 2"),
            ("truncate", {"rope_type": "yarn", "truncate": "no"}, "expected true or false"),
        ],
    )
    def test_wrong_field_is_refused(self, content, field, changes, reason):
        with pytest.raises(FormatError) as caught:
            parse_config("config.json", content | {"rope_parameters": dict(self.LLAMA3) | changes})
        assert caught.value.field == f"rope_parameters.{field}"
        assert re.search(reason, caught.value.reason)

    def test_original_length_may_be_missing_or_outside(self, content):
        older = content | {"rope_parameters": None, "rope_scaling": dict(self.LLAMA3[:-1])}
        for changes, length in (({}, 128), ({"original_max_position_embeddings": 32}, 32)):
            assert parse_config("config.json", older | changes).rope_scaling == Llama3Scaling(
                factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=length
            )

    @pytest.mark.parametrize(("original", "longest"), [(16, 128), (32, 256), (None, 1024)])
    def test_yarn_extends_the_longest_sequence(self, content, original, longest):
        rope = {"rope_type": "yarn", "factor": 8.0}
        if original is not None:
            rope["original_max_position_embeddings"] = original
        assert parse_config("config.json", content | {"rope_parameters": rope}).max_positions == longest


class TestOneFile:
    def test_missing_weights_are_refused(self, folder):
        (folder / "model.safetensors").unlink()
        assert str(load_error(folder)).startswith(f"{folder}: no model.safetensors. Expected weights in")

    @pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
    def test_loaded_weights_do_not_depend_on_the_file(self, folder, stored, logits_after):
        path = folder / "model.safetensors"
        save_file({name: tensor.to(stored) for name, tensor in load_file(path).items()}, path)
        model = load_model(folder, dtype=stored)
        expected = logits_after(model, [3, 1, 4, 1, 5])
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)
        assert torch.equal(logits_after(model, [3, 1, 4, 1, 5]), expected)

    def test_one_file_is_preferred_to_an_index(self, folder):
        (folder / "model.safetensors.index.json").write_text("{}")
        load_model(folder)

    @pytest.mark.parametrize(
        "name",
        ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.1.mlp.down_proj.weight"],
    )
    def test_missing_weight_is_refused(self, folder, name):
        change_tensors(folder, {name: None})
        assert_refused(folder, folder, name, "this tensor is missing. Expected shape")

    @pytest.mark.parametrize(
        ("name", "tensor", "reason"),
        [
            ("lm_head.weight", torch.zeros(23, 31), r"expected shape \(23, 32\). Got \(23, 31\)"),
            ("model.norm.weight", torch.zeros(1, 32), r"expected shape \(32,\). Got \(1, 32\)"),
            ("model.layers.0.self_attn.q_proj.weight", torch.zeros(16, 32), r"shape \(32, 32\). Got \(16, 32\)"),
            ("model.layers.1.self_attn.v_proj.weight", torch.zeros(32, 32), r"shape \(16, 32\). Got \(32, 32\)"),
            ("model.layers.1.mlp.up_proj.weight", torch.zeros(32, 48), r"shape \(48, 32\). Got \(32, 48\)"),
            ("model.norm.weight", torch.ones(32, dtype=torch.float8_e4m3fn), "expected float32, .* Got torch.float8"),
        ],
    )
    def test_wrong_shape_or_dtype_is_refused(self, folder, name, tensor, reason):
        change_tensors(folder, {name: tensor})
        assert_refused(folder, folder / "model.safetensors", name, reason)

    def test_layers_beyond_the_configuration_give_a_warning(self, folder, content):
        layers = {f"model.layers.{layer}.input_layernorm.weight": torch.ones(32) for layer in (2, 11)}
        change_tensors(folder, layers | {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(4)})
        with pytest.warns(
            TreeoptWarning, match=r"layers 2 to 11 of the weights are ignored.*num_hidden_layers .* is 2"
        ):
            assert load_model(folder).config.layers == 2
        (folder / "config.json").write_text(json.dumps(content | {"num_nextn_predict_layers": 10}), "utf-8")
        load_model(folder)  # multi-token prediction: no warning, which would be an error here

    @pytest.mark.parametrize("length", [0, 4, 100, -1000, -1])
    def test_truncated_file_is_refused(self, folder, length):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:length])
        assert_refused(folder, path, "header", "cannot be read .*Is the file complete")


@pytest.fixture(scope="module")
def several_files(make_checkpoint):
    return make_checkpoint(seed=4, tie_word_embeddings=False, max_shard_size="20KB")


class TestSeveralFiles:
    @pytest.fixture
    def folder(self, several_files, tmp_path):
        """Return a copy of a checkpoint in several files."""
        return shutil.copytree(several_files, tmp_path / "model")

    @pytest.fixture
    def index(self, folder):
        return folder / "model.safetensors.index.json"

    @pytest.fixture
    def norm_file(self, folder, index):
        """Return the file that contains the last norm."""
        return folder / json.loads(index.read_text())["weight_map"]["model.norm.weight"]

    def test_logits_equal_those_of_one_file(self, folder, make_checkpoint, logits_after):
        assert len(list(folder.glob("*.safetensors"))) > 2
        single = make_checkpoint(seed=4, tie_word_embeddings=False)
        logits, expected = (logits_after(load_model(path), [3, 1, 4, 1, 5]) for path in (folder, single))
        assert torch.equal(logits, expected)

    def test_missing_file_is_refused(self, folder, norm_file):
        norm_file.unlink()
        assert_refused(folder, norm_file, "header", r"cannot be read \(no such file\)")

    @pytest.mark.parametrize("length", [0, 100, -3])
    def test_truncated_file_is_refused(self, folder, norm_file, length):
        norm_file.write_bytes(norm_file.read_bytes()[:length])
        assert_refused(folder, norm_file, "header", "cannot be read .*Is the file complete")

    def test_file_without_a_listed_weight_is_refused(self, folder, norm_file):
        tensors = load_file(norm_file)
        del tensors["model.norm.weight"]
        save_file(tensors, norm_file)
        assert_refused(folder, norm_file, "model.norm.weight", "not in the file, although model")

    @pytest.mark.parametrize("file", ["../{}", "sub/{}", "/{}", "{folder}/../{}"])
    def test_index_with_a_file_in_another_folder_is_refused(self, folder, index, norm_file, file):
        content = json.loads(index.read_text())
        shutil.copy(norm_file, folder.parent)
        content["weight_map"]["model.norm.weight"] = file.format(norm_file.name, folder=folder)
        index.write_text(json.dumps(content))
        assert_refused(folder, index, "weight_map", "expected files of this folder")

    def test_linked_files(self, folder, tmp_path, logits_after):
        for path in folder.glob("*.safetensors"):
            (tmp_path / f"{path.name}.blob").symlink_to(path.rename(tmp_path / path.name))
            path.symlink_to(tmp_path / f"{path.name}.blob")
        assert logits_after(load_model(folder), [3, 1]).isfinite().all()

    def test_weight_missing_from_the_index_is_refused(self, folder, index):
        content = json.loads(index.read_text())
        del content["weight_map"]["lm_head.weight"]
        index.write_text(json.dumps(content))
        assert_refused(folder, folder, "lm_head.weight", "missing")

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ("", "content", "expected JSON"),
            ("[]", "content", "expected fields with names"),
            ("{}", "weight_map", "expected the file of each tensor"),
            ('{"weight_map": ["a"]}', "weight_map", "expected the file of each tensor"),
            ('{"weight_map": {"a": 5}}', "weight_map", "expected the file of each tensor"),
        ],
    )
    def test_wrong_index_is_refused(self, folder, index, content, field, reason):
        index.write_text(content)
        assert_refused(folder, index, field, reason)
