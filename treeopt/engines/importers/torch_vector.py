"""Sequoia's acceptance vector: one tensor, or a list of numbers, in a torch file (Chen et al., 2024)."""

import io
import warnings
from pathlib import Path

from treeopt.engines.importers.foreign_file import ForeignFile
from treeopt.engines.importers.importer import Measurements
from treeopt.engines.importers.plain_acceptance import vector_acceptance
from treeopt.errors import FormatError
from treeopt.trees.formats.torch_pickle import LEGACY_START, inspect_torch_file

ZIP_START = b"PK"
MAX_RANKS = 100_000


def is_torch_vector(file: ForeignFile) -> bool:
    """Return whether a file begins as a torch file does, or as any pickle."""
    return file.data.startswith((ZIP_START, LEGACY_START, b"\x80"))


def read_torch_vector(file: ForeignFile) -> Measurements:
    """Return the acceptance of a torch file, whichever device it was saved on; nothing in it is executed.

    Raises FormatError for anything but one row of finite numbers.
    """
    return Measurements(acceptance=vector_acceptance(file, _numbers(file.path, file.data)))


def _numbers(path: Path | str, data: bytes) -> list[float]:
    inspect_torch_file(Path(path), io.BytesIO(data))
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            vector = content if isinstance(content, torch.Tensor) else torch.tensor(content, dtype=torch.float64)
            fits = vector.ndim == 1 and 0 < vector.numel() <= MAX_RANKS  # before an expanded tensor is copied
            fine = fits and bool(torch.isfinite(vector).all())
            values: list[float] = vector.detach().to(torch.float64).tolist() if fine else []
    except Exception as error:  # noqa: BLE001, a torn pickle raises whatever its bytes lead to
        reason = f"expected one row of numbers ({type(error).__name__}). Is it an acceptance vector?"
        raise FormatError(path, "content", reason) from None
    if not values:
        raise FormatError(path, "content", "expected one row of finite numbers. Got another tensor: is it a vector?")
    return values
