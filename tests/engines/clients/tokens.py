"""Copies of the bundled models whose tokenizers differ."""

import json
import shutil
from pathlib import Path
from typing import Any


def swap_tokens(tokenizer: dict[str, Any]) -> None:
    """Exchange two tokens of a `tokenizer.json`."""
    ids = tokenizer["model"]["vocab"]
    first, second = (token for token, number in ids.items() if number in (97, 98))
    ids[first], ids[second] = ids[second], ids[first]


def copy_with_swapped_tokens(source: Path, folder: Path) -> Path:
    """Return a copy of a model folder in which two tokens are exchanged."""
    shutil.copytree(source, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    swap_tokens(tokenizer)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    return folder
