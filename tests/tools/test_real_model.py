"""Folders of GGUF files, the inverse of make_gguf, with tokenizer and chat template."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.scripts import together
from treeopt import bundled
from treeopt.errors import FormatError
from treeopt.runtime.models.folder import ModelFolder

gguf = pytest.importorskip("gguf", reason="needs the gguf extra")
TEMPLATE = "{{ messages[0]['content'] }}"


@pytest.fixture(scope="module")
def scripts():
    """Return the modules real_model and make_gguf."""
    return together("tools", "real_model", "make_gguf")


@pytest.fixture
def make_file(scripts, tmp_path):
    """Return the function that writes the bundled draft model with a larger vocabulary, keys changed, as a GGUF file."""
    make_gguf = scripts[1]

    def add_tokens(writer, source, pre):
        size = len(source.tokenizer.vocabulary)
        tokens = [*source.tokenizer.vocabulary, "<end>", "12"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([1] * size + [3, 1])
        writer.add_token_merges(["1 2"])
        writer.add_eos_token_id(256)
        writer.add_chat_template(TEMPLATE)

    def make(pre="smollm", extra=None):
        source, path = ModelFolder(bundled.DRAFT), tmp_path / "model.gguf"
        with make_gguf.closing(gguf.GGUFWriter(path, "llama")) as writer:
            make_gguf.add_sizes(writer, source.config)
            add_tokens(writer, source, pre)
            for name, tensor in make_gguf.tensors(source):
                writer.add_tensor(name, tensor)
            if extra is not None:
                writer.add_tensor(extra, np.zeros(3, np.float32))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        return path

    return make


def test_weights_and_sizes_are_those_given_to_make_gguf(scripts, make_file, tmp_path):
    scripts[0].write_folder(make_file(), tmp_path / "out")
    before, after = load_file(bundled.DRAFT / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert set(after) == set(before)
    assert all(np.array_equal(after[name], before[name].astype(np.float16)) for name in before)
    old, new = (ModelFolder(folder).config for folder in (bundled.DRAFT, tmp_path / "out"))
    assert new == replace(old, vocabulary=258, end_tokens=(256,))


@pytest.mark.parametrize(("pre", "ids"), [("smollm", 2), ("gpt-2", 1)])
def test_the_pre_tokenizer_splits_digits(scripts, make_file, tmp_path, pre, ids):
    scripts[0].write_folder(make_file(pre), tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert len(tokenizer.encode("12").ids) == ids
    assert tokenizer.encode("a<end>").ids[1:] == [256]
    assert tokenizer.decode(tokenizer.encode("é 12\n<end>").ids, skip_special_tokens=False) == "é 12\n<end>"
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text("utf-8"))
    assert (config["eos_token"], config["chat_template"]) == ("<end>", TEMPLATE)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pre": "llama-bpe"}, r"tokenizer\.ggml\.pre: expected one of smollm, gpt-2\. Got 'llama-bpe'"),
        ({"extra": "blk.0.attn_q.bias"}, r"blk\.0\.attn_q\.bias: expected tensors of a Llama model"),
    ],
    ids=["pre-tokenizer", "bias"],
)
def test_unsupported_files_are_refused_and_nothing_is_written(scripts, make_file, tmp_path, changes, reason):
    with pytest.raises(FormatError, match=reason):
        scripts[0].write_folder(make_file(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()
