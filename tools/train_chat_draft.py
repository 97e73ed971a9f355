"""Train a small draft model with a chat model's tokenizer, on chats that the model wrote.

    python tools/train_chat_draft.py build/real-model build/chats --output examples/smollm2/draft

It is a narrow Llama whose embedding, which is most of it, begins as the best approximation of the target's in as many
dimensions: tokens that the chats lack are placed where they belong.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from chat_lessons import Batch, load_lessons
from chat_training import Guesses, fit
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from treeopt.runtime import load_model

HIDDEN, HEAD_SIZE, INNER, LAYERS = 160, 32, 448, 4


def new_draft(config: Any, embedding: Tensor) -> LlamaForCausalLM:
    """Return an untrained draft model for a target's configuration and its embedding (vocabulary, hidden)."""
    torch.manual_seed(0)
    draft = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(embedding),
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HIDDEN // HEAD_SIZE,
            num_key_value_heads=HIDDEN // HEAD_SIZE,
            head_dim=HEAD_SIZE,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=True,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )
    )
    centred = embedding - embedding.mean(0)
    _, _, axes = torch.linalg.svd(centred.T @ centred)
    narrow = centred @ axes[:HIDDEN].T
    draft.get_input_embeddings().weight.data = narrow * (0.05 / narrow.std())
    return draft


def guesses_of(draft: Any, batch: Batch) -> Guesses:
    """Return what a draft model says at the places of answers."""
    states = draft.model(input_ids=batch.tokens).last_hidden_state
    logits = draft.lm_head(states[batch.answers])
    return [(logits.float().log_softmax(-1), batch.likeliest[batch.answers], batch.shares[batch.answers])]


def save(draft: LlamaForCausalLM, model: Path, folder: Path) -> None:
    """Write the weights in half precision, and the target's tokenizer beside them."""
    weights = {name: weight.half() for name, weight in draft.state_dict().items() if name != "lm_head.weight"}
    draft.save_pretrained(folder, state_dict=weights)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def main() -> None:
    """Parse the arguments, train, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the chat model in Hugging Face layout")
    parser.add_argument("chats", type=Path, help="folder with the lessons of chat_lessons.py")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="a draft model that this script wrote, to go on from")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--chats-per-step", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    options = parser.parse_args()
    if options.start is not None:
        draft = LlamaForCausalLM.from_pretrained(options.start, dtype=torch.float32)
    else:
        draft = new_draft(
            AutoConfig.from_pretrained(options.model), load_model(options.model).weights.embedding.float()
        )
    fit(
        draft,
        lambda batch: guesses_of(draft, batch),
        load_lessons(options.chats / "lessons"),
        checkpoint=options.chats / "draft.checkpoint",
        steps=options.steps,
        chats=options.chats_per_step,
        rate=options.learning_rate,
        place_weight=1.0,
        export=lambda: save(draft, options.model, options.output),
    )


if __name__ == "__main__":
    main()
