"""Train the DFlash head of the bundled target: blocks after random roots (arXiv 2602.06036, section 4).

    OMP_NUM_THREADS=2 python tools/train_dflash.py --target treeopt/bundled/target --output treeopt/bundled/dflash

The target is frozen. In every sequence, random tokens are roots. All blocks of a sequence share one forward pass, in which
they do not attend to each other; every slot is trained towards the target's distribution at its position. The head is saved
in z-lab's layout, plus an embedding of the mask token, for which the vocabulary of 256 bytes has no spare row.
"""

import math
from dataclasses import dataclass
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
from treeopt.runtime.drafters.eagle.load import default_layer_ids

ROOTS = 32
"""Blocks in each training sequence."""
SLOT_DECAY = 4.0
"""Slots over which the loss weight falls by a factor e."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DflashSizes:
    """The sizes of a head that its target does not determine."""

    layers: int = 2
    inner: int = 512
    """Width of the MLP."""
    block_tokens: int = 8
    """Root included."""


class DflashHead(nn.Module):
    """The trainable form of `treeopt.runtime.drafters.dflash`."""

    def __init__(
        self, target: Transformer, output: Tensor, sizes: DflashSizes, *, draft_tokens: Tensor | None = None
    ) -> None:
        """Initialize.

        Args:
            target: the model that the head drafts for.
            output: float32 (draft vocabulary, hidden), rows of the target's output layer.
            sizes: of the head.
            draft_tokens: int64 (draft vocabulary,), the token of each row, which is trained too; None if the output layer
                is the target's.
        """
        super().__init__()
        self.sizes, self.draft_tokens = sizes, draft_tokens
        self.config = config = target.config
        hidden, heads, keys = config.hidden, config.heads * config.head_size, config.key_value_heads * config.head_size
        self.embedding: Tensor
        self.output: Tensor
        self.register_buffer("embedding", target.weights.embedding, persistent=False)
        if draft_tokens is None:
            self.register_buffer("output", output, persistent=False)
        else:
            self.output = nn.Parameter(output.clone())
        self.fc = nn.Linear(3 * hidden, hidden, bias=False)
        self.mask_embedding = nn.Parameter(0.02 * torch.randn(hidden))
        shapes = {"q": (hidden, heads), "k": (hidden, keys), "v": (hidden, keys), "o": (heads, hidden)}
        shapes |= {"gate": (hidden, sizes.inner), "up": (hidden, sizes.inner), "down": (sizes.inner, hidden)}
        self.layers = nn.ModuleList()
        for _ in range(sizes.layers):
            products = {name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()}
            for name in ("o", "down"):
                nn.init.zeros_(products[name].weight)
            self.layers.append(nn.ModuleDict(products))
        norms = {
            f"{layer}_{name}": torch.ones(hidden) for layer in range(sizes.layers) for name in ("input", "attention")
        }
        norms |= {
            f"{layer}_{name}": torch.ones(config.head_size) for layer in range(sizes.layers) for name in ("q", "k")
        }
        self.norms = nn.ParameterDict({**norms, "context": torch.ones(hidden), "output": torch.ones(hidden)})
        frequencies = config.rope_base ** -(torch.arange(0, config.head_size, 2) / config.head_size)
        self.angles: Tensor
        self.register_buffer(
            "angles", torch.outer(torch.arange(SEQUENCE_TOKENS + sizes.block_tokens), frequencies), persistent=False
        )

    def predict(self, batch: TargetStates, generator: torch.Generator) -> LogitPairs:
        """Return, for every slot after the root's, the head's logits and the target's, each (sequences, roots, V)."""
        last_root = SEQUENCE_TOKENS - self.sizes.block_tokens
        roots = torch.randint(1, last_root, (ROOTS,), generator=generator).sort().values
        hidden = self.draft_blocks(batch.layers, batch.tokens, roots)
        pairs = []
        for slot in range(1, self.sizes.block_tokens):
            target_logits = batch.last[:, roots + slot - 1] @ self.output.T  # after the token before the slot
            pairs.append((hidden[:, :, slot] @ self.output.T, target_logits))
        return pairs

    def draft_blocks(self, states: Tensor, tokens: Tensor, roots: Tensor) -> Tensor:
        """Return the input of the output layer, (sequences, roots, block_tokens, hidden).

        Args:
            states: (sequences, T, 3 hidden) hidden states of the target.
            tokens: int64 (sequences, T).
            roots: int64 (roots,), positions of the blocks' roots, the same in all sequences.
        """
        sequences, length = tokens.shape
        block_tokens = self.sizes.block_tokens
        context = self.norm(self.fc(states), "context")
        block = self.mask_embedding.expand(sequences, len(roots), block_tokens, -1).clone()
        block[:, :, 0] = F.embedding(tokens[:, roots], self.embedding)
        x = block.flatten(1, 2)
        block_positions = (roots[:, None] + torch.arange(block_tokens)).flatten()
        block_index = torch.arange(len(roots)).repeat_interleave(block_tokens)
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
        return self.norm(x, "output").view(sequences, len(roots), block_tokens, -1)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.norms[name], self.config.norm_epsilon)

    def split_heads(self, x: Tensor, norm: str | None = None) -> Tensor:
        """Return (sequences, heads, n, head_size) of (sequences, n, heads * head_size), each head normalized by `norm`."""
        split = x.unflatten(-1, (-1, self.config.head_size))
        return (split if norm is None else self.norm(split, norm)).transpose(1, 2)


def tensor_names(head: DflashHead) -> dict[str, str]:
    """Return z-lab's names of a head's tensors by its own."""
    names = {"fc.weight": "fc.weight", "mask_embedding": "mask_embedding"}
    names |= {"norms.context": "hidden_norm.weight", "norms.output": "norm.weight"}
    if head.draft_tokens is not None:
        names["output"] = "lm_head.weight"
    for layer in range(head.sizes.layers):
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
        "intermediate_size": head.sizes.inner,
        "num_hidden_layers": head.sizes.layers,
        "block_size": head.sizes.block_tokens,
        "dflash_config": {"target_layer_ids": [layer_id - 1 for layer_id in default_layer_ids(layers)]},
    }
    weights = head.state_dict()
    tensors = {new: weights[name].half().contiguous() for name, new in tensor_names(head).items()}
    if head.draft_tokens is not None:
        config["draft_vocab_size"] = len(head.draft_tokens)
        tensors["d2t"] = head.draft_tokens - torch.arange(len(head.draft_tokens))
    write_head(folder, config, tensors)


def load(head: DflashHead, folder: Path) -> None:
    """Load the weights and the draft vocabulary that `save` wrote."""
    stored = load_file(folder / "model.safetensors")
    head.load_state_dict({name: stored[new].float() for name, new in tensor_names(head).items()})
    if head.draft_tokens is not None:
        head.draft_tokens = stored["d2t"] + torch.arange(len(stored["d2t"]))


def main() -> None:
    train_from_layer_states(
        "dflash",
        lambda target, output: DflashHead(target, output, DflashSizes()),
        DflashHead.predict,
        save,
        load,
        description=__doc__,
        depth_weight=math.exp(-1 / SLOT_DECAY),
        steps=2700,
    )


if __name__ == "__main__":
    main()
