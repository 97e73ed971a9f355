"""Train the recurrent head of the bundled target (ReDrafter: Zhang et al., 2024).

    OMP_NUM_THREADS=1 python tools/train_redrafter.py --target treeopt/bundled/target --output treeopt/bundled/redrafter

The target is frozen. From every token of a sequence the head is unrolled over the next tokens, and at every depth it is
trained towards the target's distribution.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from head_training import LogitPairs, head_parser, load_last_states, train_head, write_head
from torch import Tensor, nn
from torch.nn.functional import embedding, rms_norm, silu
from train_target import load_llama

from treeopt.runtime.drafters.redrafter import NORM_EPSILON

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

BLOCKS = 2
UNROLLED_TOKENS = 6
DEPTH_WEIGHT = 0.85
"""Loss weight of a depth over that of the previous one: later depths are reached less often."""
CORPUS_WINDOWS = 2304
"""More than for Medusa: this head reads tokens, and overfits on fewer sequences."""


class RecurrentHead(nn.Module):
    """The trainable form of `treeopt.runtime.drafters.redrafter`."""

    def __init__(self, target: "LlamaForCausalLM") -> None:
        super().__init__()
        hidden = target.config.hidden_size
        self.embedding: Tensor
        self.output: Tensor
        self.register_buffer("embedding", target.model.embed_tokens.weight.detach(), persistent=False)
        self.register_buffer("output", target.lm_head.weight.detach(), persistent=False)
        self.layers = nn.ModuleDict(
            {
                "state": nn.Linear(hidden, hidden),
                "token": nn.Linear(hidden, hidden, bias=False),
                "input": nn.Linear(2 * hidden, hidden),
                "blocks": nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(BLOCKS)),
            }
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the target's embeddings, scaled to a root mean square of 1."""
        return rms_norm(embedding(tokens, self.embedding), self.embedding.shape[1:], eps=NORM_EPSILON)

    def advance(self, state: Tensor, tokens: Tensor) -> Tensor:
        """Return the states after the tokens."""
        return silu(self.layers["state"](state) + self.layers["token"](self.embed(tokens)))

    def forward(self, hidden: Tensor, state: Tensor) -> Tensor:
        """Return the logits after each state; `hidden` is the target's last hidden state before the root."""
        x: Tensor = self.layers["input"](torch.cat([hidden, state], -1))
        for block in self.layers["blocks"].children():
            x = x + silu(block(x))
        return x @ self.output.T


def predict(head: RecurrentHead, hidden: Tensor, tokens: Tensor) -> LogitPairs:
    """Return, for every depth, the head's logits and the target's at the same positions.

    Args:
        head: the head.
        hidden: (sequences, T, hidden) of the target, at each token.
        tokens: int64 (sequences, T).
    """
    positions = tokens.shape[1] - UNROLLED_TOKENS
    before_root, state, pairs = hidden[:, :positions], head.embed(tokens[:, 1 : positions + 1]), []
    for depth in range(1, UNROLLED_TOKENS + 1):
        target_logits = hidden[:, depth : positions + depth] @ head.output.T
        pairs.append((head(before_root, state), target_logits))
        if depth < UNROLLED_TOKENS:
            state = head.advance(state, tokens[:, depth + 1 : positions + depth + 1])
    return pairs


def save(head: RecurrentHead, folder: Path) -> None:
    """Write config.json, and the weights in float16."""
    vocabulary, hidden = head.output.shape
    config = {"kind": "redrafter", "hidden_size": hidden, "vocabulary": vocabulary, "blocks": BLOCKS}
    weights = head.state_dict().items()
    write_head(folder, config, {name.removeprefix("layers."): w.half().contiguous() for name, w in weights})


def main() -> None:
    args = head_parser(__doc__, steps=1600, learning_rate=1e-2).parse_args()
    target = load_llama(args.target)
    states = load_last_states(target, corpus_windows=CORPUS_WINDOWS)
    torch.manual_seed(9)
    head = RecurrentHead(target)
    train_head(
        head,
        lambda batch, _: predict(head, batch.last, batch.tokens),
        states,
        depth_weight=DEPTH_WEIGHT,
        steps=args.steps,
        learning_rate=args.learning_rate,
        title="redrafter",
        save=lambda folder: save(head, folder),
        output=args.output,
    )


if __name__ == "__main__":
    main()
