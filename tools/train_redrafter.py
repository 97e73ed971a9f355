"""Train the recurrent head of the bundled target (ReDrafter: Zhang et al., 2024).

    OMP_NUM_THREADS=1 python tools/train_redrafter.py --target treeopt/bundled/target --output treeopt/bundled/redrafter

The target stays as it is.  From every token of a text the head is unrolled over the next ones, and at every step its
distribution is pulled to what the target says there (distillation).
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
from torch.nn.functional import embedding, rms_norm, silu

from treeopt.runtime.drafters.redrafter import LEAST_MEAN_SQUARE

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

BLOCKS = 2
UNROLLED_TOKENS = 6
STEP_WEIGHT = 0.85
"""Of a step's loss beside the one before: later ones count less, because they are reached less often."""
HELD_OUT_TEXTS = 32
STORE = Path("build/heads/redrafter_lessons.pt")
CORPUS_WINDOWS = 2304
"""Eight times as many as other heads learn from: this one reads tokens, and comes to know few texts too well."""


class RecurrentHead(nn.Module):
    """What `treeopt.runtime.drafters.redrafter` runs, in a form that learns."""

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
        """Return the target's embeddings, brought to a root mean square of 1."""
        return rms_norm(embedding(tokens, self.embedding), self.embedding.shape[1:], eps=LEAST_MEAN_SQUARE)

    def advance(self, state: Tensor, tokens: Tensor) -> Tensor:
        """Return the states after the tokens."""
        return silu(self.layers["state"](state) + self.layers["token"](self.embed(tokens)))

    def forward(self, hidden: Tensor, state: Tensor) -> Tensor:
        """Return the logits after each state; `hidden` is the target's before the root."""
        x: Tensor = self.layers["input"](torch.cat([hidden, state], -1))
        for block in self.layers["blocks"].children():
            x = x + silu(block(x))
        return x @ self.output.T


def unrolled(head: RecurrentHead, hidden: Tensor, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return, for every step, the head's logits and the target's at the same places, each (texts, places, V).

    Args:
        head: what is trained.
        hidden: (texts, T, hidden) of the target, at each token.
        tokens: int64 (texts, T).
    """
    places = tokens.shape[1] - UNROLLED_TOKENS
    before, state, steps = hidden[:, :places], head.embed(tokens[:, 1 : places + 1]), []
    for step in range(1, UNROLLED_TOKENS + 1):
        wanted = hidden[:, step : places + step] @ head.output.T
        steps.append((head(before, state), wanted))
        if step < UNROLLED_TOKENS:
            state = head.advance(state, tokens[:, step + 1 : places + step + 1])
    return steps


def save(head: RecurrentHead, folder: Path) -> None:
    """Write the weights in half precision, and what they fit."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary, hidden = head.output.shape
    config = {"kind": "redrafter", "hidden_size": hidden, "vocabulary": vocabulary, "blocks": BLOCKS}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    weights = {name.removeprefix("layers."): w.half().contiguous() for name, w in head.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def main() -> None:
    """Parse the arguments, train on most of the lessons, report on the others, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    options = parser.parse_args()
    start_s = time.perf_counter()
    target = load_llama(options.target)
    hidden, tokens = head_lessons.prepared(target, STORE, corpus_windows=CORPUS_WINDOWS)
    lessons_s = time.perf_counter() - start_s
    torch.manual_seed(9)
    head = RecurrentHead(target)
    kept = head_lessons.Lessons(hidden[:-HELD_OUT_TEXTS], tokens[:-HELD_OUT_TEXTS])
    head_training.fit(
        head,
        lambda texts: unrolled(head, kept.hidden[texts].float(), kept.tokens[texts]),
        len(kept.tokens),
        weight=STEP_WEIGHT,
        steps=options.steps,
        rate=options.learning_rate,
        title="redrafter",
    )
    with torch.no_grad():
        distributions = unrolled(head, hidden[-HELD_OUT_TEXTS:].float(), tokens[-HELD_OUT_TEXTS:])
    head_training.report(distributions, (1, 5))
    save(head, options.output)
    minutes = (time.perf_counter() - start_s) / 60
    print(f"{minutes:.1f} minutes, {lessons_s / 60:.1f} of them for lessons")


if __name__ == "__main__":
    main()
