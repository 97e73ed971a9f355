"""GGUF files of Llama folders."""

import json
import shutil
from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.scripts import together
from treeopt import bundled
from treeopt.errors import InvalidValueError

gguf = pytest.importorskip("gguf", reason="needs the gguf extra")

SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "head_dim": 16}
HEADS, KEY_VALUE_HEADS = 4, 2


@pytest.fixture(scope="module")
def make_gguf():
    return together("tools", "make_gguf")[0].make_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a tiny model of bytes."""
    path = tmp_path_factory.mktemp("bytes")
    config = json.loads((bundled.TARGET / "config.json").read_text("utf-8"))
    (path / "config.json").write_text(json.dumps({**config, **SIZES, "tie_word_embeddings": True}), "utf-8")
    shutil.copy(bundled.TARGET / "tokenizer.json", path)
    generator = np.random.default_rng(0)
    size, inner, head = 64, 96, 16
    shapes = {
        "model.embed_tokens": (256, size),
        "model.norm": (size,),
        "model.layers.0.input_layernorm": (size,),
        "model.layers.0.self_attn.q_proj": (HEADS * head, size),
        "model.layers.0.self_attn.k_proj": (KEY_VALUE_HEADS * head, size),
        "model.layers.0.self_attn.v_proj": (KEY_VALUE_HEADS * head, size),
        "model.layers.0.self_attn.o_proj": (size, HEADS * head),
        "model.layers.0.post_attention_layernorm": (size,),
        "model.layers.0.mlp.gate_proj": (inner, size),
        "model.layers.0.mlp.up_proj": (inner, size),
        "model.layers.0.mlp.down_proj": (size, inner),
    }
    weights = {f"{name}.weight": generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, path / "model.safetensors")
    return path


def read(path):
    """Return the reader of a file, and each tensor in float32."""
    reader = gguf.GGUFReader(path)
    return reader, {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


@pytest.mark.parametrize(("dtype", "max_error"), [("f32", 0), ("f16", 1e-3), ("q8_0", 0.02)])
def test_weights_have_llama_cpps_layout(make_gguf, folder, tmp_path, dtype, max_error):
    make_gguf(folder, tmp_path / "model.gguf", dtype)
    reader, tensors = read(tmp_path / "model.gguf")
    weights = load_file(folder / "model.safetensors")
    assert len(tensors) == len(weights)
    np.testing.assert_array_equal(tensors["blk.0.attn_norm.weight"], weights["model.layers.0.input_layernorm.weight"])
    np.testing.assert_allclose(
        tensors["blk.0.ffn_down.weight"],
        weights["model.layers.0.mlp.down_proj.weight"],
        atol=3 * max_error,
        rtol=max_error,
    )
    assert {str(tensor.tensor_type.name).lower() for tensor in reader.tensors if len(tensor.shape) > 1} == {dtype}
    for name, heads in (("q", HEADS), ("k", KEY_VALUE_HEADS)):
        expected = weights[f"model.layers.0.self_attn.{name}_proj.weight"].reshape(heads, 16, 64)
        interleaved = tensors[f"blk.0.attn_{name}.weight"].reshape(heads, 16, 64)
        for pair in range(8):  # the two entries rotated by one angle
            np.testing.assert_allclose(interleaved[:, 2 * pair], expected[:, pair], atol=3 * max_error, rtol=max_error)
            np.testing.assert_allclose(
                interleaved[:, 2 * pair + 1], expected[:, pair + 8], atol=3 * max_error, rtol=max_error
            )


def test_sizes_and_tokens_are_those_of_the_folder(make_gguf, folder, tmp_path):
    make_gguf(folder, tmp_path / "model.gguf", "f16")
    fields = read(tmp_path / "model.gguf")[0].fields
    expected = {
        "general.architecture": "llama",
        "llama.context_length": 1024,
        "llama.embedding_length": 64,
        "llama.block_count": 1,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KEY_VALUE_HEADS,
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.eos_token_id": 0,
    }
    assert {name: fields[name].contents() for name in expected} == expected
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert (
        dict(zip(tokens, range(256), strict=True))
        == json.loads((bundled.TARGET / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    )


@pytest.fixture
def file_with_tokenizer(tmp_path):
    """Return a function that writes a GGUF file with some tokens, a template and an array of every kind."""

    def write(tokens):
        path = tmp_path / "other.gguf"
        with closing(gguf.GGUFWriter(path, "llama")) as writer:
            writer.add_context_length(77)
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("smollm")
            writer.add_token_list(tokens)
            writer.add_token_types([3, *[1] * (len(tokens) - 1)])
            writer.add_token_merges(["a b", "c d"])
            writer.add_eos_token_id(9)
            writer.add_chat_template("{{ messages }}")
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        return path

    return write


def byte_tokens():
    numbers = json.loads((bundled.TARGET / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    return sorted(numbers, key=numbers.__getitem__)


def test_only_the_tokenizer_of_another_file_is_copied(make_gguf, folder, tmp_path, file_with_tokenizer):
    other = file_with_tokenizer(byte_tokens())
    make_gguf(folder, tmp_path / "model.gguf", "f16", tokenizer=other)
    fields, expected = read(tmp_path / "model.gguf")[0].fields, read(other)[0].fields
    copied = {name for name in expected if name.startswith("tokenizer.")}
    assert copied == {name for name in fields if name.startswith("tokenizer.")}
    assert len(copied) == 7
    for name in copied:
        assert (fields[name].contents(), fields[name].types) == (expected[name].contents(), expected[name].types)
    assert fields["llama.context_length"].contents() == 1024


@pytest.mark.parametrize("change", [lambda tokens: [*tokens, "more"], lambda tokens: tokens[::-1]])
def test_tokenizer_with_other_tokens_is_refused(make_gguf, folder, tmp_path, file_with_tokenizer, change):
    other = file_with_tokenizer(change(byte_tokens()))
    with pytest.raises(InvalidValueError, match="same tokenizer"):
        make_gguf(folder, tmp_path / "model.gguf", "f16", tokenizer=other)
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize(
    "changes", [{"attention_bias": True}, {"architectures": ["Qwen3ForCausalLM"]}, {"vocab_size": 300}], ids=str
)
def test_another_model_is_refused_and_nothing_is_written(make_gguf, folder, tmp_path, changes):
    other = shutil.copytree(folder, tmp_path / "other")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (other / "config.json").write_text(json.dumps({**config, **changes}), "utf-8")
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidValueError, match=r"convert_hf_to_gguf"):
        make_gguf(other, tmp_path / "out" / "model.gguf", "f32")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_interrupted_conversion_leaves_no_file(make_gguf, folder, tmp_path, monkeypatch):
    def broken(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", broken)
    with pytest.raises(KeyboardInterrupt):
        make_gguf(folder, tmp_path / "model.gguf", "f32")
    assert list(tmp_path.iterdir()) == []
