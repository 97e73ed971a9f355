"""Train Medusa's heads on the bundled target (Cai et al., 2024).

    OMP_NUM_THREADS=1 python tools/train_heads.py --target treeopt/bundled/target --output treeopt/bundled/medusa

Head i reads the target's last hidden state h at a token and predicts the token 1 + i positions later: the target's frozen
output layer on h + silu(W h + b). A head is trained towards the target's distribution at that position, which depends on
tokens that it does not see; so it learns the average over sequences, given h.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from head_training import LogitPairs, head_parser, load_last_states, train_head, write_head
from torch import Tensor, nn
from torch.nn.functional import silu
from train_target import load_llama

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

HEADS = 5
DEPTH_WEIGHT = 0.8
"""Loss weight of a head over that of the previous one (Cai et al., 2024, section 2.2.1)."""


class MedusaHeads(nn.Module):
    """The trainable form of `treeopt.runtime.drafters.medusa`; untrained heads predict what the target predicts."""

    def __init__(self, target: "LlamaForCausalLM") -> None:
        super().__init__()
        hidden = target.config.hidden_size
        self.output: Tensor
        self.register_buffer("output", target.lm_head.weight.detach(), persistent=False)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(HEADS))
        for parameter in self.layers.parameters():
            nn.init.zeros_(parameter)

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Return the logits (…, V) of every head on hidden states (…, hidden)."""
        return [(hidden + silu(layer(hidden))) @ self.output.T for layer in self.layers]


def predict(heads: MedusaHeads, hidden: Tensor) -> LogitPairs:
    """Return each head's logits and the target's at the positions it predicts.

    Args:
        heads: the heads.
        hidden: (sequences, T, hidden) of the target; at t it determines the distribution of the token at t + 1.
    """
    positions = hidden.shape[1] - HEADS
    target_logits = hidden @ heads.output.T
    logits = heads(hidden[:, :positions])
    return [(logits[i - 1], target_logits[:, i : positions + i]) for i in range(1, HEADS + 1)]


def save(heads: MedusaHeads, folder: Path) -> None:
    """Write config.json, and the weights in float16, stacked over heads."""
    vocabulary, hidden = heads.output.shape
    config = {"kind": "medusa", "heads": HEADS, "hidden_size": hidden, "vocabulary": vocabulary}
    weights = {name: torch.stack([getattr(layer, name) for layer in heads.layers]) for name in ("weight", "bias")}
    write_head(folder, config, {name: w.detach().half() for name, w in weights.items()})


def main() -> None:
    args = head_parser(__doc__, steps=3000, learning_rate=2e-2).parse_args()
    target = load_llama(args.target)
    heads = MedusaHeads(target)
    train_head(
        heads,
        lambda batch, _: predict(heads, batch.last),
        load_last_states(target),
        depth_weight=DEPTH_WEIGHT,
        steps=args.steps,
        learning_rate=args.learning_rate,
        title="heads",
        save=lambda folder: save(heads, folder),
        output=args.output,
    )


if __name__ == "__main__":
    main()
