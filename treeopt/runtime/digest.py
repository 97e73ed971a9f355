"""What a model is known by, wherever it lies and whatever its folder is called: a checksum of what is in its files."""

import hashlib
from pathlib import Path

WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")
HEAD_BYTES = 65_536
SAMPLE_BYTES = 4096
SAMPLES = 32
DIGITS = 16


def model_digest(folder: Path | str) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of `config.json` and of samples of all weights.

    Of every file of weights its name, its size, its head and 32 blocks spread over the rest are read, so that it costs
    the same for models of any size.  Two trainings of one architecture differ in nearly every block.
    """
    found = hashlib.sha256()
    files = sorted(file for file in Path(folder).iterdir() if file.suffix in WEIGHTS or file.name == "config.json")
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            found.update(opened.read(HEAD_BYTES))
            for number in range(SAMPLES if size > HEAD_BYTES else 0):
                opened.seek(HEAD_BYTES + (size - HEAD_BYTES) * number // SAMPLES)
                found.update(opened.read(SAMPLE_BYTES))
    return found.hexdigest()[:DIGITS]
