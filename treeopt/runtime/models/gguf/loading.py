"""Loading a GGUF file, and the check that llama.cpp computes its trees as it computes their paths."""

from pathlib import Path

from treeopt.errors import TreeoptError
from treeopt.runtime.models.gguf.file import GGUFFile
from treeopt.runtime.models.gguf.handle import Handle
from treeopt.runtime.models.gguf.model import EXACT_FORMAT, GGUFModel
from treeopt.runtime.models.hf.tree_check import EXACT, ROUNDED, check_tree_mask


def load_gguf(file: GGUFFile | Path | str) -> GGUFModel:
    """Return the model of a file, checked with a small tree.

    Raises TreeoptError in one line for whatever keeps it from being loaded or from taking a tree.
    """
    found = file if isinstance(file, GGUFFile) else GGUFFile(file)
    sizes = found.sizes
    handle = Handle(found.path, only_vocabulary=False)
    name = found.path.stem
    if handle.keeps_a_state:
        raise TreeoptError(
            f"{name}: cannot take a tree: it keeps a state that has read every token, or reads both ways. "
            "Use a model whose layers are all attention."
        )
    model = GGUFModel(handle, sizes, name=name)
    check_tree_mask(model, tolerance=EXACT if sizes.number_format == EXACT_FORMAT else ROUNDED)
    return model
