"""Train the bundled draft to predict what the bundled target says (distillation).

    python tools/train_draft.py --target build/pair/target --output build/pair/draft

About 25 CPU minutes on two cores.  First on the corpus, then on texts that the target writes itself, because that is
what it will be asked to draft: the loss is the divergence of the draft's law from the target's at every position.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import corpus
import torch
from torch.nn.functional import kl_div, log_softmax
from tqdm import tqdm
from train_target import TOKENS_PER_STEP, TRAINED_TOKENS, optimizers, schedule
from transformers import LlamaConfig, LlamaForCausalLM

TEMPERATURES = (0.0, 0.6, 1.0)
"""Of the texts that the target writes."""


def new_model(layers: int, hidden: int) -> LlamaForCausalLM:
    """Return an untrained draft with a tied head."""
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
def written_texts(target: LlamaForCausalLM, count: int, tokens: int, generator: torch.Generator) -> torch.Tensor:
    """Return int64 (count, tokens): texts that the target writes after short pieces of the training corpus."""
    pieces = corpus.windows(corpus.byte_stream(held_out=False), 96, generator)
    texts = []
    for batch in tqdm(range(count // 48), desc="texts"):
        prompts = torch.stack([next(pieces)[:96] for _ in range(48)])
        temperature = TEMPERATURES[batch % len(TEMPERATURES)]
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        with torch.autocast("cpu", torch.bfloat16):
            texts.append(
                target.generate(
                    prompts,
                    attention_mask=torch.ones_like(prompts),
                    max_new_tokens=tokens - 96,
                    min_new_tokens=tokens - 96,
                    pad_token_id=corpus.SEPARATOR,
                    **sampling,
                )
            )
    return torch.cat(texts)


def batches(texts: torch.Tensor, share: float, steps: int) -> Iterator[torch.Tensor]:
    """Yield int64 (windows, tokens): corpus windows during the first `share` of the steps, written texts afterwards."""
    generator = torch.Generator().manual_seed(2)
    stream = corpus.byte_stream(held_out=False)
    pieces = corpus.windows(stream, TRAINED_TOKENS, generator)
    rows = max(1, TOKENS_PER_STEP // texts.shape[1])
    for step in range(steps):
        if step < share * steps:
            yield torch.stack([next(pieces)[:-1] for _ in range(TOKENS_PER_STEP // TRAINED_TOKENS)])
        else:
            yield texts[torch.randint(len(texts), (rows,), generator=generator)]


def distil(draft: LlamaForCausalLM, target: LlamaForCausalLM, texts: torch.Tensor, steps: int, rate: float) -> None:
    """Train the draft in place on KL(target || draft)."""
    optimizer_pair = optimizers(draft, rate)
    bar = tqdm(batches(texts, 0.4, steps), total=steps, desc="draft")
    for step, batch in enumerate(bar):
        for optimizer in optimizer_pair:
            optimizer.param_groups[0]["lr"] = rate * schedule((step + 1) / steps)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = target(batch).logits
            given = draft(batch).logits
        agreement = (wanted.argmax(-1) == given.argmax(-1)).float().mean().item()
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
        bar.set_postfix(loss=f"{loss.item():.3f}", agreement=f"{agreement:.3f}")


def main() -> None:
    """Parse the arguments, write texts once, distil, save in half precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--texts", type=int, default=576)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    options = parser.parse_args()
    target = LlamaForCausalLM.from_pretrained(options.target, dtype=torch.float32).eval()
    store = options.target.with_name("texts.pt")
    if store.is_file():
        texts = torch.load(store, weights_only=True)
    else:
        texts = written_texts(target, options.texts, TRAINED_TOKENS, torch.Generator().manual_seed(3))
        torch.save(texts, store)
    draft = new_model(options.layers, options.hidden)
    distil(draft, target, texts, options.steps, options.learning_rate)
    draft.half().save_pretrained(options.output)


if __name__ == "__main__":
    main()
