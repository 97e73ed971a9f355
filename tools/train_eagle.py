"""Train the EAGLE-3 head of the bundled target by training-time test (Li et al., 2025, section 3).

    OMP_NUM_THREADS=2 python tools/train_eagle.py --target treeopt/bundled/target --output treeopt/bundled/eagle

The target is frozen. The head is unrolled over the next tokens, each time on its own previous output, and at every depth
it is trained towards the target's distribution. It is saved in the layout of SafeAILab's trainer, in safetensors.
"""

from collections.abc import Iterator
from pathlib import Path

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
from treeopt.runtime.drafters.eagle.load import LAYER_IDS_FIELD, default_layer_ids

UNROLLED = 5
DEPTH_WEIGHT = 0.8
"""Loss weight of a depth over that of the previous one."""
INNER = 256
"""Width of the MLP: smaller than the target's, to keep draft passes cheap."""


class EagleHead(nn.Module):
    """The trainable form of `treeopt.runtime.drafters.eagle`."""

    def __init__(
        self,
        target: Transformer,
        output: Tensor,
        *,
        inner: int = INNER,
        unrolled: int = UNROLLED,
        draft_tokens: Tensor | None = None,
    ) -> None:
        """Initialize the output layer.

        Args:
            target: the model that the head drafts for.
            output: float32 (draft vocabulary, hidden), rows of the target's output layer.
            inner: width of the MLP.
            unrolled: depths of the training-time test.
            draft_tokens: int64 (draft vocabulary,), the token of each row; None if it is the row's own number.
        """
        super().__init__()
        self.inner, self.unrolled, self.draft_tokens = inner, unrolled, draft_tokens
        self.config = config = target.config
        hidden, heads, keys = config.hidden, config.heads * config.head_size, config.key_value_heads * config.head_size
        self.embedding: Tensor
        self.target_output: Tensor
        self.register_buffer("embedding", target.weights.embedding, persistent=False)
        self.register_buffer("target_output", output, persistent=False)
        sizes = {"q": (2 * hidden, heads), "k": (2 * hidden, keys), "v": (2 * hidden, keys), "o": (heads, hidden)}
        sizes |= {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden), "fc": (3 * hidden, hidden)}
        layers = {name: nn.Linear(*size, bias=False) for name, size in sizes.items()}
        for name in ("o", "down"):
            nn.init.zeros_(layers[name].weight)
        self.layers = nn.ModuleDict(layers)
        self.norms = nn.ParameterDict({name: torch.ones(hidden) for name in ("input", "hidden", "attention", "output")})
        self.output = nn.Parameter(output.clone())
        frequencies = config.rope_base ** -(torch.arange(0, config.head_size, 2) / config.head_size)
        self.angles: Tensor
        self.register_buffer("angles", torch.outer(torch.arange(SEQUENCE_TOKENS), frequencies), persistent=False)

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], self.norms[name], self.config.norm_epsilon)

    def predict(self, batch: TargetStates) -> LogitPairs:
        """Return, for every depth, the head's logits and the target's at the same positions."""
        pairs = []
        for depth, x in enumerate(self.states(batch.layers, batch.tokens)):
            target_logits = batch.last[:, depth + 1 : x.shape[1] + depth + 1] @ self.target_output.T
            pairs.append((x @ self.output.T, target_logits))
        return pairs

    def states(self, layers: Tensor, tokens: Tensor) -> Iterator[Tensor]:
        """Yield, for every depth, the input of the output layer, (sequences, positions, hidden).

        Position p predicts token p + depth + 2.

        Args:
            layers: (sequences, T, 3 hidden) hidden states of the target.
            tokens: int64 (sequences, T).
        """
        positions = tokens.shape[1] - self.unrolled
        x = self.layers["fc"](layers[:, :positions])
        cache: list[tuple[Tensor, Tensor]] = []
        for depth in range(self.unrolled):
            embedded = F.embedding(tokens[:, depth + 1 : positions + depth + 1], self.embedding)
            attention_input = torch.cat([self.norm(embedded, "input"), self.norm(x, "hidden")], -1)
            y = x + self.attend(attention_input, depth, cache)
            z = self.norm(y, "attention")
            x = y + self.layers["down"](F.silu(self.layers["gate"](z)) * self.layers["up"](z))
            yield self.norm(x, "output")

    def attend(self, x: Tensor, depth: int, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return the output of attention; append this depth's keys and values to `cache`.

        A position attends to the positions up to its own at depth 0, and to itself at later depths.
        """
        config, (sequences, positions, _) = self.config, x.shape
        shape = (sequences, positions, -1, config.head_size)
        angles = self.angles[depth : depth + positions, None]
        query = rotate(self.layers["q"](x).view(shape), angles).transpose(1, 2)
        key = rotate(self.layers["k"](x).view(shape), angles).transpose(1, 2)
        value = self.layers["v"](x).view(shape).transpose(1, 2)
        groups = config.heads // config.key_value_heads
        cache.append((key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)))
        (keys, values), *later_depths = cache
        future = torch.ones(positions, positions, dtype=torch.bool).triu(1)
        scores = [(query @ keys.transpose(-1, -2)).masked_fill(future, float("-inf"))]
        scores += [(query * depth_keys).sum(-1, keepdim=True) for depth_keys, _ in later_depths]
        weights = (torch.cat([score.float() for score in scores], -1) * config.head_size**-0.5).softmax(-1)
        attended = weights[..., :positions] @ values
        for index, (_, depth_values) in enumerate(later_depths):
            attended = attended + weights[..., positions + index, None] * depth_values
        output: Tensor = self.layers["o"](attended.transpose(1, 2).reshape(sequences, positions, -1))
        return output


NAMES = {
    "layers.fc.weight": "fc.weight",
    "layers.q.weight": "midlayer.self_attn.q_proj.weight",
    "layers.k.weight": "midlayer.self_attn.k_proj.weight",
    "layers.v.weight": "midlayer.self_attn.v_proj.weight",
    "layers.o.weight": "midlayer.self_attn.o_proj.weight",
    "layers.gate.weight": "midlayer.mlp.gate_proj.weight",
    "layers.up.weight": "midlayer.mlp.up_proj.weight",
    "layers.down.weight": "midlayer.mlp.down_proj.weight",
    "norms.input": "midlayer.input_layernorm.weight",
    "norms.hidden": "midlayer.hidden_norm.weight",
    "norms.attention": "midlayer.post_attention_layernorm.weight",
    "norms.output": "norm.weight",
    "output": "lm_head.weight",
}


def save(head: EagleHead, layers: int, folder: Path) -> None:
    """Write config.json, and the weights in float16 under SafeAILab's names, for a target of that many layers."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **size_fields(head.config),
        "intermediate_size": head.inner,
        "num_hidden_layers": 1,
        "draft_vocab_size": len(head.output),
        "eagle_config": {LAYER_IDS_FIELD: [layer_id - 1 for layer_id in default_layer_ids(layers)]},
    }
    weights = head.state_dict()
    tensors = {new: weights[name].half().contiguous() for name, new in NAMES.items()}
    if head.draft_tokens is not None:
        tensors["d2t"] = head.draft_tokens - torch.arange(len(head.draft_tokens))
    write_head(folder, config, tensors)


def load(head: EagleHead, folder: Path) -> None:
    """Load the weights and the draft vocabulary that `save` wrote."""
    stored = load_file(folder / "model.safetensors")
    head.load_state_dict({name: stored[new].float() for name, new in NAMES.items()})
    if head.draft_tokens is not None:
        head.draft_tokens = stored["d2t"] + torch.arange(len(stored["d2t"]))


def main() -> None:
    train_from_layer_states(
        "eagle",
        EagleHead,
        lambda head, batch, _: head.predict(batch),
        save,
        load,
        description=__doc__,
        depth_weight=DEPTH_WEIGHT,
        steps=300,
    )


if __name__ == "__main__":
    main()
