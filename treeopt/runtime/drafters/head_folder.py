"""Folders of heads on a target's hidden states: `config.json` says what they are and fit, `model.safetensors` holds them."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from treeopt.errors import FormatError, InvalidValueError, TreeoptError
from treeopt.files.fields import Fields
from treeopt.files.json_file import read_object
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
    """What `config.json` says beside the kind and the sizes."""

    def __init__(self, folder: Path | str, kind: str, target: Transformer) -> None:
        self._weights = Path(folder) / "model.safetensors"
        self._target = target
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

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one weight on the target's device and in its dtype; raises FormatError naming it."""
        if not self._weights.is_file():
            raise TreeoptError(f"{self._weights}: no such file. Expected the heads' weights beside config.json.")
        try:
            with safe_open(self._weights, framework="pt", device=str(self._target.device)) as file:
                if name not in file.keys():  # noqa: SIM118 - no mapping
                    raise FormatError(
                        self._weights, name, "this weight is missing. Take a complete checkpoint of a head."
                    )
                tensor: Tensor = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise FormatError(self._weights, name, f"cannot be read ({error}). Is the file complete?") from None
        if tuple(tensor.shape) != shape:
            raise FormatError(self._weights, name, f"expected shape {shape}. Got {tuple(tensor.shape)}.")
        return tensor.to(self._target.dtype)
