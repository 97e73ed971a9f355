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
from train_target import TRAINED_TOKENS, load_llama, optimizers, schedule, write_folder

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TEMPERATURES = (0.0, 0.6, 1.0)
"""Of the sequences sampled from the target."""
PROMPT_TOKENS, BATCH_SEQUENCES = 96, 48
WINDOWS_PER_STEP = 4


def new_model(layers: int, hidden: int) -> "LlamaForCausalLM":
    """Return an untrained draft with a tied head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=hidden,
            intermediate_size=hidden * 11 // 4,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 32,
            num_key_value_heads=hidden // 64,
            head_dim=32,
            max_position_embeddings=TRAINED_TOKENS,
            tie_word_embeddings=True,
            bos_token_id=corpus.SEPARATOR,
            eos_token_id=corpus.SEPARATOR,
            pad_token_id=None,
        )
    )


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
def compute_logits(target: "LlamaForCausalLM", sampled: torch.Tensor, corpus_windows: int) -> TensorDataset:
    """Return windows of the corpus and the sampled sequences, with the target's logits at every token in float16."""
    windows = corpus.windows(corpus.byte_stream(held_out=False), TRAINED_TOKENS, torch.Generator().manual_seed(2))
    tokens = torch.cat([torch.stack([next(windows)[:-1] for _ in range(corpus_windows)]), sampled])
    logits = torch.empty((*tokens.shape, 256), dtype=torch.float16)
    for start in tqdm(range(0, len(tokens), 8), desc="logits"):
        with torch.autocast("cpu", torch.bfloat16):
            logits[start : start + 8] = target(tokens[start : start + 8]).logits
    return TensorDataset(tokens, logits)


def distil(draft: "LlamaForCausalLM", dataset: TensorDataset, *, steps: int, learning_rate: float) -> None:
    """Train the draft in place on KL(target || draft)."""
    optimizer_pair = optimizers(draft, learning_rate)
    sampler = RandomSampler(dataset, True, steps * WINDOWS_PER_STEP, generator=torch.Generator().manual_seed(4))
    bar = tqdm(DataLoader(dataset, WINDOWS_PER_STEP, sampler=sampler), desc="draft")
    for step, (windows, target_logits) in enumerate(bar):
        for optimizer in optimizer_pair:
            optimizer.param_groups[0]["lr"] = learning_rate * schedule((step + 1) / steps)
        with torch.autocast("cpu", torch.bfloat16):
            logits = draft(windows).logits
        loss = kl_div(
            log_softmax(logits.float(), -1).flatten(0, 1),
            log_softmax(target_logits.float(), -1).flatten(0, 1),
            log_target=True,
            reduction="batchmean",
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        for optimizer in optimizer_pair:
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 0:
            agreement = (target_logits.argmax(-1) == logits.argmax(-1)).float().mean().item()
            bar.set_postfix(loss=f"{loss.item():.3f}", agreement=f"{agreement:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--output", type=Path, required=True, help="folder for the draft model")
    parser.add_argument("--layers", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--hidden", type=int, default=128, help="width (default: %(default)s)")
    parser.add_argument(
        "--sequences", type=int, default=288, help="sequences to sample from the target (default: %(default)s)"
    )
    parser.add_argument("--corpus-windows", type=int, default=1024, help="windows of the corpus (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1600, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="maximum (default: %(default)s)")
    args = parser.parse_args()
    draft = new_model(args.layers, args.hidden)
    distil(draft, load_dataset(args), steps=args.steps, learning_rate=args.learning_rate)
    write_folder(args.output, draft.half().save_pretrained)


def load_dataset(args: argparse.Namespace) -> TensorDataset:
    """Return the training data from its file next to the target; compute it if there is none."""
    store = args.target.with_name("dataset.pt")
    if not store.is_file():
        target = load_llama(args.target)
        sampled = sample_sequences(target, args.sequences, TRAINED_TOKENS, torch.Generator().manual_seed(3))
        unfinished = store.with_suffix(".partial")
        torch.save(compute_logits(target, sampled, args.corpus_windows).tensors, unfinished)
        unfinished.replace(store)
    return TensorDataset(*torch.load(store, weights_only=True))


if __name__ == "__main__":
    main()
