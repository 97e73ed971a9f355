"""Write prompts for the bundled pair: excerpts of files that it was not trained on.

python tools/held_out_prompts.py --count 128 --output prompts.json
"""

import argparse
import json
from pathlib import Path

import corpus

PROMPT_BYTES = 224
APART_BYTES = 12 * PROMPT_BYTES
"""Between the starts of two excerpts of a file."""


def held_out_prompts(count: int, apart_bytes: int = APART_BYTES) -> list[dict[str, str]]:
    """Return `count` excerpts of held-out files, evenly spread, each cut at line ends.

    Raises ValueError if there are fewer.
    """
    prompts = []
    for path, text in corpus.source_files():
        if not corpus.is_held_out(path) or not text.isascii():
            continue
        for start in range(0, len(text) - 4 * PROMPT_BYTES, apart_bytes):
            first = text.find("\n", start) + 1
            excerpt = text[first : first + PROMPT_BYTES]
            prompts.append({"source": path, "text": excerpt[: excerpt.rfind("\n") + 1]})
    usable = [prompt for prompt in prompts if len(prompt["text"]) > PROMPT_BYTES // 2]
    if len(usable) < count:
        raise ValueError(f"count: expected at most {len(usable)} that are {apart_bytes} bytes apart. Got {count}.")
    return [usable[i * len(usable) // count] for i in range(count)]


def write_prompts(path: Path, prompts: list[dict[str, str]]) -> None:
    """Write a file for `treeopt profile --prompts`."""
    path.write_text(json.dumps(prompts, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=128, help="default: %(default)s")
    parser.add_argument(
        "--apart-bytes",
        type=int,
        default=4 * PROMPT_BYTES,
        help="between the starts of two excerpts of a file (default: %(default)s)",
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    try:
        prompts = held_out_prompts(args.count, args.apart_bytes)
    except ValueError as error:
        parser.error(str(error))
    write_prompts(args.output, prompts)


if __name__ == "__main__":
    main()
