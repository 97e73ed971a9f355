"""Train Medusa's heads on the bundled target (Cai et al., 2024).

    OMP_NUM_THREADS=1 python tools/train_heads.py --target treeopt/bundled/target --output treeopt/bundled/medusa

Head i reads the target's last hidden state h at a token and predicts the token 1 + i places behind it: the target's own
output layer on h + silu(W h + b).  The target stays as it is.  A head learns the target's distribution at the place
that it proposals, which it cannot see: on average over texts that is the distribution of the token, given h.
"""

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import head_lessons
import head_training
import torch
from llama import load_llama
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import silu

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

HEADS = 5
HEAD_WEIGHT = 0.8
"""Of a head's loss beside that of the one before (Cai et al., 2024, section 2.2.1)."""
HELD_OUT_TEXTS = 32


class Heads(nn.Module):
    """What `treeopt.runtime.drafters.medusa` runs, in a form that learns; untrained heads say what the target says."""

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


def proposals(heads: Heads, hidden: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each head's logits and the target's at the places it predicts, (texts, places, V) each.

    Args:
        heads: what is trained.
        hidden: (texts, T, hidden) of the target at each token; at t it gives the distribution of the token at t + 1.
    """
    places = hidden.shape[1] - HEADS
    wanted = hidden @ heads.output.T
    given = heads(hidden[:, :places])
    return [(logits, wanted[:, i : places + i]) for i, logits in enumerate(given, start=1)]


def save(heads: Heads, folder: Path) -> None:
    """Write the weights in half precision, head after head, and what they fit."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, hidden = heads.output.shape
    config = {"kind": "medusa", "heads": HEADS, "hidden_size": hidden, "vocabulary": vocabulary}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    weights = {name: torch.stack([getattr(layer, name) for layer in heads.layers]) for name in ("weight", "bias")}
    save_file({name: w.detach().half() for name, w in weights.items()}, folder / "model.safetensors")


def main() -> None:
    """Parse the arguments, train on most of the lessons, report on the others, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--learning-rate", type=float, default=2e-2)
    options = parser.parse_args()
    start_s = time.perf_counter()
    target = load_llama(options.target)
    hidden = head_lessons.prepared(target).hidden
    lessons_s = time.perf_counter() - start_s
    heads = Heads(target)
    learnt = hidden[:-HELD_OUT_TEXTS]
    head_training.fit(
        heads,
        lambda texts: proposals(heads, learnt[texts].float()),
        len(learnt),
        weight=HEAD_WEIGHT,
        steps=options.steps,
        rate=options.learning_rate,
        title="heads",
    )
    with torch.no_grad():
        head_training.report(proposals(heads, hidden[-HELD_OUT_TEXTS:].float()), (1, 5, 10))
    save(heads, options.output)
    minutes = (time.perf_counter() - start_s) / 60
    print(f"{minutes:.1f} minutes, {lessons_s / 60:.1f} of them for lessons")


if __name__ == "__main__":
    main()
