"""Add to the bundled pair what is not trained: the byte tokenizer and the held-out prompts.

python tools/finish_pair.py --pair treeopt/bundled
"""

import argparse
import json
from pathlib import Path

import corpus
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PROMPTS = 32
PROMPT_BYTES = 224


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose token ids are the bytes of the UTF-8 text."""
    letters = _byte_letters()
    tokenizer = Tokenizer(models.BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_letters() -> list[str]:
    """Return the letter that byte-level tokenizers write for each byte: itself where it prints, else one from 256 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def held_out_prompts() -> list[dict[str, str]]:
    """Return excerpts of held-out files, evenly spread, each cut at line ends."""
    prompts = []
    for path, text in corpus.source_files():
        if not corpus.is_held_out(path) or not text.isascii():
            continue
        for start in range(0, len(text) - 4 * PROMPT_BYTES, 12 * PROMPT_BYTES):
            first = text.find("\n", start) + 1
            excerpt = text[first : first + PROMPT_BYTES]
            prompts.append({"source": path, "text": excerpt[: excerpt.rfind("\n") + 1]})
    usable = [prompt for prompt in prompts if len(prompt["text"]) > PROMPT_BYTES // 2]
    return [usable[i * len(usable) // PROMPTS] for i in range(PROMPTS)]


def main() -> None:
    """Write tokenizer and prompts into the pair's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, required=True)
    options = parser.parse_args()
    for model in ("target", "draft"):
        byte_tokenizer().save(str(options.pair / model / "tokenizer.json"))
    text = json.dumps(held_out_prompts(), indent=1, ensure_ascii=True)
    (options.pair / "prompts.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
