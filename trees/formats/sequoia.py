"""Sequoia's growmap: the six keys in a torch file, `.pt` (Chen et al., 2024)."""

import io
import warnings
from pathlib import Path
from typing import Any

from treeopt.errors import FormatError
from treeopt.trees.formats.checks import MASK_NODES, short
from treeopt.trees.formats.growmap import ARRAYS, growmap, tree_of_growmap
from treeopt.trees.formats.topology import NamedTree, TopologyFormat, WriteOptions, Written
from treeopt.trees.formats.torch_pickle import inspect_torch_file
from treeopt.trees.token_tree import TokenTree

MAX_BYTES = 8 * MASK_NODES**2 + 2_000_000


def write(tree: TokenTree, options: WriteOptions, suffix: str) -> Written:
    """Return the torch file; raises InfeasibleError for trees whose mask would be too large."""
    del options, suffix
    content = growmap(tree, MASK_NODES)
    import torch

    content |= {key: torch.from_numpy(content[key]) for key in ARRAYS}
    file = io.BytesIO()
    torch.save(content, file)
    return Written(data=file.getvalue())


def read(path: Path, data: bytes) -> tuple[NamedTree, ...]:
    """Return the tree of a torch file's bytes, whichever device it was saved on; nothing in it is executed.

    Raises FormatError naming the file, the key and the reason.
    """
    inspect_torch_file(path, io.BytesIO(data))
    content = _load(path, data)
    if not isinstance(content, dict):
        what = f"{_kind(content)}: is it an acceptance vector, or weights?"
        raise FormatError(path, "content", f"expected a growmap, a dict of six keys. Got {what}")
    arrays = {key: _array(content[key]) for key in ARRAYS if key in content}
    return (NamedTree(None, tree_of_growmap(path, {**content, **arrays}, MASK_NODES)),)


def _load(path: Path, data: bytes) -> object:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001, a torn pickle raises whatever its bytes lead to
        reason = f"expected a torch file ({type(error).__name__}). Is it complete?"
        raise FormatError(path, "content", reason) from None


def _array(value: Any) -> object:
    """Return a tensor as an array where numpy has its kind, anything else as it came."""
    import torch

    try:
        return value.detach().numpy() if isinstance(value, torch.Tensor) else value
    except (TypeError, RuntimeError):
        return value


def _kind(value: Any) -> str:
    import torch

    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else short(value)


FORMAT = TopologyFormat(
    name="sequoia",
    title="Sequoia (--growmap)",
    versions="all",
    needs=f"any tree of at most {MASK_NODES} nodes",
    text=False,
    write=write,
)
