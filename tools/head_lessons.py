"""What heads on the bundled target learn from: texts, and the target's last hidden state at every token of them.

Some texts the target wrote itself, most are windows of the corpus, which cost less and of which heads need many.
They are made once, in a few minutes on one core, and kept in a file.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import corpus
import torch
from tqdm import tqdm
from train_draft import written_texts

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

STORE = Path("build/heads/lessons.pt")
TEXT_TOKENS = 512


class Lessons(NamedTuple):
    """Texts with what the target thinks at each of their tokens."""

    hidden: torch.Tensor
    """float16 (N, T, hidden): the target's last hidden states, normed, at each token; its head gives the distribution after it."""
    tokens: torch.Tensor
    """int64 (N, T)."""


def prepared(
    target: "LlamaForCausalLM", store: Path = STORE, *, texts: int = 384, corpus_windows: int = 1920
) -> Lessons:
    """Return the lessons, made once and kept in `store`; a process waits for no other, the last to end keeps its own."""
    if not store.is_file():
        store.parent.mkdir(parents=True, exist_ok=True)
        unfinished = store.with_suffix(f".{os.getpid()}")
        torch.save(tuple(lessons(target, texts=texts, corpus_windows=corpus_windows)), unfinished)
        unfinished.rename(store)
    return Lessons(*torch.load(store, weights_only=True))


@torch.no_grad()
def lessons(target: "LlamaForCausalLM", *, texts: int, corpus_windows: int, tokens: int = TEXT_TOKENS) -> Lessons:
    """Return texts of the target (a multiple of 48, at temperatures 0, 0.6 and 1) and windows of the corpus, shuffled."""
    written = written_texts(target, texts, tokens, torch.Generator().manual_seed(5))
    stream = corpus.windows(corpus.byte_stream(held_out=False), tokens, torch.Generator().manual_seed(6))
    windows = torch.stack([next(stream)[:-1] for _ in range(corpus_windows)])
    together = torch.cat([written, windows])
    together = together[torch.randperm(len(together), generator=torch.Generator().manual_seed(7))]
    hidden = torch.empty((*together.shape, target.config.hidden_size), dtype=torch.float16)
    for start in tqdm(range(0, len(together), 8), desc="lessons"):
        with torch.autocast("cpu", torch.bfloat16):
            hidden[start : start + 8] = target.model(together[start : start + 8]).last_hidden_state
    return Lessons(hidden, together)
