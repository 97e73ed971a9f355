"""Distil the bundled draft model from the bundled target.

    python tools/train_draft.py --target build/pair/target --output build/pair/draft

The training data is windows of the corpus and sequences sampled from the target, because the draft model drafts the
target's output. The loss is KL(target || draft) at every position. It takes a quarter of an hour on two cores, more than
half of it for the target's sequences and logits.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import corpus
import torch
from torch.nn.functional import kl_div, log_softmax
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from tqdm import tqdm
from train_target import TRAINED_TOKENS, load_llama, new_llama, optimizers, schedule, update_weights, write_folder

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TEMPERATURES = (0.0, 0.6, 1.0)
"""Of the sequences sampled from the target."""
PROMPT_TOKENS, BATCH_SEQUENCES = 96, 48
WINDOWS_PER_STEP = 4
SEQUENCES, CORPUS_WINDOWS = 288, 1024
"""Sequences sampled from the target, and windows of the corpus."""


@torch.no_grad()
def sample_sequences(target: "LlamaForCausalLM", count: int, tokens: int, generator: torch.Generator) -> torch.Tensor:
    """Return int64 (count, tokens) sequences sampled from the target after prompts from the training corpus.

    `count` is a multiple of BATCH_SEQUENCES.
    """
    windows = corpus.windows(corpus.byte_stream(held_out=False), PROMPT_TOKENS, generator)
    sequences: list[torch.Tensor] = []
    for batch in tqdm(range(count // BATCH_SEQUENCES), desc="sequences"):
        prompts = torch.stack([next(windows)[:PROMPT_TOKENS] for _ in range(BATCH_SEQUENCES)])
        temperature = TEMPERATURES[batch % len(TEMPERATURES)]
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        sequences.append(
            cast("Any", target).generate(  # its own annotations do not take a model
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=tokens - PROMPT_TOKENS,
                min_new_tokens=tokens - PROMPT_TOKENS,
                pad_token_id=corpus.SEPARATOR,
                **sampling,
            )
        )
    return torch.cat(sequences)


@torch.no_grad()
def compute_logits(target: "LlamaForCausalLM", sampled: torch.Tensor) -> TensorDataset:
    """Return windows of the corpus and the sampled sequences, with the target's logits at every token in float16."""
    windows = corpus.windows(corpus.byte_stream(held_out=False), TRAINED_TOKENS, torch.Generator().manual_seed(2))
    tokens = torch.cat([torch.stack([next(windows)[:-1] for _ in range(CORPUS_WINDOWS)]), sampled])
    logits = torch.empty((*tokens.shape, 256), dtype=torch.float16)
    for start in tqdm(range(0, len(tokens), 8), desc="logits"):
        with torch.autocast("cpu", torch.bfloat16):
            logits[start : start + 8] = target(tokens[start : start + 8]).logits
    return TensorDataset(tokens, logits)


def divergence(logits: torch.Tensor, target_logits: torch.Tensor) -> torch.Tensor:
    """Return the mean KL(target || drafter) of logits (…, V)."""
    log_q, log_p = (log_softmax(values.float(), -1).flatten(0, -2) for values in (logits, target_logits))
    return kl_div(log_q, log_p, log_target=True, reduction="batchmean")


def distil(draft: "LlamaForCausalLM", dataset: TensorDataset, *, steps: int, learning_rate: float) -> None:
    """Train the draft in place on KL(target || draft)."""
    optimizer_pair = optimizers(draft, learning_rate)
    sampler = RandomSampler(dataset, True, steps * WINDOWS_PER_STEP, generator=torch.Generator().manual_seed(4))
    bar = tqdm(DataLoader(dataset, WINDOWS_PER_STEP, sampler=sampler), desc="draft")
    for step, (windows, target_logits) in enumerate(bar):
        with torch.autocast("cpu", torch.bfloat16):
            logits = draft(windows).logits
        loss = divergence(logits, target_logits)
        update_weights(loss, optimizer_pair, learning_rate * schedule((step + 1) / steps))
        if step % 20 == 0:
            agreement = (target_logits.argmax(-1) == logits.argmax(-1)).float().mean().item()
            bar.set_postfix(loss=f"{loss.item():.3f}", agreement=f"{agreement:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--output", type=Path, required=True, help="folder for the draft model")
    parser.add_argument("--steps", type=int, default=1600, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="maximum (default: %(default)s)")
    args = parser.parse_args()
    draft = new_llama(seed=1, hidden=128, layers=2, head_size=32, tied_head=True)
    distil(draft, load_dataset(args.target), steps=args.steps, learning_rate=args.learning_rate)
    write_folder(args.output, draft.half().save_pretrained)


def load_dataset(target_folder: Path) -> TensorDataset:
    """Return the training data from its file next to the target; compute it if there is none."""
    store = target_folder.with_name("dataset.pt")
    if not store.is_file():
        target = load_llama(target_folder)
        sampled = sample_sequences(target, SEQUENCES, TRAINED_TOKENS, torch.Generator().manual_seed(3))
        unfinished = store.with_suffix(".partial")
        torch.save(compute_logits(target, sampled).tensors, unfinished)
        unfinished.replace(store)
    return TensorDataset(*torch.load(store, weights_only=True))


if __name__ == "__main__":
    main()
