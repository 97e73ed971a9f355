"""Train the bundled draft to predict what the bundled target says (distillation).

    python tools/train_draft.py --target build/pair/target --output build/pair/draft

It took about a quarter of an hour on two cores, more than half of it for what the target writes and says.  The draft
learns from the corpus and from texts that the target writes itself, because that is what it will be asked to draft: the
loss is the divergence of the draft's distribution from the target's at every position.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import corpus
import torch
from llama import load_llama
from torch.nn.functional import kl_div, log_softmax
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from tqdm import tqdm
from train_target import TRAINED_TOKENS, optimizers, schedule

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

TEMPERATURES = (0.0, 0.6, 1.0)
"""Of the texts that the target writes."""
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
def written_texts(target: "LlamaForCausalLM", count: int, tokens: int, generator: torch.Generator) -> torch.Tensor:
    """Return int64 (count, tokens): texts that the target writes after short pieces of the training corpus."""
    pieces = corpus.windows(corpus.byte_stream(held_out=False), 96, generator)
    texts: list[torch.Tensor] = []
    for batch in tqdm(range(count // 48), desc="texts"):
        prompts = torch.stack([next(pieces)[:96] for _ in range(48)])
        temperature = TEMPERATURES[batch % len(TEMPERATURES)]
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        texts.append(
            cast("Any", target).generate(  # its own annotations do not take a model
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=tokens - 96,
                min_new_tokens=tokens - 96,
                pad_token_id=corpus.SEPARATOR,
                **sampling,
            )
        )
    return torch.cat(texts)


@torch.no_grad()
def lessons(target: "LlamaForCausalLM", texts: torch.Tensor, corpus_windows: int) -> TensorDataset:
    """Return windows of the corpus and all texts, each with the target's logits after every token, in half precision."""
    pieces = corpus.windows(corpus.byte_stream(held_out=False), TRAINED_TOKENS, torch.Generator().manual_seed(2))
    windows = torch.cat([torch.stack([next(pieces)[:-1] for _ in range(corpus_windows)]), texts])
    logits = torch.empty((*windows.shape, 256), dtype=torch.float16)
    for start in tqdm(range(0, len(windows), 8), desc="lessons"):
        with torch.autocast("cpu", torch.bfloat16):
            logits[start : start + 8] = target(windows[start : start + 8]).logits
    return TensorDataset(windows, logits)


def distil(draft: "LlamaForCausalLM", taught: TensorDataset, *, steps: int, rate: float) -> None:
    """Train the draft in place on KL(target || draft)."""
    optimizer_pair = optimizers(draft, rate)
    sampler = RandomSampler(taught, True, steps * WINDOWS_PER_STEP, generator=torch.Generator().manual_seed(4))
    bar = tqdm(DataLoader(taught, WINDOWS_PER_STEP, sampler=sampler), desc="draft")
    for step, (windows, wanted) in enumerate(bar):
        for optimizer in optimizer_pair:
            optimizer.param_groups[0]["lr"] = rate * schedule((step + 1) / steps)
        with torch.autocast("cpu", torch.bfloat16):
            given = draft(windows).logits
        loss = kl_div(
            log_softmax(given.float(), -1).flatten(0, 1),
            log_softmax(wanted.float(), -1).flatten(0, 1),
            log_target=True,
            reduction="batchmean",
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        for optimizer in optimizer_pair:
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 0:
            agreement = (wanted.argmax(-1) == given.argmax(-1)).float().mean().item()
            bar.set_postfix(loss=f"{loss.item():.3f}", agreement=f"{agreement:.3f}")


def main() -> None:
    """Parse the arguments, distil, save in half precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--texts", type=int, default=288)
    parser.add_argument("--corpus-windows", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    options = parser.parse_args()
    draft = new_model(options.layers, options.hidden)
    distil(draft, prepared(options), steps=options.steps, rate=options.learning_rate)
    draft.half().save_pretrained(options.output)


def prepared(options: argparse.Namespace) -> TensorDataset:
    """Return the lessons, made once and kept beside the target."""
    store = options.target.with_name("lessons.pt")
    if not store.is_file():
        target = load_llama(options.target)
        texts = written_texts(target, options.texts, TRAINED_TOKENS, torch.Generator().manual_seed(3))
        torch.save(lessons(target, texts, options.corpus_windows).tensors, store)
    return TensorDataset(*torch.load(store, weights_only=True))


if __name__ == "__main__":
    main()
