"""A real tokenizer: ids equal those of llama.cpp and transformers, texts round-trip, chats follow the template."""

from pathlib import Path

import numpy as np
import pytest

from tests.real.questions import QUESTIONS

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
ODD = (
    "  two  spaces\n\n\n  tabs\t\t x ",
    "1234567890 3.14159 ٣٤٥ ⅷ ½ x² \U0001d7d8\U0001d7d9 ①②",
    "naïve café — “quotes” 日本語 русский 🎉👩\u200d👩\u200d👧 e\u0301",
    "def f(x):\n    return x**2 + 1  # square\r\n\r\n",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|> <|im_star|>",
    "don't I'LL we've 'tis MiXeD123case_under__score__",
    "a\u00a0b\u3000c\u200bd \x00\x01\x7f\x80 \ud7ff\ue000\uffff\U0010ffff",
    " ",
    "\n",
    "",
)
HEAD = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n"
TAIL = "<|im_end|>\n<|im_start|>assistant\n"


def random_texts():
    """Return texts of ASCII, digits, white space, letters of many scripts and emoji."""
    rng = np.random.default_rng(0)
    ranges = [(32, 127), (9, 14), (32, 33), (48, 58), (0xA0, 0x250), (0x250, 0x3000), (0x1F300, 0x1F700)]
    starts, ends = np.array(ranges).T
    kinds = [rng.integers(0, len(ranges), rng.integers(1, 40)) for _ in range(1000)]
    return ["".join(map(chr, rng.integers(starts[kind], ends[kind]))) for kind in kinds]


@pytest.fixture(scope="module")
def texts():
    pages = [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))[:5]]
    return [*ODD, *QUESTIONS, *pages, Path(__file__).read_text("utf-8"), *random_texts()]


def test_ids_equal_those_of_llama_cpp(tokenizer, gguf_model, texts):
    assert [text for text in texts if tokenizer.encode(text) != gguf_model[1].encode(text)] == []


def test_ids_equal_those_of_transformers(tokenizer, hf_tokenizer, texts):
    assert [text for text in texts if tokenizer.encode(text) != hf_tokenizer(text)["input_ids"]] == []


def test_texts_round_trip_whole_and_as_a_stream(tokenizer, texts):
    assert [text for text in texts if tokenizer.decode(tokenizer.encode(text)) != text] == []
    assert [text for text in texts[:60] if "".join(tokenizer.stream(tokenizer.encode(text))) != text] == []


def test_every_digit_is_a_token_of_its_own(tokenizer):
    """Checks the fixture: a byte-level BPE without SmolLM2's pre-tokenizer joins digits."""
    assert len(tokenizer.encode("20261125")) == 8


def test_chats_follow_the_template(tokenizer, hf_tokenizer):
    for text in (*QUESTIONS, *filter(str.strip, ODD)):
        messages = [{"role": "user", "content": text}]
        theirs = hf_tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        tokens = tokenizer.chat(text)
        assert tokens == theirs
        assert tokenizer.decode(tokens) == HEAD + text + TAIL


def test_chats_of_the_gguf_file_are_those_of_the_folder(tokenizer, gguf_model):
    """Its own template too, not a built-in one of llama.cpp, which leaves the system message out."""
    assert gguf_model[1].has_chat_template
    for text in QUESTIONS[:8]:
        assert gguf_model[1].chat(text) == tokenizer.chat(text)
