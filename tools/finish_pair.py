"""Add the byte tokenizer and the held-out prompts to the bundled pair, and print its sizes and held-out losses.

python tools/finish_pair.py --pair treeopt/bundled
"""

import argparse
from pathlib import Path

from held_out_prompts import held_out_prompts, write_prompts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from train_target import held_out_loss, load_llama

PROMPTS = 32


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose token ids are the bytes of the UTF-8 text."""
    letters = _byte_letters()
    tokenizer = Tokenizer(models.BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_letters() -> list[str]:
    """Return the character of each byte in byte-level tokenizers: itself if printable, else one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="folder of the pair")
    args = parser.parse_args()
    for name in ("target", "draft"):
        byte_tokenizer().save(str(args.pair / name / "tokenizer.json"))
    write_prompts(args.pair / "prompts.json", held_out_prompts(PROMPTS))
    for name in ("target", "draft"):
        model = load_llama(args.pair / name)
        config = model.config
        print(
            f"{name}: {config.num_hidden_layers} layers x {config.hidden_size}, {model.num_parameters():,} parameters, "
            f"held-out loss {held_out_loss(model):.4f} nats per byte"
        )


if __name__ == "__main__":
    main()
