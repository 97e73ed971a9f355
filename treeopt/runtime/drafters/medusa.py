"""Medusa: heads on the target's last hidden state, each predicting the token at one depth (Cai et al., 2024).

Head d reads the hidden state h before the root and predicts the d-th token after the root: the target's output layer on
h + silu(W h + b).  No head sees what another predicts, so all nodes of one depth and rank have the same token.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.runtime.drafters.drafter import Proposal
from treeopt.runtime.drafters.head_files import HeadFolder
from treeopt.runtime.drafters.heads import HeadDrafter, marginal_filler
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.transformer import Transformer
from treeopt.trees import TokenTree


class MedusaHeads:
    """The weights of D heads, and the target whose output layer they share.

    Args:
        target: the model whose hidden states they read.
        weight: (D, hidden, hidden), W of each head.
        bias: (D, hidden), b of each head.

    Raises InvalidValueError for other shapes.
    """

    def __init__(self, target: Transformer, weight: Tensor, bias: Tensor) -> None:
        hidden = target.config.hidden
        if weight.ndim != 3 or len(weight) == 0 or weight.shape[1:] != (hidden, hidden):
            raise InvalidValueError(f"weight: expected shape (D, {hidden}, {hidden}). Got {tuple(weight.shape)}.")
        if bias.shape != weight.shape[:2]:
            raise InvalidValueError(f"bias: expected shape {tuple(weight.shape[:2])}. Got {tuple(bias.shape)}.")
        self.target, self.device = target, target.device
        self.name = f"Medusa heads of {target.name}"
        self.levels = len(weight)
        self.tokens = target.config.vocabulary
        blocks, biases = (tensor.to(target.device, target.dtype).flatten(0, 1) for tensor in (weight, bias))
        self._blocks = Linear(blocks.contiguous(), biases)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (n, D, V) of every head on hidden states (n, hidden)."""
        blocks = F.silu(self._blocks(hidden)).unflatten(-1, (self.levels, -1))
        states = (hidden[:, None] + blocks).flatten(0, 1)
        logits: Tensor = self.target.logits(states).unflatten(0, (-1, self.levels))
        return logits


class MedusaDrafter(HeadDrafter):
    """Drafts a static tree: the node of depth d and rank r has the r-th most likely token of head d.

    Raises InvalidValueError for a tree with more levels than heads, or more children of a node than tokens.
    """

    def __init__(self, heads: MedusaHeads, tree: TokenTree) -> None:
        super().__init__()
        self.heads = heads
        self.max_tokens = tree.nodes
        self.change_tree(tree)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on."""
        self._fill_tree = marginal_filler(self.heads, tree)
        self.tree = tree

    def _draft(self, roots: list[int], hidden: Tensor) -> list[Proposal]:
        return self._fill_tree(roots, self.heads.logits(hidden))


def load_medusa(folder: Path | str, target: Transformer) -> MedusaHeads:
    """Read heads from a folder: `config.json` with their number, and `model.safetensors` with `weight` and `bias`.

    Raises TreeoptError if a file is missing, FormatError naming the field or the tensor that is wrong,
    InvalidValueError for heads of a target of another size.
    """
    source = HeadFolder(folder, target)
    fields, tensors = source.own_fields("medusa"), source.tensors
    heads, hidden = fields.integer("heads"), target.config.hidden
    fields.end()
    weight, bias = tensors.get("weight", (heads, hidden, hidden)), tensors.get("bias", (heads, hidden))
    source.check_all_read("Medusa heads")
    return MedusaHeads(target, weight, bias)
