"""Train an EAGLE-3 or DFlash head with a reduced draft vocabulary for a chat model, on the model's own chats.

    python tools/train_chat_head.py build/real-model build/chats --kind eagle --output examples/smollm2/eagle

The heads are the modules of `train_eagle.py`, trained by training-time test (Li et al., 2025, section 3), and of
`train_dflash.py`. Their vocabulary is the most frequent tokens of the answers, because an output layer over all tokens would
be larger than the rest of the head.
"""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import train_dflash
import train_eagle
from distillation import Predictions, argument_parser, train
from teacher_outputs import Batch, TeacherOutput, load_teacher_outputs, split_held_out
from torch import Tensor
from train_dflash import DflashHead, DflashSizes
from train_eagle import EagleHead
from transformers import AutoModelForCausalLM

from treeopt.runtime import Transformer, load_model

DRAFT_VOCABULARY = 4096
EAGLE_INNER = 1024
EAGLE_UNROLLED = 4
DFLASH_SIZES = DflashSizes(layers=2, inner=768, block_tokens=5)
DFLASH_ROOTS = 48
"""Blocks in each chat of a training step."""


class HeadKind(NamedTuple):
    """How heads of one kind are built, trained, written and read."""

    build: Callable[[Transformer, Tensor, Tensor], Any]
    """Returns an untrained head for the target, the rows of its output layer, and their tokens."""
    predict: Callable[[Any, Tensor, Batch], Predictions]
    """Returns a head's predictions of the tokens of answers, given an index of its vocabulary: (V,), -1 outside it."""
    save: Callable[[Any, int, Path], None]
    """Writes a head, for a target of that many layers, to a folder."""
    load: Callable[[Any, Path], None]
    """Reads what `save` wrote."""
    depth_weight: float
    """Weight of a depth's loss over that of the previous depth."""


def build_eagle(target: Transformer, output: Tensor, draft_tokens: Tensor) -> EagleHead:
    return EagleHead(target, output, inner=EAGLE_INNER, unrolled=EAGLE_UNROLLED, draft_tokens=draft_tokens)


def predict_eagle(head: EagleHead, draft_index: Tensor, batch: Batch) -> Predictions:
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


def build_dflash(target: Transformer, output: Tensor, draft_tokens: Tensor) -> DflashHead:
    return DflashHead(target, output, DFLASH_SIZES, draft_tokens=draft_tokens)


def predict_dflash(head: DflashHead, draft_index: Tensor, batch: Batch) -> Predictions:
    roots = select_roots(batch.predicts_answer, head.sizes.block_tokens)
    hidden = head.draft_blocks(batch.hidden_states, batch.tokens, roots)
    predictions = []
    for slot in range(1, head.sizes.block_tokens):
        previous = roots + slot - 1
        selected = batch.predicts_answer[:, previous]
        logits = hidden[:, :, slot][selected] @ head.output.T
        top_tokens = draft_index[batch.top_tokens[:, previous][selected]]
        predictions.append((logits.float().log_softmax(-1), top_tokens, batch.top_probabilities[:, previous][selected]))
    return predictions


def select_roots(predicts_answer: Tensor, block_tokens: int) -> Tensor:
    """Return ascending positions of blocks' roots in the answers: random ones in training, otherwise evenly spaced ones.

    Args:
        predicts_answer: bool (chats, T), as in `Batch`.
        block_tokens: tokens of a block, root included.
    """
    positions = predicts_answer[:, 1 : 1 - block_tokens].any(0).nonzero().flatten() + 1
    if torch.is_grad_enabled():
        return positions[torch.randperm(len(positions))[:DFLASH_ROOTS].sort().values]
    return positions[:: max(1, len(positions) // DFLASH_ROOTS)]


KINDS = {
    "eagle": HeadKind(build_eagle, predict_eagle, train_eagle.save, train_eagle.load, train_eagle.DEPTH_WEIGHT),
    "dflash": HeadKind(
        build_dflash, predict_dflash, train_dflash.save, train_dflash.load, math.exp(-1 / train_dflash.SLOT_DECAY)
    ),
}


def frequent_tokens(outputs: list[TeacherOutput], max_tokens: int) -> Tensor:
    """Return the most frequent tokens of the answers, int64 (n,), ascending; n is at most `max_tokens`."""
    counts: Counter[int] = Counter()
    for output in outputs:
        counts.update(output.tokens[output.answer_start :].tolist())
    frequent = counts.most_common(max_tokens)
    coverage = sum(count for _, count in frequent) / counts.total()
    print(f"draft vocabulary: {len(frequent)} of {len(counts)} tokens, {coverage:.1%} of the answers")
    return torch.tensor(sorted(token for token, _ in frequent))


def main() -> None:
    parser = argument_parser(__doc__, learning_rate=1.5e-3)
    parser.add_argument("--kind", choices=KINDS, required=True, help="of head")
    options = parser.parse_args()
    kind = KINDS[options.kind]
    torch.manual_seed(0)
    target, outputs = load_model(options.model), load_teacher_outputs(options.chats / "teacher")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    draft_tokens = frequent_tokens(split_held_out(outputs)[0], DRAFT_VOCABULARY)
    head = kind.build(target, model.get_output_embeddings().weight.detach()[draft_tokens], draft_tokens)
    if options.start is not None:
        kind.load(head, options.start)
    draft_index = torch.full((target.config.vocabulary,), -1)
    draft_index[head.draft_tokens] = torch.arange(len(head.draft_tokens))
    train(
        head,
        lambda batch: kind.predict(head, draft_index, batch),
        outputs,
        checkpoint=options.chats / f"{options.kind}.checkpoint",
        options=options,
        depth_weight=kind.depth_weight,
        export=lambda folder: kind.save(head, len(target.weights.layers), folder),
    )


if __name__ == "__main__":
    main()
