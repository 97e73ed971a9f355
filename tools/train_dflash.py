"""Train the DFlash head of the bundled target: blocks after random roots (arXiv 2602.06036, section 4).

    OMP_NUM_THREADS=2 python tools/train_dflash.py --target treeopt/bundled/target --output treeopt/bundled/dflash

The target stays as it is.  In every text of the target's and of the corpus random tokens are roots.  All blocks of a text
share one pass, each hidden from the others; the distribution of every slot is pulled to what the target predicts there.
The head is saved as z-lab's heads are, with an embedding of its own for the mask token: 256 bytes have no row to spare.
"""

import json
import math
from pathlib import Path
from typing import cast

import head_training
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from train_eagle import TEXT_TOKENS, Lessons, train

from treeopt.runtime import Transformer
from treeopt.runtime.drafters.eagle.config import default_boundaries

BLOCK_TOKENS = 8
LAYERS, INNER = 2, 512
ROOTS = 32
"""In each text of a step."""
SLOT_DECAY = 4.0
"""Slots after which a slot's loss weighs 1 / e."""


class LearningBlock(nn.Module):
    """What `treeopt.runtime.drafters.dflash` runs, in a form that learns."""

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
            "angles", torch.outer(torch.arange(TEXT_TOKENS + BLOCK_TOKENS), frequencies), persistent=False
        )

    def pairs(self, lessons: Lessons, generator: torch.Generator | None = None) -> head_training.Pairs:
        """Return, for every slot after the root's, the head's logits and the target's, each (texts, roots, V)."""
        texts = len(lessons.tokens)
        last = TEXT_TOKENS - BLOCK_TOKENS
        roots = torch.randint(1, last, (ROOTS,), generator=generator).sort().values
        hidden = self.blocks(lessons, roots).view(texts, ROOTS, BLOCK_TOKENS, -1)
        found = []
        for slot in range(1, BLOCK_TOKENS):
            wanted = lessons.last[:, roots + slot - 1] @ self.output.T  # after the token before the slot
            found.append((hidden[:, :, slot] @ self.output.T, wanted))
        return found

    def blocks(self, lessons: Lessons, roots: Tensor) -> Tensor:
        """Return the input of the output layer, (texts, roots * BLOCK_TOKENS, hidden)."""
        texts, length = lessons.tokens.shape
        context = self.normed(self.fc(lessons.taps), "context")
        block = self.mask_embedding.expand(texts, len(roots), BLOCK_TOKENS, -1).clone()
        block[:, :, 0] = F.embedding(lessons.tokens[:, roots], self.embedding)
        x = block.flatten(1, 2)
        positions = (roots[:, None] + torch.arange(BLOCK_TOKENS)).flatten()
        owner = torch.arange(len(roots)).repeat_interleave(BLOCK_TOKENS)
        seen = torch.cat([torch.arange(length) < roots[owner][:, None], owner[:, None] == owner], 1)
        every = torch.cat([torch.arange(length), positions])
        for number, module in enumerate(self.layers):
            layer = cast("nn.ModuleDict", module)
            y = self.normed(x, f"{number}_input")
            both = torch.cat([context.to(y.dtype), y], 1)
            query = self.turned(self.heads(layer["q"](y), f"{number}_q"), positions)
            key = self.turned(self.heads(layer["k"](both), f"{number}_k"), every)
            value = self.heads(layer["v"](both))
            attended = F.scaled_dot_product_attention(
                query, key.to(query.dtype), value.to(query.dtype), attn_mask=seen, enable_gqa=True
            )
            x = x + layer["o"](attended.transpose(1, 2).flatten(2))
            z = self.normed(x, f"{number}_attention")
            x = x + layer["down"](F.silu(layer["gate"](z)) * layer["up"](z))
        return self.normed(x, "output")

    def normed(self, x: Tensor, name: str) -> Tensor:
        """Return x (…, width) normed."""
        return F.rms_norm(x.float(), x.shape[-1:], self.norms[name], self.config.norm_epsilon)

    def heads(self, x: Tensor, norm: str | None = None) -> Tensor:
        """Return (texts, heads, n, head_size) of products (texts, n, heads * head_size), each head normed if asked for."""
        split = x.unflatten(-1, (-1, self.config.head_size))
        return (split if norm is None else self.normed(split, norm)).transpose(1, 2)

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return heads (texts, heads, n, head_size) turned for n positions."""
        angles = self.angles[positions]
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def tensor_names() -> dict[str, str]:
    """Return z-lab's names of the tensors by those of `LearningBlock`."""
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


def save(head: LearningBlock, layers: int, folder: Path) -> None:
    """Write the weights in half precision and what they fit."""
    folder.mkdir(parents=True, exist_ok=True)
    config = head.config
    content = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": config.hidden,
        "intermediate_size": INNER,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_size,
        "num_hidden_layers": LAYERS,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_base,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": TEXT_TOKENS,
        "block_size": BLOCK_TOKENS,
        "dflash_config": {"target_layer_ids": [boundary - 1 for boundary in default_boundaries(layers)]},
    }
    (folder / "config.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    weights = head.state_dict()
    tensors = {new: weights[name].half().contiguous() for name, new in tensor_names().items()}
    save_file(tensors, folder / "model.safetensors")


def load(head: LearningBlock, folder: Path) -> None:
    """Load the weights that `save` wrote."""
    stored = load_file(folder / "model.safetensors")
    head.load_state_dict({name: stored[new].float() for name, new in tensor_names().items()})


def main() -> None:
    """Train the DFlash head."""
    train(
        "dflash",
        LearningBlock,
        LearningBlock.pairs,
        save,
        load,
        description=__doc__,
        weight=math.exp(-1 / SLOT_DECAY),
        steps=2700,
    )


if __name__ == "__main__":
    main()
