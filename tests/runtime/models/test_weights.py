"""Model folders: what is wrong with one is told in one line that names the file and the field."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from treeopt.errors import FormatError, TreeoptError
from treeopt.runtime import load_model
from treeopt.runtime.models.config import why_not_built_in
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.rotary import Llama3Scaling


@pytest.fixture
def folder(target_folder, tmp_path):
    """Return a copy of a good checkpoint that a test may break."""
    return shutil.copytree(target_folder, tmp_path / "model")


@pytest.fixture
def sharded(make_checkpoint):
    return make_checkpoint(seed=4, tie_word_embeddings=False, max_shard_size="20KB")


def change_config(folder, **changes):
    """Set fields of the configuration; None removes one."""
    path = folder / "config.json"
    content = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}), "utf-8")


def change_tensors(folder, **changes):
    """Replace weights, dots of their names written as __; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def refusal(folder, work=load_model):
    with pytest.raises(TreeoptError) as caught:
        work(folder)
    assert "\n" not in str(caught.value)
    return caught.value


def assert_refused(folder, file, field, reason):
    error = refusal(folder)
    assert isinstance(error, FormatError)
    assert (error.path, error.field) == (folder / file if file else folder, field)
    assert re.search(reason, error.reason)
    assert str(error).startswith(f"{error.path}: {field}: ")


def test_a_good_folder(folder):
    model = load_model(str(folder))
    assert (model.name, model.dtype, model.device) == ("model", torch.float32, torch.device("cpu"))
    config = ModelFolder.of(folder).config
    assert config == model.config
    assert (config.vocabulary, config.hidden, config.intermediate, config.layers) == (23, 32, 48, 2)
    assert (config.heads, config.key_value_heads, config.head_size) == (4, 2, 8)
    assert (config.rope_base, config.max_positions, config.tied_head, config.end_tokens) == (10_000, 128, False, ())


def test_fields_that_may_be_missing(folder):
    change_config(folder, num_key_value_heads=None, head_dim=None, rope_parameters=None, tie_word_embeddings=None)
    config = ModelFolder.of(folder).config
    assert (config.key_value_heads, config.head_size, config.rope_base, config.tied_head) == (4, 8, 10_000, False)


def test_the_end_token(folder):
    change_config(folder, eos_token_id=7)
    assert ModelFolder.of(folder).config.end_tokens == (7,)


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [
        (7, {"eos_token_id": [3, 7, 5]}, (7, 3, 5)),
        ([7, 5], {"eos_token_id": 7}, (7, 5)),
        (None, {"eos_token_id": [9, 2]}, (9, 2)),
        (7, {"eos_token_id": None}, (7,)),
        (7, {"temperature": 0.6}, (7,)),
    ],
)
def test_end_tokens_that_generation_adds(folder, own, generation, expected):
    change_config(folder, eos_token_id=own)
    (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    assert ModelFolder.of(folder).config.end_tokens == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"eos_token_id": "</s>"}', "eos_token_id"),
        ('{"eos_token_id": [1, true]}', "eos_token_id"),
        ('{"eos_token_id": {}}', "eos_token_id"),
        ("[1]", "content"),
        ("{", "content"),
    ],
)
def test_end_tokens_of_generation_that_are_none(folder, text, field):
    (folder / "generation_config.json").write_text(text, "utf-8")
    assert_refused(folder, "generation_config.json", field, "expected")


@pytest.mark.parametrize("there", [False, True], ids=["nothing there", "a file"])
def test_no_folder(tmp_path, there):
    path = tmp_path / "model"
    if there:
        path.touch()
    assert re.match(f"{path}: no such folder. Expected a model folder", str(refusal(path)))


def test_no_config(folder):
    (folder / "config.json").unlink()
    assert str(refusal(folder)) == f"{folder}: no config.json. Expected a model folder in Hugging Face layout."


@pytest.mark.parametrize("content", ["", "{", '{"vocab_size": 23', "[" * 100_000])
def test_config_is_not_json(folder, content):
    (folder / "config.json").write_text(content)
    assert_refused(folder, "config.json", "content", "expected JSON")


@pytest.mark.parametrize("content", ["[]", "3", '"LlamaForCausalLM"'])
def test_config_has_no_fields(folder, content):
    (folder / "config.json").write_text(content)
    assert_refused(folder, "config.json", "content", "expected fields")


WRONG_FIELDS = [
    (
        "architectures",
        {"architectures": ["MambaForCausalLM"]},
        "expected one of LlamaForCausalLM, Mistral.* Got .*Mamba",
    ),
    ("architectures", {"architectures": None}, "expected one of"),
    ("architectures", {"architectures": "LlamaForCausalLM"}, "expected one of"),
    ("architectures", {"architectures": [["LlamaForCausalLM"], {}]}, "expected one of"),
    ("quantization_config", {"quantization_config": {"quant_method": "fp8"}}, "expected none: .* not quantised"),
    ("hidden_act", {"hidden_act": "gelu"}, "expected 'silu'. Got 'gelu'"),
    ("rope_theta", {"rope_parameters": {"rope_theta": -1.0}}, "above 0. Got -1.0"),
    ("rope_theta", {"rope_parameters": None, "rope_theta": "many"}, "above 0. Got 'many'"),
    ("rope_theta", {"rope_parameters": {"rope_theta": True}}, "above 0. Got True"),
    ("rope_theta", {"rope_parameters": {"rope_theta": 1e999}}, "above 0. Got inf"),
    ("rope_parameters", {"rope_parameters": "default"}, "expected fields with names"),
    ("rope_parameters", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "the same for all layers"),
    ("partial_rotary_factor", {"partial_rotary_factor": 0.5}, "expected 1. Got 0.5"),
    ("partial_rotary_factor", {"rope_parameters": {"partial_rotary_factor": 0.25}}, "expected 1. Got 0.25"),
    ("num_key_value_heads", {"num_key_value_heads": 3}, "expected a divisor of 4 heads. Got 3"),
    ("num_key_value_heads", {"num_key_value_heads": 0}, "at least 1. Got 0"),
    ("num_attention_heads", {"num_attention_heads": None}, "is missing"),
    ("num_hidden_layers", {"num_hidden_layers": 1.5}, "whole number"),
    ("hidden_size", {"hidden_size": "32"}, "whole number"),
    ("intermediate_size", {"intermediate_size": None}, "is missing"),
    ("vocab_size", {"vocab_size": 0}, "at least 1"),
    ("head_dim", {"head_dim": -8}, "at least 1"),
    ("head_dim", {"head_dim": 7}, "an even number, for rotary positions. Got 7"),
    ("rms_norm_eps", {"rms_norm_eps": "small"}, "a number"),
    ("max_position_embeddings", {"max_position_embeddings": None}, "is missing"),
]


@pytest.mark.parametrize(("field", "changes", "reason"), WRONG_FIELDS)
def test_a_wrong_field(folder, field, changes, reason):
    change_config(folder, **changes)
    assert_refused(folder, "config.json", field, reason)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize("kind", ["dynamic", "ntk", "longrope", "linea", ["default"]])
@pytest.mark.parametrize("field", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_rotary_scaling_of_another_kind(folder, field, key, kind):
    change_config(folder, rope_parameters=None)
    change_config(folder, **{field: {key: kind, "factor": 8.0}})
    assert_refused(folder, "config.json", field, re.escape(f"the same for all layers. Got {kind!r}"))


@pytest.mark.parametrize(
    ("field", "changes", "reason"),
    [
        ("factor", {"factor": None}, "a number"),
        ("factor", {"factor": 0.5}, "at least 1"),
        ("factor", {"type": "linear", "rope_type": "linear", "factor": "x"}, "a number"),
        ("low_freq_factor", {"low_freq_factor": "low"}, "a number"),
        ("high_freq_factor", {"high_freq_factor": 1.0}, "expected more than low_freq_factor, 1. Got 1"),
        ("original_max_position_embeddings", {"original_max_position_embeddings": 0}, "at least 1"),
        ("factor", {"rope_type": "yarn", "factor": 0.9}, "at least 1"),
        ("attention_factor", {"rope_type": "yarn", "attention_factor": "1"}, "a number"),
        ("beta_fast", {"rope_type": "yarn", "beta_fast": 2, "beta_slow": 3}, "expected more than beta_slow, 3. Got 2"),
        ("truncate", {"rope_type": "yarn", "truncate": "no"}, "expected true or false"),
    ],
)
def test_rotary_scaling_with_a_wrong_field(folder, field, changes, reason):
    change_config(folder, rope_parameters=LLAMA3 | changes)
    assert_refused(folder, "config.json", f"rope_parameters.{field}", reason)


def test_the_length_trained_first_may_be_missing_or_stand_outside(folder):
    scaling = {name: value for name, value in LLAMA3.items() if name != "original_max_position_embeddings"}
    change_config(folder, rope_parameters=None, rope_scaling=scaling)
    assert ModelFolder.of(folder).config.rope_scaling == Llama3Scaling(
        factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_positions=128
    )
    change_config(folder, original_max_position_embeddings=32)
    assert ModelFolder.of(folder).config.rope_scaling.original_positions == 32


@pytest.mark.parametrize("content", [3, [], {}, {"architectures": ["MambaForCausalLM"]}])
def test_why_a_model_is_not_built_in(content):
    assert why_not_built_in(content)


def test_why_a_model_is_not_built_in_is_what_refuses_it(folder):
    change_config(folder, hidden_act="gelu")
    assert why_not_built_in(json.loads((folder / "config.json").read_text())) == str(refusal(folder)).partition(": ")[2]
    change_config(folder, hidden_act="silu")
    assert why_not_built_in(json.loads((folder / "config.json").read_text())) is None


def test_no_weights(folder):
    (folder / "model.safetensors").unlink()
    assert re.match(f"{folder}: no model.safetensors", str(refusal(folder)))
    (folder / "pytorch_model.bin").touch()
    assert re.match(f"{folder}: only pytorch_model.bin. Expected safetensors", str(refusal(folder)))


def test_quantised_weights(folder):
    change_tensors(folder, model__norm__weight=torch.ones(32, dtype=torch.float8_e4m3fn))
    assert_refused(folder, "model.safetensors", "model.norm.weight", "expected float32, .* Got torch.float8")


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_weights_do_not_hang_on_the_file(folder, stored, logits_after):
    path = folder / "model.safetensors"
    save_file({name: tensor.to(stored) for name, tensor in load_file(path).items()}, path)
    model = load_model(folder, dtype=stored)
    expected = logits_after(model, [3, 1, 4, 1, 5])
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert torch.equal(logits_after(model, [3, 1, 4, 1, 5]), expected)


def test_one_file_comes_before_an_index(folder):
    (folder / "model.safetensors.index.json").write_text("{}")
    load_model(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
    ],
)
def test_a_missing_weight(folder, name):
    change_tensors(folder, **{name: None})
    assert_refused(folder, "", name, "this tensor is missing. Expected shape")


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        ("model.embed_tokens.weight", (22, 32), r"expected shape \(23, 32\). Got \(22, 32\)"),
        ("lm_head.weight", (23, 31), r"expected shape \(23, 32\). Got \(23, 31\)"),
        ("model.norm.weight", (1, 32), r"expected shape \(32,\). Got \(1, 32\)"),
        ("model.layers.0.self_attn.q_proj.weight", (16, 32), r"expected shape \(32, 32\). Got \(16, 32\)"),
        ("model.layers.1.self_attn.v_proj.weight", (32, 32), r"expected shape \(16, 32\). Got \(32, 32\)"),
        ("model.layers.1.mlp.up_proj.weight", (32, 48), r"expected shape \(48, 32\). Got \(32, 48\)"),
    ],
)
def test_a_weight_of_the_wrong_shape(folder, name, shape, reason):
    change_tensors(folder, **{name: torch.zeros(shape)})
    assert_refused(folder, "model.safetensors", name, reason)


@pytest.mark.parametrize("length", [0, 4, 100, -1000, -1])
def test_weights_that_were_cut_off(folder, length):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert_refused(folder, "model.safetensors", "header", "cannot be read .*Is the file complete")


def test_weights_that_are_something_else(folder):
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    assert_refused(folder, "model.safetensors", "header", "cannot be read")


class TestSeveralFiles:
    def test_logits_equal_those_of_one_file(self, sharded, make_checkpoint, logits_after):
        assert len(list(sharded.glob("*.safetensors"))) > 2
        single = make_checkpoint(seed=4, tie_word_embeddings=False)
        logits, expected = (logits_after(load_model(folder), [3, 1, 4, 1, 5]) for folder in (sharded, single))
        assert torch.equal(logits, expected)

    def test_a_file_is_missing(self, sharded):
        path = self.file_of(sharded, "model.norm.weight")
        path.unlink()
        self.assert_found_before_anything_is_read(sharded, path, "header", r"cannot be read \(no such file\)")

    @pytest.mark.parametrize("length", [0, 5, 100, -3])
    def test_a_file_was_cut_off(self, sharded, length):
        path = self.file_of(sharded, "model.norm.weight")
        path.write_bytes(path.read_bytes()[:length])
        self.assert_found_before_anything_is_read(sharded, path, "header", "cannot be read .*Is the file complete")

    def test_a_file_does_not_hold_what_the_index_says(self, sharded):
        path = self.file_of(sharded, "model.norm.weight")
        save_file({name: tensor for name, tensor in load_file(path).items() if name != "model.norm.weight"}, path)
        self.assert_found_before_anything_is_read(sharded, path, "model.norm.weight", "not in the file, although model")

    @pytest.mark.parametrize("file", ["../{}", "sub/{}", "/{}", "..", "{folder}/../{}"])
    def test_the_index_names_a_file_elsewhere(self, sharded, file):
        index = sharded / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        path = self.file_of(sharded, "model.norm.weight")
        shutil.copy(path, sharded.parent)
        content["weight_map"]["model.norm.weight"] = file.format(path.name, folder=sharded)
        index.write_text(json.dumps(content))
        error = refusal(sharded)
        assert (error.path, error.field) in [(index, "weight_map"), (sharded / "..", "header")]

    def test_files_that_are_links(self, sharded, tmp_path, logits_after):
        for path in sharded.glob("*.safetensors"):
            (tmp_path / f"{path.name}.blob").symlink_to(path.rename(tmp_path / path.name))
            path.symlink_to(tmp_path / f"{path.name}.blob")
        assert logits_after(load_model(sharded), [3, 1]).isfinite().all()

    def assert_found_before_anything_is_read(self, folder, path, field, reason):
        error = refusal(folder)
        assert isinstance(error, FormatError)
        assert (error.path, error.field) == (path, field)
        assert re.search(reason, error.reason)

    def test_the_index_does_not_list_a_weight(self, sharded):
        index = sharded / "model.safetensors.index.json"
        content = json.loads(index.read_text())
        del content["weight_map"]["lm_head.weight"]
        index.write_text(json.dumps(content))
        assert_refused(sharded, "", "lm_head.weight", "missing")

    @pytest.mark.parametrize(
        ("content", "field", "reason"),
        [
            ("", "content", "expected JSON"),
            ("[]", "content", "expected fields with names"),
            *(
                (content, "weight_map", "expected the file of each tensor")
                for content in ("{}", '{"weight_map": 3}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 5}}')
            ),
        ],
    )
    def test_a_wrong_index(self, sharded, content, field, reason):
        (sharded / "model.safetensors.index.json").write_text(content)
        assert_refused(sharded, "model.safetensors.index.json", field, reason)

    @staticmethod
    def file_of(folder, name):
        listed = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        return folder / listed[name]
