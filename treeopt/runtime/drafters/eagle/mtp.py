"""The module for multi-token prediction that MiMo's checkpoints hold beside the target's own layers (Xiaomi, 2025)."""

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from treeopt.runtime.drafters.eagle.config import read_config
from treeopt.runtime.drafters.eagle.head import EagleHead, Mixed, OutputLayer, Taps
from treeopt.runtime.drafters.eagle.layer import head_layer
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.layer import rms_norm
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import Wants
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer

MODULE = "model.mtp_layers.0"
"""The first; engines use it again and again for deeper tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BothNormed:
    """The normed x and the normed embedding make one input, which an ordinary layer reads."""

    config: ModelConfig
    hidden_norm: Tensor
    embedding_norm: Tensor
    fc: Linear
    input_norm: Tensor

    def __call__(self, embedded: Tensor, x: Tensor) -> Mixed:
        """Return what the first layer is given."""
        both = rms_norm(x, self.hidden_norm, self.config), rms_norm(embedded, self.embedding_norm, self.config)
        joined = self.fc(torch.cat(both, -1))
        return Mixed(rms_norm(joined, self.input_norm, self.config), joined)


def load_mtp(folder: Path, target: Transformer, tensors: TensorReader) -> EagleHead:
    """Return the module out of the target's own folder; embedding and output layer are the target's.

    Raises what `load_eagle` raises.
    """
    config = replace(read_config(folder, target).layers, layers=1)
    hidden = config.hidden

    def norm(name: str) -> Tensor:
        return tensors.get(f"{MODULE}.{name}_layernorm.weight", (hidden,))

    return EagleHead(
        name=f"MTP module {folder.name}",
        target=target,
        config=config,
        tokens=config.vocabulary,
        embedding=target.weights.embedding,
        first_embedding_read=False,
        fuse=Taps(wants=Wants(last=True, whole_text=True), config=config),
        mix=BothNormed(
            config=config,
            hidden_norm=norm("hidden"),
            embedding_norm=norm("token"),
            fc=Linear(tensors.get(f"{MODULE}.input_proj.weight", (hidden, 2 * hidden))),
            input_norm=norm("input"),
        ),
        layers=(head_layer(tensors, config, MODULE, hidden),),
        input_norms=(),
        output=OutputLayer(
            config=config, norm=norm("final"), normed_feedback=True, head=target.logits, target_ids=None
        ),
        parameters=sum(prod(tensors.shape(name)) for name in tensors if name.startswith(f"{MODULE}.")),
    )
