"""Heads out of folders: what a head is, its tensors tell; where norms stand and what it reads, its configuration."""

import warnings
from collections.abc import Callable
from math import prod
from pathlib import Path

from torch import Tensor

from treeopt.errors import FormatError, InvalidValueError, TreeoptWarning
from treeopt.runtime.drafters.draft_vocabulary import target_ids
from treeopt.runtime.drafters.eagle.config import TAP_IDS, EagleConfig, default_boundaries, read_config
from treeopt.runtime.drafters.eagle.head import EagleHead, Mixed, OutputLayer, Projected, SideBySide, Taps
from treeopt.runtime.drafters.eagle.layer import head_layer
from treeopt.runtime.drafters.eagle.mtp import MODULE, load_mtp
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import Wants
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer

OTHERS = {
    "mask_hidden": "P-EAGLE",
    "markov_": "DSpark",
    "hidden_norm.": "DFlash (--drafter dflash=DIR)",
    "mtp": "MTP of another kind",
}
"""What the names of tensors begin with in heads that draft otherwise."""


def load_eagle(folder: Path | str, target: Transformer, *, taps: tuple[int, ...] | None = None) -> EagleHead:
    """Return the head of a folder: EAGLE-3 as SafeAILab, SpecForge, speculators or Model-Optimizer save it, or EAGLE-1/2.

    The folder of a target that holds MiMo's module for multi-token prediction gives that.

    Args:
        folder: with `config.json` and `model.safetensors` or `pytorch_model.bin`; nothing in it is executed.
        target: the model that the head was trained for.
        taps: boundaries of the target's residual stream that an EAGLE-3 head reads, 0 the embedding, in the order of
            training; by default those of `config.json`, or where it names none 2, L // 2 and L - 3 with a warning. A
            head of another kind reads the last state, and is given none.

    Raises TreeoptError where a file is missing, FormatError naming the field or tensor that is wrong, InvalidValueError
    for a head of another target, and for a target that treeopt does not run itself.
    """
    if not isinstance(target, Transformer):
        raise InvalidValueError(
            f"target: expected one that treeopt runs itself, whose states and embedding a head reads. "
            f"Got {type(target).__name__}: load the target without --backend, or draft with something else.",
            field="target",
        )
    folder = Path(folder)
    tensors = TensorReader.open_folder(folder, device=target.device, dtype=target.dtype)
    if any(name.startswith(f"{MODULE}.") for name in tensors):
        _refuse_taps(folder, taps)
        return load_mtp(folder, target, tensors)
    config = read_config(folder, target)
    return _Loading(folder, target, config, tensors).head(taps)


class _Loading:
    """The parts of one head."""

    def __init__(self, folder: Path, target: Transformer, config: EagleConfig, tensors: TensorReader) -> None:
        self._folder = folder
        self._target = target
        self._config = config
        self._layers = config.layers
        self._tensors = tensors
        self._first = "midlayer" if any(name.startswith("midlayer.") for name in tensors) else "layers.0"
        self._eagle3 = f"{self._first}.hidden_norm.weight" in tensors
        self._refuse_others()

    def head(self, taps: tuple[int, ...] | None) -> EagleHead:
        tensors, layers = self._tensors, self._layers
        hidden = layers.hidden
        prefixes = [self._first, *(f"layers.{index}" for index in range(1, layers.layers))]
        embedding = self._embedding()
        head, known, ids = self._output_layer()
        return EagleHead(
            name=f"EAGLE head {self._folder.name}",
            target=self._target,
            config=layers,
            tokens=known,
            embedding=embedding,
            fuse=self._taps(taps),
            mix=self._mix(),
            layers=tuple(
                head_layer(tensors, layers, prefix, 2 * hidden if self._eagle3 and prefix == self._first else hidden)
                for prefix in prefixes
            ),
            input_norms=tuple(tensors.get(f"{prefix}.input_layernorm.weight", (hidden,)) for prefix in prefixes[1:]),
            output=OutputLayer(
                config=layers,
                norm=tensors.get("norm.weight", (hidden,)) if self._eagle3 else None,
                normed_feedback=self._eagle3 and self._config.norm_output,
                head=head,
                target_ids=ids,
            ),
            parameters=sum(prod(tensors.shape(name)) for name in tensors if name not in ("d2t", "t2d")),
        )

    def _refuse_others(self) -> None:
        for begin, kind in OTHERS.items():
            if any(name.startswith(begin) for name in self._tensors):
                raise FormatError(
                    self._folder, begin.rstrip("._"), f"expected an EAGLE head. Got {kind}: take another checkpoint."
                )
        if self._eagle3:
            return
        needed = [f"{self._first}.hidden_norm.weight"] if "lm_head.weight" in self._tensors else ["fc.weight"]
        for name in needed:
            self._tensors.shape(name)

    def _embedding(self) -> Tensor:
        target, layers, name = self._target, self._layers, "embed_tokens.weight"
        if name in self._tensors:
            return self._tensors.get(name, (layers.vocabulary, layers.hidden))
        self._check_width(name)
        return target.weights.embedding

    def _check_width(self, name: str) -> None:
        """Raise InvalidValueError where a tensor of the target would be taken that does not fit."""
        if self._layers.hidden != self._target.config.hidden:
            raise InvalidValueError(
                f"hidden_size: expected {self._target.config.hidden}, which {self._target.name} has, because the head "
                f"has no {name}. Got {self._layers.hidden}: take a head that was trained on this target."
            )

    def _taps(self, taps: tuple[int, ...] | None) -> Taps:
        """Return how states are fused, by the width of `fc`."""
        tensors, hidden, width = self._tensors, self._layers.hidden, self._target.config.hidden
        if not self._eagle3 or self._config.last_state:
            _refuse_taps(self._folder, taps)
            self._check_width("fc.weight of its own for the target's states")
            return Taps(wants=Wants(last=True, whole_text=True), config=self._layers)
        columns = tensors.shape("fc.weight")[-1]
        if columns % width:
            raise InvalidValueError(
                f"fc.weight: expected states of {width} numbers, which {self._target.name} has. "
                f"Got {columns} columns: take a head that was trained on this target."
            )
        boundaries = self._boundaries(columns // width, taps)
        norms = [f"fc_norm.{index}.weight" for index in range(len(boundaries))]
        each = self._config.fc_norm or norms[0] in tensors
        joint = self._config.norm_before_fc or "input_norm.weight" in tensors
        if each and joint:
            raise FormatError(
                self._config.path,
                "norm_before_fc",
                "expected no fc_norm beside it: states are normed one by one or together. Got both: leave one out.",
            )
        return Taps(
            wants=Wants(boundaries=boundaries, whole_text=True),
            config=self._layers,
            each_norm=tuple(tensors.get(name, (width,)) for name in norms) if each else (),
            norm=tensors.get("input_norm.weight", (columns,)) if joint else None,
            fc=self._linear("fc", hidden, columns),
        )

    def _boundaries(self, count: int, taps: tuple[int, ...] | None) -> tuple[int, ...]:
        layers = len(self._target.weights.layers)
        found = self._config.boundaries if taps is None else taps
        if found is None:
            found = default_boundaries(layers)
            warnings.warn(
                TreeoptWarning(
                    f"{self._config.path}: {TAP_IDS}: is missing, and the states at boundaries {found} are read. Where "
                    "few tokens are accepted, name in that field, or with --eagle-layers (taps= in Python), those that the "
                    "head was trained on."
                ),
                stacklevel=4,
            )
        if len(found) != count or not all(0 <= each <= layers for each in found):
            raise InvalidValueError(
                f"layers: expected {count} boundaries from 0 to {layers}, which fc.weight reads of {self._target.name}. "
                f"Got {found}: take a head that was trained on this target, or name its boundaries with --eagle-layers."
            )
        return found

    def _mix(self) -> Callable[[Tensor, Tensor], Mixed]:
        tensors, hidden = self._tensors, self._layers.hidden
        if not self._eagle3:
            return Projected(fc=self._linear("fc", hidden, 2 * hidden))
        normed = self._config.norm_before_residual
        if normed is None and self._config.speculators:
            warnings.warn(
                TreeoptWarning(
                    f"{self._config.path}: norm_before_residual: is missing, and is taken as false, which engines differ "
                    "in. Where few tokens are accepted, add it as true."
                ),
                stacklevel=4,
            )
        return SideBySide(
            config=self._layers,
            embedding_norm=tensors.get(f"{self._first}.input_layernorm.weight", (hidden,)),
            hidden_norm=tensors.get(f"{self._first}.hidden_norm.weight", (hidden,)),
            normed_residual=bool(normed),
        )

    def _output_layer(self) -> tuple[Callable[[Tensor], Tensor], int, Tensor | None]:
        """Return the output layer, how many tokens it knows, and the target's token for each."""
        tensors, vocabulary, hidden = self._tensors, self._layers.vocabulary, self._layers.hidden
        own = self._eagle3 and "lm_head.weight" in tensors
        known = (
            tensors.shape("lm_head.weight")[0] if own else tensors.shape("d2t")[0] if "d2t" in tensors else vocabulary
        )
        ids = None
        if known != vocabulary or "d2t" in tensors:
            ids = target_ids(self._folder, tensors, known, vocabulary, self._target.device)
        if own:
            return Linear(tensors.get("lm_head.weight", (known, hidden))), known, ids
        self._check_width("lm_head.weight")
        target = self._target
        if ids is None:
            return target.logits, known, None
        return lambda x: target.logits(x)[:, ids], known, ids

    def _linear(self, name: str, outputs: int, inputs: int) -> Linear:
        tensors, bias = self._tensors, f"{name}.bias"
        return Linear(
            tensors.get(f"{name}.weight", (outputs, inputs)),
            tensors.get(bias, (outputs,)) if bias in tensors else None,
        )


def _refuse_taps(folder: Path, taps: tuple[int, ...] | None) -> None:
    """Raise InvalidValueError for boundaries that are given to a head which reads the last state."""
    if taps is not None:
        raise InvalidValueError(
            f"layers: expected none, because the head in {folder} reads the target's last state. Got {taps}: leave out "
            "--eagle-layers."
        )
