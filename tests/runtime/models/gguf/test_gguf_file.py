"""GGUF files as they come: whole, cut off, of another kind; their tokens; pairs of them."""

import json
import shutil
import sys

import pytest

pytest.importorskip("llama_cpp", reason="needs the gguf extra")

from treeopt import bundled
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.records.identity import Identity
from treeopt.records.machine import Machine
from treeopt.runtime import Decoder
from treeopt.runtime.models.gguf import GGUFFile, is_gguf, load_gguf
from treeopt.runtime.models.gguf.library import library
from treeopt.runtime.models.hub import is_hub_name
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.tokenizer import Tokenizer
from treeopt.trees import level_widths

MACHINE = Machine(device="cpu", processor="a", threads=1, system="b", python="c", torch="d")
TEXTS = ["", "def é(x):\n\t…\x00", "🌳🌳 and ∑", " leading", "a\r\nb"]


def refusal(make):
    with pytest.raises(TreeoptError) as caught:
        make()
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestTokens:
    def test_they_are_those_of_the_folder_s_tokenizer(self, gguf_files):
        ours, theirs = GGUFFile(gguf_files()[0]).tokenizer, Tokenizer(bundled.TARGET)
        assert ours.vocabulary == theirs.vocabulary
        for text in TEXTS:
            assert ours.encode(text) == ours.encode_without_special(text) == theirs.encode(text)
            assert ours.decode(ours.encode(text)) == text
            assert "".join(ours.stream(ours.encode(text))) == text

    def test_a_stream_shows_no_half_character(self, gguf_files):
        tokenizer = GGUFFile(gguf_files()[0]).tokenizer
        assert list(tokenizer.stream("aé…".encode())) == ["a", "é", "…"]

    def test_a_file_without_a_chat_template(self, gguf_files):
        tokenizer = GGUFFile(gguf_files()[0]).tokenizer
        assert not tokenizer.has_chat_template
        assert "no chat template. Is it a base model?" in refusal(lambda: tokenizer.chat("hello"))


class TestBadFiles:
    def test_each_is_one_line(self, gguf_files, tmp_path):
        whole = gguf_files()[0].read_bytes()
        cases = {
            "no file": (None, "cannot be read (No such file or directory). Expected a GGUF file."),
            "empty": (b"", "content: expected a GGUF file"),
            "text": (b"hello world", "content: expected a GGUF file"),
            "header": (whole[:20], "content: llama.cpp cannot load it ("),
            "cut in the tokens": (whole[:3000], "content: llama.cpp cannot load it ("),
            "cut in the weights": (whole[:-5000], "content: llama.cpp cannot load it ("),
            "another": (whole.replace(b"llama", b"lxxma"), "unknown model architecture: 'lxxma'"),
        }
        for name, (content, message) in cases.items():
            path = tmp_path / f"{name}.gguf"
            if content is not None:
                path.write_bytes(content)
            for make in (lambda path=path: load_gguf(path), lambda path=path: load_pair(path, path)):
                text = refusal(make)
                assert text.startswith(str(path)), name
                assert message in text, name

    def test_a_folder_of_that_name(self, tmp_path):
        (tmp_path / "x.gguf").mkdir()
        assert "cannot be read (Is a directory)" in refusal(lambda: load_gguf(tmp_path / "x.gguf"))

    def test_without_the_library(self, gguf_files, monkeypatch):
        library.cache_clear()
        monkeypatch.setitem(sys.modules, "llama_cpp", None)
        try:
            assert 'Install it with `pip install "treeopt[gguf]"`' in refusal(lambda: load_gguf(gguf_files()[0]))
        finally:
            library.cache_clear()

    def test_no_name_of_a_file_is_one_of_the_hub(self):
        assert is_gguf("models/x.GGUF")
        assert not is_hub_name("models/x.gguf")


@pytest.mark.parametrize(("features", "extra"), [(b"AVX2 = 1 | AMX_INT8 = 1 |", False), (b"AVX2 = 1 |", True)])
def test_amx_kernels_are_not_used(features, extra, gguf_files, monkeypatch):
    """They end the process with some weights."""
    found, given = library(), []
    load = found.llama_model_load_from_file

    def note(path, options):
        given.append(bool(options.use_extra_bufts))
        return load(path, options)

    monkeypatch.setattr(found, "llama_print_system_info", lambda: features)
    monkeypatch.setattr(found, "llama_model_load_from_file", note)
    assert text_of(load_pair(*gguf_files("q8_0")), 5)
    assert given
    assert set(given) == {extra}


def text_of(pair, count=30):
    decoder = Decoder(pair.target, pair.draft, level_widths([2, 1]), temperature=0)
    return list(decoder.generate(pair.tokenizer.encode("import os\n"), count))


class TestPairs:
    def test_both_are_files(self, gguf_files):
        pair = load_pair(*gguf_files("q8_0"), threads=1)
        assert (pair.target.name, pair.draft.name, pair.notes) == ("target", "draft", ())
        assert (pair.described.dtype, pair.described.vocabulary) == ("q8_0", 256)
        assert pair.described.target_source == str(gguf_files("q8_0")[0])
        assert text_of(pair) == list(
            Decoder(pair.target, None, temperature=0).generate(pair.tokenizer.encode("import os\n"), 30)
        )

    def test_a_file_and_a_folder(self, gguf_files, byte_folders):
        expected = text_of(load_pair(*gguf_files()))
        assert text_of(load_pair(gguf_files()[0], byte_folders[1])) == expected
        assert text_of(load_pair(byte_folders[0], gguf_files()[1])) == expected

    def test_a_folder_with_other_tokens(self, gguf_files, byte_folders, tmp_path):
        other = shutil.copytree(byte_folders[1], tmp_path / "other")
        content = json.loads((other / "tokenizer.json").read_text("utf-8"))
        vocabulary = content["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
        (other / "tokenizer.json").write_text(json.dumps(content), "utf-8")
        assert "2 ids stand for other tokens, the first is 97" in refusal(lambda: load_pair(gguf_files()[0], other))

    def test_a_pair_is_known_by_its_content(self, gguf_files, tmp_path):
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
            ({"dtype": "float32"}, "dtype: expected none, because GGUF files keep theirs. Got float32"),
            ({"device": "cuda"}, "expected to run on cpu"),
            ({"tensor_parallel": True}, "expected to run on cpu"),
            ({"sequence_tokens": 129}, "context: expected room for 129 tokens"),
        ],
        ids=str,
    )
    def test_what_a_file_cannot_do_is_told_before_it_is_loaded(self, gguf_files, options, message, monkeypatch):
        monkeypatch.setattr("treeopt.runtime.models.pair.load_language_model", lambda *_, **__: pytest.fail("loaded"))
        with pytest.raises(InvalidValueError) as caught:
            load_pair(*gguf_files(), **options)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
