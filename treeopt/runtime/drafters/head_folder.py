"""A folder with heads on a target's hidden states: `config.json` with their kind and sizes, and their weights."""

from pathlib import Path

from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.json_file import read_object
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer


class HeadFolder:
    """Heads as they are stored.

    Args:
        folder: with both files.
        kind: of head that is wanted.
        target: the model that they are to fit.

    Raises TreeoptError where a file is missing, FormatError naming the field that is wrong, InvalidValueError for heads
    of a target of another size.
    """

    fields: Fields
    """The other fields of `config.json`."""
    tensors: TensorReader
    """On the target's device and in its dtype."""

    def __init__(self, folder: Path | str, kind: str, target: Transformer) -> None:
        path = Path(folder) / "config.json"
        self.fields = Fields(path, read_object(path))
        found = self.fields.text("kind")
        if found != kind:
            raise self.fields.error("kind", f"expected {kind!r}. Got {found!r}: are these other heads?")
        sizes = {"hidden_size": target.config.hidden, "vocabulary": target.config.vocabulary}
        for name, wanted in sizes.items():
            size = self.fields.integer(name)
            if size != wanted:
                raise InvalidValueError(
                    f"{name}: expected heads for {wanted}, which {target.name} has. "
                    f"Got {size}: take heads that were trained on this target."
                )
        self.tensors = TensorReader.open_folder(Path(folder), device=target.device, dtype=target.dtype)
