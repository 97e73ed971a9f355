"""Export the bundled pair to OpenVINO IR folders for `treeopt probe openvino`.

    python tools/make_ir.py OUT

It needs an environment with optimum-intel, which `make engines-openvino` creates. The tokenizers are changed before the
export: a class, because transformers otherwise assumes CodeLlama's; a merge of two bytes that UTF-8 never contains; and a
special token, without which the converter of openvino-tokenizers 2026.4.1 fails.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PAIR = Path(__file__).resolve().parents[1] / "treeopt" / "bundled"
NEVER = "ÿ"
"""The byte 0xFF in byte-level tokenizers."""
SPECIAL = {
    "content": "<|never|>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": True,
}
EXPORT = ("--task", "text-generation-with-past", "--weight-format", "fp32")


def main() -> None:
    (out,) = sys.argv[1:]
    optimum = Path(sys.executable).with_name("optimum-cli")
    for name in ("target", "draft"):
        with TemporaryDirectory() as scratch:
            folder = copy_model(PAIR / name, Path(scratch) / name)
            subprocess.run([optimum, "export", "openvino", "--model", folder, *EXPORT, Path(out) / name], check=True)


def copy_model(model: Path, folder: Path) -> Path:
    """Copy a model folder with a convertible tokenizer, and return the copy."""
    shutil.copytree(model, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[NEVER + NEVER] = len(vocabulary)
    tokenizer["model"]["merges"] = [[NEVER, NEVER]]
    tokenizer["added_tokens"] = [SPECIAL | {"id": len(vocabulary)}]
    path.write_text(json.dumps(tokenizer), "utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', "utf-8")
    return folder


if __name__ == "__main__":
    main()
