"""Rows of Hugging Face datasets: folders of `save_to_disk`, read with datasets or pyarrow, and parquet files."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from treeopt.errors import FormatError, TreeoptError
from treeopt.files.fields import MISSING
from treeopt.files.json_file import read_object

STATE = "state.json"
SPLITS = "dataset_dict.json"
STATE_MAX_BYTES = 16_000_000
BATCH_ROWS = 64


def is_saved_dataset(folder: Path) -> bool:
    """Return whether datasets' `save_to_disk` wrote a folder: one dataset, or one per split."""
    return (folder / STATE).is_file() or (folder / SPLITS).is_file()


def arrow_rows(folder: Path) -> Iterator[object]:
    """Return the rows of a saved dataset, or of the first of several splits.

    Raises TreeoptError if neither datasets nor pyarrow is installed, FormatError if the dataset cannot be read.
    """
    folder = _first_split(folder)
    datasets = _import_if_installed("datasets")
    if datasets is None:
        return _stream_rows(folder)
    try:
        return iter(datasets.load_from_disk(str(folder)))
    except Exception as error:  # noqa: BLE001, the library's errors have no base
        raise FormatError(folder, "dataset", f"cannot be read ({error}).") from None


def parquet_rows(path: Path) -> Iterator[object]:
    """Yield the rows of a parquet file; raises as `arrow_rows` does."""
    parquet = _import_if_installed("pyarrow.parquet")
    if parquet is None:
        raise TreeoptError(f"{path}: parquet files are read by pyarrow. Install it, or write the prompts as .jsonl.")
    try:
        with parquet.ParquetFile(str(path)) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from batch.to_pylist()
    except (ValueError, OSError, NotImplementedError) as error:  # the bases of pyarrow's errors
        raise FormatError(path, "content", f"expected parquet ({error}).") from None


def _stream_rows(folder: Path) -> Iterator[object]:
    arrow = _import_if_installed("pyarrow")
    if arrow is None:
        raise TreeoptError(
            f"{folder}: a saved dataset is read by datasets or pyarrow. Install one, or write the prompts as .jsonl."
        )
    entries = _read_field(folder / STATE, "_data_files")
    for entry in entries if isinstance(entries, list) else []:
        path = folder / Path(str(entry.get("filename") if isinstance(entry, dict) else entry)).name
        try:
            with arrow.memory_map(str(path)) as source:
                for batch in arrow.ipc.open_stream(source):
                    yield from batch.to_pylist()
        except (ValueError, OSError, NotImplementedError) as error:
            raise FormatError(path, "content", f"expected an arrow stream ({error}).") from None


def _first_split(folder: Path) -> Path:
    if (folder / STATE).is_file():
        return folder
    splits = _read_field(folder / SPLITS, "splits")
    if not isinstance(splits, list) or not splits or not (folder / Path(str(splits[0])).name / STATE).is_file():
        raise FormatError(folder / SPLITS, "splits", "expected the names of folders that save_to_disk wrote.")
    return folder / Path(str(splits[0])).name


def _read_field(path: Path, field: str) -> object:
    content = read_object(path, limit_bytes=STATE_MAX_BYTES)
    if field not in content:
        raise FormatError(path, field, MISSING)
    return content[field]


def _import_if_installed(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
