"""Make the folders of OpenVINO's IR that `treeopt probe openvino` takes from the bundled pair.

    python tools/make_ir.py OUT

It runs in an environment with optimum-intel, which `make engines-openvino` makes.  What is exported are copies whose
tokenizer says what OpenVINO's converter has to know: the class, or else transformers takes it for CodeLlama's, whose
ids the models do not have; a merge, of two bytes that no UTF-8 text has; and a special token, because without one the
converter of openvino-tokenizers 2026.4.1 fails.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PAIR = Path(__file__).resolve().parents[1] / "treeopt" / "bundled"
NEVER = "ÿ"
"""Byte 0xFF, as byte-level tokenizers write it."""
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
    """Export target and draft into folders of these names."""
    (out,) = sys.argv[1:]
    optimum = Path(sys.executable).with_name("optimum-cli")
    for name in ("target", "draft"):
        with TemporaryDirectory() as scratch:
            folder = prepared(PAIR / name, Path(scratch) / name)
            subprocess.run([optimum, "export", "openvino", "--model", folder, *EXPORT, Path(out) / name], check=True)


def prepared(model: Path, folder: Path) -> Path:
    """Copy a model folder, with a tokenizer that can be converted, and return the copy."""
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
