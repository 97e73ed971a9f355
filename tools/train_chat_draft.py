"""Train a small draft model with the tokenizer of a chat model, on the model's own chats.

    python tools/train_chat_draft.py build/real-model build/chats --output examples/smollm2/draft

It is a narrow Llama. Its embedding, most of its parameters, is initialized by the principal components of the target's, so
that tokens outside the chats have useful embeddings too.
"""

from pathlib import Path
from typing import Any

import torch
from distillation import Predictions, argument_parser, train
from teacher_outputs import Batch, load_teacher_outputs
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

HIDDEN, HEAD_SIZE, INNER, LAYERS = 160, 32, 448, 4
EMBEDDING_SCALE = 0.05


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
    components = centred @ axes[:HIDDEN].T
    draft.get_input_embeddings().weight.data = components * (EMBEDDING_SCALE / components.std())
    return draft


def predict(draft: Any, batch: Batch) -> Predictions:
    """Return a draft model's predictions of the tokens of answers."""
    selected = batch.predicts_answer
    logits = draft.lm_head(draft.model(input_ids=batch.tokens).last_hidden_state[selected])
    return [(logits.float().log_softmax(-1), batch.top_tokens[selected], batch.top_probabilities[selected])]


def save(draft: LlamaForCausalLM, model: Path, folder: Path) -> None:
    """Write the weights in float16, and the target's tokenizer."""
    weights = {name: weight.half() for name, weight in draft.state_dict().items() if name != "lm_head.weight"}
    draft.save_pretrained(folder, state_dict=weights)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)


def main() -> None:
    options = argument_parser(__doc__, learning_rate=2e-3).parse_args()
    if options.start is not None:
        draft = LlamaForCausalLM.from_pretrained(options.start, dtype=torch.float32)
    else:
        target: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        embedding = target.get_input_embeddings().weight.detach()
        draft = new_draft(AutoConfig.from_pretrained(options.model), embedding)
    train(
        draft,
        lambda batch: predict(draft, batch),
        load_teacher_outputs(options.chats / "teacher"),
        checkpoint=options.chats / "draft.checkpoint",
        options=options,
        depth_weight=1.0,
        export=lambda folder: save(draft, options.model, folder),
    )


if __name__ == "__main__":
    main()
