"""GGUF files: their tokens, truncated and other files, and pairs of them."""

import json
import shutil
import sys

import pytest

pytest.importorskip("llama_cpp", reason="needs the gguf extra")

from tests.runtime.models.gguf.conftest import SIZES
from tests.scripts import together
from treeopt import bundled
from treeopt.errors import TreeoptError
from treeopt.records.identity import Identity
from treeopt.records.machine import Machine
from treeopt.runtime import Decoder
from treeopt.runtime.models.gguf import GGUFFile, is_gguf, load_gguf
from treeopt.runtime.models.gguf.library import library
from treeopt.runtime.models.load import is_hub_name
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.tokenizer import Tokenizer
from treeopt.trees import level_widths

MACHINE = Machine(device="cpu", processor="a", threads=1, system="b", python="c", torch="d")
TEXTS = ["", "def é(x):\n\t…\x00", "🌳🌳 and ∑", " leading", "a\r\nb"]


def load_error(load):
    with pytest.raises(TreeoptError) as caught:
        load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestTokens:
    def test_tokens_equal_those_of_the_folder(self, gguf_files):
        ours, reference = GGUFFile(gguf_files()[0]).tokenizer, Tokenizer(bundled.TARGET)
        assert ours.vocabulary == reference.vocabulary
        for text in TEXTS:
            assert ours.encode(text) == ours.encode_without_special(text) == reference.encode(text)
            assert ours.decode(ours.encode(text)) == text
        assert list(ours.stream("aé…".encode())) == ["a", "é", "…"]

    def test_file_without_a_chat_template(self, gguf_files):
        tokenizer = GGUFFile(gguf_files()[0]).tokenizer
        assert not tokenizer.has_chat_template
        assert "no chat template. Is it a base model?" in load_error(lambda: tokenizer.chat("hello"))


class TestRefusals:
    CASES = (
        (None, "cannot be read (No such file or directory). Expected a GGUF file."),
        (lambda _: b"", "content: expected a GGUF file"),
        (lambda _: b"hello world", "content: expected a GGUF file"),
        (lambda whole: whole[:20], "content: llama.cpp cannot load it ("),
        (lambda whole: whole[:3000], "content: llama.cpp cannot load it ("),
        (lambda whole: whole[:-5000], "content: llama.cpp cannot load it ("),
        (lambda whole: whole.replace(b"llama", b"lxxma"), "unknown model architecture: 'lxxma'"),
    )

    @pytest.mark.parametrize(
        ("change", "message"),
        CASES,
        ids=["missing", "empty", "text", "cut in the header", "cut in the tokens", "cut in the weights", "another"],
    )
    def test_broken_file_is_refused_in_one_line(self, gguf_files, tmp_path, change, message):
        path = tmp_path / "x.gguf"
        if change is not None:
            path.write_bytes(change(gguf_files()[0].read_bytes()))
        for load in (load_gguf, lambda path: load_pair(path, path)):
            error = load_error(lambda load=load: load(path))
            assert error.startswith(str(path))
            assert message in error

    def test_folder_with_the_suffix_is_refused(self, tmp_path):
        (tmp_path / "x.gguf").mkdir()
        assert "cannot be read (Is a directory)" in load_error(lambda: load_gguf(tmp_path / "x.gguf"))

    def test_error_names_the_missing_extra(self, gguf_files, monkeypatch):
        library.cache_clear()
        monkeypatch.setitem(sys.modules, "llama_cpp", None)
        try:
            assert 'Install it with `pip install "treeopt[gguf]"`' in load_error(lambda: load_gguf(gguf_files()[0]))
        finally:
            library.cache_clear()

    def test_gguf_path_is_not_a_hub_name(self):
        assert is_gguf("models/x.GGUF")
        assert not is_hub_name("models/x.gguf")


@pytest.mark.parametrize(("features", "extra"), [(b"AVX2 = 1 | AMX_INT8 = 1 |", False), (b"AVX2 = 1 |", True)])
def test_amx_kernels_are_not_used(features, extra, gguf_files, monkeypatch):
    """They end the process with some weights."""
    llama, passed = library(), []
    load = llama.llama_model_load_from_file

    def record_option(path, options):
        passed.append(bool(options.use_extra_bufts))
        options.use_extra_bufts = False  # this machine may have AMX
        return load(path, options)

    monkeypatch.setattr(llama, "llama_print_system_info", lambda: features)
    monkeypatch.setattr(llama, "llama_model_load_from_file", record_option)
    assert decode(load_pair(*gguf_files("q8_0")), 5)
    assert set(passed) == {extra}


def decode(pair, count=30):
    decoder = Decoder(pair.target, pair.draft, level_widths([2, 1]), temperature=0)
    return list(decoder.generate(pair.tokenizer.encode("import os\n"), count))


class TestPairs:
    def test_pair_of_files(self, gguf_files):
        pair = load_pair(*gguf_files("q8_0"), threads=1)
        assert (pair.target.name, pair.draft.name, pair.notes) == ("target", "draft", ())
        assert (pair.described.dtype, pair.described.vocabulary) == ("q8_0", 256)
        assert pair.described.target_source == str(gguf_files("q8_0")[0])
        assert decode(pair) == list(
            Decoder(pair.target, None, temperature=0).generate(pair.tokenizer.encode("import os\n"), 30)
        )

    def test_file_and_folder(self, gguf_files, byte_folders):
        expected = decode(load_pair(*gguf_files()))
        assert decode(load_pair(gguf_files()[0], byte_folders[1])) == expected
        assert decode(load_pair(byte_folders[0], gguf_files()[1])) == expected

    def test_folder_with_other_tokens_is_refused(self, gguf_files, byte_folders, tmp_path):
        other = shutil.copytree(byte_folders[1], tmp_path / "other")
        content = json.loads((other / "tokenizer.json").read_text("utf-8"))
        vocabulary = content["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        (other / "tokenizer.json").write_text(json.dumps(content), "utf-8")
        assert "2 ids stand for other tokens, the first is 97" in load_error(lambda: load_pair(gguf_files()[0], other))

    def test_identity_depends_on_the_content(self, gguf_files, tmp_path):
        moved = [shutil.copy(path, tmp_path / f"moved-{path.name}") for path in gguf_files()]
        one, two, three = (
            Identity.of(load_pair(*paths).described, MACHINE) for paths in (gguf_files(), moved, gguf_files("f16"))
        )
        assert one.same_pair(two)
        assert not one.same_pair(three)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "bfloat16"}, "dtype: expected none, because GGUF files keep theirs. Got bfloat16"),
            ({"device": "cuda"}, "expected to run on cpu, as GGUF models do. Got cuda: leave the option out."),
            ({"tensor_parallel": True}, "expected to run on cpu, as GGUF models do. Got several devices: leave"),
            ({"sequence_tokens": 129}, "context: expected room for 129 tokens"),
        ],
        ids=str,
    )
    def test_unsupported_option_is_refused_before_loading(self, gguf_files, options, message, monkeypatch):
        monkeypatch.setattr("treeopt.runtime.models.pair.load_language_model", lambda *_, **__: pytest.fail("loaded"))
        assert message in load_error(lambda: load_pair(*gguf_files(), **options))


def test_cache_bytes_count_heads_of_any_size(make_checkpoint, tmp_path):
    make_gguf = together("tools", "make_gguf")[0].make_gguf
    folder = make_checkpoint(seed=1, tie_word_embeddings=False, **SIZES | {"head_dim": 32})
    shutil.copy(bundled.TARGET / "tokenizer.json", folder)
    make_gguf(folder, tmp_path / "m.gguf", "f32")
    model, config = load_gguf(tmp_path / "m.gguf"), json.loads((folder / "config.json").read_text())
    numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * 32
    assert config["hidden_size"] // config["num_attention_heads"] != 32
    assert model.cache_bytes(10) == 4 * 10 * numbers
