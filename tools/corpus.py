"""Training corpus of the bundled pair: the sources of the Python standard library.

The CRC-32 of a file's relative path decides whether it is held out, so the split is the same on every machine.
"""

import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

SEPARATOR = 0
"""Byte written before every file: the pair's start and end token."""

EXCLUDED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "__pycache__", "pydoc_data", "encodings"})
HELD_OUT_SHARE = 1 / 32


def source_files() -> Iterator[tuple[str, str]]:
    """Yield (relative path, content) of every source file except tests and generated tables, sorted."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if EXCLUDED_FOLDERS.isdisjoint(relative.parts):
            yield relative.as_posix(), path.read_text("utf-8", errors="ignore")


def is_held_out(relative_path: str) -> bool:
    return zlib.crc32(relative_path.encode()) < HELD_OUT_SHARE * 2**32


def byte_stream(*, held_out: bool) -> torch.Tensor:
    """Return one part of the corpus as uint8 (n,), each file after a separator, in a fixed shuffled order."""
    files = [text for path, text in source_files() if is_held_out(path) == held_out]
    order = np.random.default_rng(0).permutation(len(files))
    content = b"".join(bytes([SEPARATOR]) + files[i].encode() for i in order)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def windows(stream: torch.Tensor, window_tokens: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield int64 windows (window_tokens + 1,) without end; every epoch has a new random order and offset."""
    while True:
        offset = int(torch.randint(window_tokens, (1,), generator=generator))
        starts = torch.arange(offset, len(stream) - window_tokens - 1, window_tokens)
        for start in starts[torch.randperm(len(starts), generator=generator)].tolist():
            yield stream[start : start + window_tokens + 1].long()
