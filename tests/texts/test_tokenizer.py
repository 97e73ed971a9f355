"""Tokenizers of any folder, and messages in chat templates."""

import json
import sys

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import Metaspace, Whitespace
from tokenizers.processors import TemplateProcessing

from treeopt import bundled
from treeopt.errors import FormatError, TreeoptError
from treeopt.texts.chat_template import render_message, special_tokens
from treeopt.texts.tokenizer import Tokenizer

WORDS = ["<s>", "</s>", "[user]", "[answer]", "hello", "world", "<unk>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[user] {{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}"
)


def save_words(folder, **settings):
    """Write a tokenizer of whole words that puts <s> at the start."""
    tokenizer = FastTokenizer(WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:4]])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4, pad_token="</s>", pad_id=1)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | settings), "utf-8")
    return folder


class TestFast:
    def test_special_tokens_are_added_without_truncation_and_padding(self, tmp_path):
        tokenizer = Tokenizer(save_words(tmp_path))
        assert tokenizer.encode("hello world") == [0, 4, 5]
        assert tokenizer.encode("hello " * 9) == [0] + [4] * 9
        assert tokenizer.encode_without_special("hello world") == [4, 5]
        assert tokenizer.vocabulary == {word: index for index, word in enumerate(WORDS)}

    @pytest.mark.parametrize("text", ["€ and ∑", "a🌳b", "é€🌳"])
    def test_stream_yields_whole_characters(self, text):
        tokenizer = Tokenizer(bundled.TARGET)
        tokens = tokenizer.encode_without_special(text)
        assert len(tokens) > len(text)  # a character is several tokens
        assert list(tokenizer.stream(iter(tokens))) == list(text)

    def test_incomplete_last_character_is_shown(self):
        tokenizer = Tokenizer(bundled.TARGET)
        assert list(tokenizer.stream(tokenizer.encode_without_special("a🌳")[:-1])) == ["a", "\ufffd"]

    def test_missing_and_invalid_files_are_named(self, tmp_path):
        with pytest.raises(TreeoptError, match=r"tokenizer.json: no such file. Expected the model's tokenizer"):
            Tokenizer(tmp_path)
        (tmp_path / "tokenizer.json").write_bytes(b"\x00\xff")
        with pytest.raises(FormatError, match=r"tokenizer.json: content: expected a fast tokenizer"):
            Tokenizer(tmp_path)


def test_stream_keeps_the_space_after_a_prompt(tmp_path):
    """The decoder drops the space before the first word of a text, as those of SentencePiece do."""
    model = FastTokenizer(BPE({"▁a": 0, "▁b": 1, "▁": 2, "a": 3, "b": 4}, [("▁", "a"), ("▁", "b")]))
    model.pre_tokenizer, model.decoder = Metaspace(), MetaspaceDecoder()
    model.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    prompt, text = tokenizer.encode("a b"), tokenizer.encode("a b a b")
    assert "a b" + "".join(tokenizer.stream(text[2:], after=prompt)) == "a b a b"
    assert "".join(tokenizer.stream([0, 1])) == "a b"


class TestThroughTransformers:
    @pytest.fixture
    def folder(self, tmp_path):
        content = json.loads((bundled.TARGET / "tokenizer.json").read_text("utf-8"))
        (tmp_path / "vocab.json").write_text(json.dumps(content["model"]["vocab"]), "utf-8")
        (tmp_path / "merges.txt").write_text("#version: 0.2\n", "utf-8")
        (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', "utf-8")
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}', "utf-8")
        return tmp_path

    def test_folder_without_tokenizer_json_is_read(self, folder):
        pytest.importorskip("transformers", reason="needs the hf extra")
        tokenizer, text = Tokenizer(folder), "def é(x): …"
        assert not tokenizer.has_chat_template
        ids = tokenizer.vocabulary
        assert all(ids[token] == index for token, index in Tokenizer(bundled.TARGET).vocabulary.items())
        assert tokenizer.encode(text) == tokenizer.encode_without_special(text) == list(text.encode())
        assert tokenizer.decode(text.encode()) == text

    def test_missing_package_is_named(self, folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        with pytest.raises(TreeoptError, match=r"without tokenizer.json needs transformers. Install treeopt\[hf\]"):
            Tokenizer(folder)

    def test_invalid_file_is_refused(self, tmp_path):
        pytest.importorskip("transformers", reason="needs the hf extra")
        (tmp_path / "tokenizer.model").write_bytes(b"\x00\xff")
        with pytest.raises(FormatError, match="tokenizer: transformers cannot read it"):
            Tokenizer(tmp_path)


class TestChat:
    def test_template_contains_the_beginning_token(self, tmp_path, monkeypatch):
        """Transformers is not needed."""
        monkeypatch.setitem(sys.modules, "transformers", None)
        folder = save_words(tmp_path, chat_template=TEMPLATE)
        assert Tokenizer(folder).chat("hello world") == [0, 2, 4, 5, 3]

    def test_template_in_a_file_of_its_own(self, tmp_path):
        (save_words(tmp_path) / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
        assert Tokenizer(tmp_path).has_chat_template
        assert Tokenizer(tmp_path).chat("hello") == [0, 2, 4, 3]

    def test_folder_without_template_is_refused(self, tmp_path):
        tokenizer = Tokenizer(save_words(tmp_path))
        assert not tokenizer.has_chat_template
        with pytest.raises(TreeoptError, match=r"no chat template. Is it a base model"):
            tokenizer.chat("hello")
        (tmp_path / "tokenizer_config.json").unlink()
        assert not Tokenizer(tmp_path).has_chat_template
        (tmp_path / "tokenizer_config.json").write_text("{", "utf-8")
        with pytest.raises(FormatError, match=r"tokenizer_config.json: content: expected JSON"):
            _ = Tokenizer(tmp_path).has_chat_template

    @pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% if %}", "{{ messages.__class__.mro() }}"])
    def test_template_that_fails_is_refused(self, tmp_path, template):
        with pytest.raises(FormatError, match=r"chat_template: cannot be rendered .*--no-chat"):
            Tokenizer(save_words(tmp_path, chat_template=template)).chat("hello")

    def test_default_template_of_several_is_used(self, tmp_path):
        several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}]
        assert Tokenizer(save_words(tmp_path, chat_template=several)).chat("hello") == [0, 2, 4, 3]
        for template in ([], several[:1]):
            assert not Tokenizer(save_words(tmp_path, chat_template=template)).has_chat_template
        with pytest.raises(FormatError, match="chat_template: expected a text, or a list with one named default"):
            Tokenizer(save_words(tmp_path, chat_template=4)).chat("hello")

    @pytest.mark.parametrize(
        "template",
        [
            (
                "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
            ),
            (
                "{{ bos_token }}{% for m in messages %}\n  {%- if m.role == 'user' %}\n[INST] {{ m.content | trim }} [/INST]"
                "{{ eos_token }}\n  {% endif %}\n{% endfor %}"
            ),
            "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}{{ messages | tojson }}",
            "{{ messages | tojson(indent=2) }}{% if tools is not none %}tools{% endif %}{{ documents is defined }}",
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}{{ strftime_now('%Y') }}",
            "{% generation %}{{ messages[0].content }}{% endgeneration %}",
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        ],
    )
    def test_templates_are_rendered_as_transformers_render_them(self, tmp_path, template):
        transformers = pytest.importorskip("transformers", reason="needs the hf extra")
        folder = save_words(
            tmp_path, chat_template=template, bos_token="<s>", eos_token={"__type": "AddedToken", "content": "</s>"}
        )
        for text in ("hello", 'a <b> & "é" 漢\n  c '):
            messages = [{"role": "user", "content": text}]
            reference = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
            expected = reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            assert render_message(template, text, special_tokens(folder)) == expected
