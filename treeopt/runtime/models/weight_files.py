"""The safetensors files of a model folder: which of them holds each tensor."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from treeopt.errors import FormatError, TreeoptError
from treeopt.files.json_file import read_object

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
INDEX_MAX_BYTES = 64_000_000


def find_weight_files(folder: Path) -> dict[str, Path]:
    """Return the file that holds each tensor, after a look at the header of all: the single file, or the shards.

    Raises TreeoptError without weights, FormatError naming the file that is missing, cut off or not as the index says.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():  # which transformers takes first as well
        return dict.fromkeys(open_safetensors(single).keys(), single)
    if index.is_file():
        return _find_indexed_files(index)
    if any(folder.glob("pytorch_model*.bin")):
        raise TreeoptError(f"{folder}: only pytorch_model.bin. Expected safetensors: convert with `save_pretrained`.")
    raise TreeoptError(f"{folder}: no model.safetensors. Expected a model folder in Hugging Face layout.")


def open_safetensors(path: Path, device: str = "cpu") -> Any:
    """Return a safetensors file whose header is whole and fits its length; raises FormatError where it does not."""
    if not path.is_file():
        raise FormatError(path, "header", "cannot be read (no such file). Is the download complete?")
    try:
        return safe_open(path, framework="pt", device=device)
    except (SafetensorError, OSError) as error:
        raise FormatError(path, "header", f"cannot be read ({error}). Is the file complete?") from None


def _find_indexed_files(index: Path) -> dict[str, Path]:
    """Return the file of each tensor that an index lists, after a look at whether it is there."""
    listed = read_object(index, limit_bytes=INDEX_MAX_BYTES).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(file, str) for file in listed.values()):
        raise FormatError(index, "weight_map", "expected the file of each tensor.")
    held: dict[Path, set[str]] = {}
    for name, file in listed.items():
        path = index.parent / file
        if path.parent != index.parent:
            raise FormatError(index, "weight_map", f"expected files of this folder. Got {file!r}.")
        if path not in held:
            held[path] = set(open_safetensors(path).keys())
        if name not in held[path]:
            raise FormatError(path, name, f"this weight is not in the file, where {index.name} says it is.")
    return {name: index.parent / file for name, file in listed.items()}
