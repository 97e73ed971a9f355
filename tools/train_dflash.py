"""Train the DFlash head of the bundled target: blocks after random roots (arXiv 2602.06036, section 4).

    OMP_NUM_THREADS=2 python tools/train_dflash.py --target treeopt/bundled/target --output treeopt/bundled/dflash

The target is frozen. In every sequence, random tokens are roots. All blocks of a sequence share one forward pass, in which
they do not attend to each other; every slot is trained towards the target's distribution at its position. The head is saved
in z-lab's layout, plus an embedding of the mask token, for which the vocabulary of 256 bytes has no spare row.
"""

import math
from pathlib import Path
from typing import cast

import torch
from head_training import (
    SEQUENCE_TOKENS,
    LogitPairs,
    TargetStates,
    rotate,
    size_fields,
    train_from_layer_states,
    write_head,
)
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from treeopt.runtime import Transformer
from treeopt.runtime.drafters.eagle.config import default_layer_ids

BLOCK_TOKENS = 8
LAYERS, INNER = 2, 512
ROOTS = 32
"""Blocks in each training sequence."""
SLOT_DECAY = 4.0
"""Slots over which the loss weight falls by a factor e."""


class DflashHead(nn.Module):
    """The trainable form of `treeopt.runtime.drafters.dflash`."""

    def __init__(self, target: Transformer, output: Tensor) -> None:
        """Initialize.

        Args:
            target: the model that the head drafts for.
            output: float32 (V, hidden), its output layer.
        """
        super().__init__()
        self.config = config = target.config
        hidden, heads, keys = config.hidden, config.heads * config.head_size, config.key_value_heads * config.head_size
        self.embedding: Tensor
        self.output: Tensor
        self.register_buffer("embedding", target.weights.embedding, persistent=False)
        self.register_buffer("output", output, persistent=False)
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.mask_embedding = nn.Parameter(0.02 * torch.randn(hidden))
        sizes = {"q": (hidden, heads), "k": (hidden, keys), "v": (hidden, keys), "o": (heads, hidden)}
        sizes |= {"gate": (hidden, INNER), "up": (hidden, INNER), "down": (INNER, hidden)}
        self.layers = nn.ModuleList()
        for _ in range(LAYERS):
            products = {name: nn.Linear(*size, bias=False) for name, size in sizes.items()}
            for name in ("o", "down"):
                nn.init.zeros_(products[name].weight)
            self.layers.append(nn.ModuleDict(products))
        norms = {f"{layer}_{name}": torch.ones(hidden) for layer in range(LAYERS) for name in ("input", "attention")}
        norms |= {f"{layer}_{name}": torch.ones(config.head_size) for layer in range(LAYERS) for name in ("q", "k")}
        self.norms = nn.ParameterDict({**norms, "context": torch.ones(hidden), "output": torch.ones(hidden)})
        frequencies = config.rope_base ** -(torch.arange(0, config.head_size, 2) / config.head_size)
        self.angles: Tensor
        self.register_buffer(
            "angles", torch.outer(torch.arange(SEQUENCE_TOKENS + BLOCK_TOKENS), frequencies), persistent=False
        )

    def predict(self, batch: TargetStates, generator: torch.Generator) -> LogitPairs:
        """Return, for every slot after the root's, the head's logits and the target's, each (sequences, roots, V)."""
        last_root = SEQUENCE_TOKENS - BLOCK_TOKENS
        roots = torch.randint(1, last_root, (ROOTS,), generator=generator).sort().values
        hidden = self.draft_blocks(batch, roots).view(len(batch.tokens), ROOTS, BLOCK_TOKENS, -1)
        pairs = []
        for slot in range(1, BLOCK_TOKENS):
            target_logits = batch.last[:, roots + slot - 1] @ self.output.T  # after the token before the slot
            pairs.append((hidden[:, :, slot] @ self.output.T, target_logits))
        return pairs

    def draft_blocks(self, batch: TargetStates, roots: Tensor) -> Tensor:
        """Return the input of the output layer, (sequences, roots * BLOCK_TOKENS, hidden)."""
        sequences, length = batch.tokens.shape
        context = self.norm(self.fc(batch.layers), "context")
        block = self.mask_embedding.expand(sequences, len(roots), BLOCK_TOKENS, -1).clone()
        block[:, :, 0] = F.embedding(batch.tokens[:, roots], self.embedding)
        x = block.flatten(1, 2)
        block_positions = (roots[:, None] + torch.arange(BLOCK_TOKENS)).flatten()
        block_index = torch.arange(len(roots)).repeat_interleave(BLOCK_TOKENS)
        sees_context = torch.arange(length) < roots[block_index][:, None]
        mask = torch.cat([sees_context, block_index[:, None] == block_index], 1)
        key_positions = torch.cat([torch.arange(length), block_positions])
        for number, module in enumerate(self.layers):
            layer = cast("nn.ModuleDict", module)
            y = self.norm(x, f"{number}_input")
            key_input = torch.cat([context.to(y.dtype), y], 1)
            query = rotate(self.split_heads(layer["q"](y), f"{number}_q"), self.angles[block_positions])
            key = rotate(self.split_heads(layer["k"](key_input), f"{number}_k"), self.angles[key_positions])
            value = self.split_heads(layer["v"](key_input))
            attended = F.scaled_dot_product_attention(
                query, key.to(query.dtype), value.to(query.dtype), attn_mask=mask, enable_gqa=True
            )
            x = x + layer["o"](attended.transpose(1, 2).flatten(2))
            z = self.norm(x, f"{number}_attention")
            x = x + layer["down"](F.silu(layer["gate"](z)) * layer["up"](z))
        return self.norm(x, "output")

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.norms[name], self.config.norm_epsilon)

    def split_heads(self, x: Tensor, norm: str | None = None) -> Tensor:
        """Return (sequences, heads, n, head_size) of (sequences, n, heads * head_size), each head normalized by `norm`."""
        split = x.unflatten(-1, (-1, self.config.head_size))
        return (split if norm is None else self.norm(split, norm)).transpose(1, 2)


def tensor_names() -> dict[str, str]:
    """Return z-lab's tensor names by those of `DflashHead`."""
    names = {"fc.weight": "fc.weight", "mask_embedding": "mask_embedding"}
    names |= {"norms.context": "hidden_norm.weight", "norms.output": "norm.weight"}
    for layer in range(LAYERS):
        prefix = f"layers.{layer}"
        names |= {f"{prefix}.{name}.weight": f"{prefix}.self_attn.{name}_proj.weight" for name in "qkvo"}
        names |= {f"{prefix}.{name}.weight": f"{prefix}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
        names |= {f"norms.{layer}_{name}": f"{prefix}.self_attn.{name}_norm.weight" for name in "qk"}
        names[f"norms.{layer}_input"] = f"{prefix}.input_layernorm.weight"
        names[f"norms.{layer}_attention"] = f"{prefix}.post_attention_layernorm.weight"
    return names


def save(head: DflashHead, layers: int, folder: Path) -> None:
    """Write config.json, and the weights in float16, for a target of that many layers."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **size_fields(head.config),
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "block_size": BLOCK_TOKENS,
        "dflash_config": {"target_layer_ids": [layer_id - 1 for layer_id in default_layer_ids(layers)]},
    }
    weights = head.state_dict()
    write_head(folder, config, {new: weights[name].half().contiguous() for name, new in tensor_names().items()})


def load(head: DflashHead, folder: Path) -> None:
    """Load the weights that `save` wrote."""
    stored = load_file(folder / "model.safetensors")
    head.load_state_dict({name: stored[new].float() for name, new in tensor_names().items()})


def main() -> None:
    train_from_layer_states(
        "dflash",
        DflashHead,
        DflashHead.predict,
        save,
        load,
        description=__doc__,
        depth_weight=math.exp(-1 / SLOT_DECAY),
        steps=2700,
    )


if __name__ == "__main__":
    main()
