"""What a model is known by, wherever it lies and whatever its folder is called: a checksum of what is in its files."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from treeopt.files.json_file import read_object
from treeopt.runtime.models.config import CONFIG

HEAD_BYTES = 65_536
SAMPLE_BYTES = 4096
SAMPLES = 32
DIGITS = 16


def model_digest(config: dict[str, Any], weight_files: Iterable[Path]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a configuration and of samples of all weights.

    Of every file of weights its name, its size, its head and 32 blocks spread over the rest are read, so that it costs
    the same for models of any size.  Two trainings of one architecture differ in nearly every block.

    Args:
        config: what `config.json` holds.
        weight_files: in any order.
    """
    found = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for file in sorted(weight_files):
        found.update(f"{file.name} ".encode())
        _add_samples(found, file)
    return found.hexdigest()[:DIGITS]


def file_digest(path: Path) -> str:
    """Return the digits of one file that holds configuration and weights, whatever it is called."""
    found = hashlib.sha256()
    _add_samples(found, path)
    return found.hexdigest()[:DIGITS]


def path_digest(path: str | None) -> str | None:
    """Return the digits of a model in any form that engines take: a file, or a folder, Hugging Face's or OpenVINO's.

    None for a name, a folder without weights, and what is not here.
    """
    found = None if path is None else Path(path)
    if found is None or not found.is_dir():
        return file_digest(found) if found is not None and found.is_file() else None
    weights = [*found.glob("*.safetensors")] or [*found.glob("*.bin"), *found.glob("*.xml")]
    config = found / CONFIG
    return model_digest(read_object(config) if config.is_file() else {}, weights) if weights else None


def _add_samples(found: "hashlib._Hash", file: Path) -> None:
    """Add the size of a file, its head, and blocks spread over the rest."""
    size = file.stat().st_size
    found.update(f"{size} ".encode())
    with file.open("rb") as opened:
        found.update(opened.read(HEAD_BYTES))
        for number in range(SAMPLES if size > HEAD_BYTES else 0):
            opened.seek(HEAD_BYTES + (size - HEAD_BYTES) * number // SAMPLES)
            found.update(opened.read(SAMPLE_BYTES))
