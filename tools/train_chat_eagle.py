"""Train an EAGLE-3 head with a reduced draft vocabulary for a chat model, on the model's own chats.

    python tools/train_chat_eagle.py build/real-model build/chats --output examples/smollm2/eagle

The head is the module of `train_eagle.py`, trained by training-time test (Li et al., 2025, section 3). Its vocabulary is
the most frequent tokens of the answers, because an output layer over all tokens would be larger than the rest of the head.
"""

from collections import Counter

import torch
from distillation import Predictions, parse_arguments, train
from teacher_outputs import Batch, TeacherOutput, load_teacher_outputs, split_held_out
from torch import Tensor
from train_eagle import EagleHead, load, save
from transformers import AutoModelForCausalLM

from treeopt.runtime import load_model

DRAFT_VOCABULARY = 4096
INNER = 1024
UNROLLED = 4
DEPTH_WEIGHT = 0.8


def frequent_tokens(outputs: list[TeacherOutput], max_tokens: int) -> Tensor:
    """Return the most frequent tokens of the answers, int64 (n,), ascending; n is at most `max_tokens`."""
    counts: Counter[int] = Counter()
    for output in outputs:
        counts.update(output.tokens[output.answer_start :].tolist())
    frequent = counts.most_common(max_tokens)
    coverage = sum(count for _, count in frequent) / counts.total()
    print(f"draft vocabulary: {len(frequent)} of {len(counts)} tokens, {coverage:.1%} of the answers")
    return torch.tensor(sorted(token for token, _ in frequent))


def predict(head: EagleHead, draft_index: Tensor, batch: Batch) -> Predictions:
    """Return a head's predictions of the tokens of answers; `draft_index` (V,) maps tokens to its vocabulary or -1."""
    predictions = []
    for depth, states in enumerate(head.states(batch.hidden_states, batch.tokens)):
        positions = slice(depth + 1, states.shape[1] + depth + 1)
        selected = batch.predicts_answer[:, positions]
        logits = states[selected] @ head.output.T
        top_tokens = draft_index[batch.top_tokens[:, positions][selected]]
        predictions.append(
            (logits.float().log_softmax(-1), top_tokens, batch.top_probabilities[:, positions][selected])
        )
    return predictions


def main() -> None:
    options = parse_arguments(__doc__, learning_rate=1.5e-3)
    torch.manual_seed(0)
    target, outputs = load_model(options.model), load_teacher_outputs(options.chats / "teacher")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    draft_tokens = frequent_tokens(split_held_out(outputs)[0], DRAFT_VOCABULARY)
    output_rows = model.get_output_embeddings().weight.detach()[draft_tokens]
    head = EagleHead(target, output_rows, inner=INNER, unrolled=UNROLLED, draft_tokens=draft_tokens)
    if options.start is not None:
        load(head, options.start)
    assert head.draft_tokens is not None  # passed above
    draft_index = torch.full((target.config.vocabulary,), -1)
    draft_index[head.draft_tokens] = torch.arange(len(head.draft_tokens))
    train(
        head,
        lambda batch: predict(head, draft_index, batch),
        outputs,
        checkpoint=options.chats / "eagle.checkpoint",
        options=options,
        depth_weight=DEPTH_WEIGHT,
        export=lambda folder: save(head, len(target.weights.layers), folder),
    )


if __name__ == "__main__":
    main()
