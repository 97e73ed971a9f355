"""The multi-token prediction (MTP) module in MiMo's checkpoints, which drafts like an EAGLE head (Xiaomi, 2025)."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from treeopt.runtime.drafters.eagle.config import read_config
from treeopt.runtime.drafters.eagle.head import EagleHead, EagleOutput, LayerInput, StateFusion
from treeopt.runtime.drafters.head_files import load_head_layer
from treeopt.runtime.models.config import ModelConfig
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import RequestedStates
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer, rms_norm

MODULE = "model.mtp_layers.0"
"""The first module; engines reuse it for deeper tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MTPInput:
    """A projection of normalised x and normalised embedding."""

    config: ModelConfig
    hidden_norm: Tensor
    embedding_norm: Tensor
    fc: Linear
    input_norm: Tensor

    def __call__(self, embedded: Tensor, x: Tensor) -> LayerInput:
        normed = rms_norm(x, self.hidden_norm, self.config), rms_norm(embedded, self.embedding_norm, self.config)
        projected = self.fc(torch.cat(normed, -1))
        return LayerInput(rms_norm(projected, self.input_norm, self.config), projected)


def load_mtp(folder: Path, target: Transformer, tensors: TensorReader) -> EagleHead:
    """Read the module from the target's own folder; embedding and output layer are the target's.

    Raises as `load_eagle`.
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
        fuse=StateFusion(requested_states=RequestedStates(last=True, all_tokens=True), config=config),
        make_input=MTPInput(
            config=config,
            hidden_norm=norm("hidden"),
            embedding_norm=norm("token"),
            fc=Linear(tensors.get(f"{MODULE}.input_proj.weight", (hidden, 2 * hidden))),
            input_norm=norm("input"),
        ),
        layers=(load_head_layer(tensors, config, MODULE, hidden),),
        input_norms=(),
        output=EagleOutput(config=config, norm=norm("final"), normed_feedback=True, layer=target.logits),
    )
