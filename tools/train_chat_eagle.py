"""Train an EAGLE-3 head with a reduced draft vocabulary for a chat model, on chats that the model wrote.

    python tools/train_chat_eagle.py build/real-model build/chats --output examples/smollm2/eagle

The head is that of `train_eagle.py`, unrolled over the next tokens on its own output (training-time test, Li et al., 2025,
section 3), and knows only the tokens that the answers hold most of: its output layer over all of them would cost more than
the rest of it. Where the target's likeliest tokens are outside, nothing is learnt from them.
"""

import argparse
from collections import Counter
from pathlib import Path

import torch
from chat_lessons import Batch, Lesson, load_lessons, split_lessons
from chat_training import Guesses, fit
from torch import Tensor
from train_eagle import LearningHead, load, save
from transformers import AutoModelForCausalLM

from treeopt.runtime import load_model

DRAFT_VOCABULARY = 4096
INNER = 1024
UNROLLED = 4
PLACE_WEIGHT = 0.8


def frequent_tokens(lessons: list[Lesson], count: int) -> Tensor:
    """Return the tokens that answers hold most of, int64 (count,), ascending; prints how much of the answers they are."""
    seen: Counter[int] = Counter()
    for lesson in lessons:
        seen.update(lesson.tokens[lesson.answer :].tolist())
    kept = seen.most_common(count)
    print(f"{len(kept)} of {len(seen)} tokens, {sum(n for _, n in kept) / seen.total():.1%} of what the answers hold")
    unseen = (token for token in range(1 << 31) if token not in seen)
    return torch.tensor(sorted([token for token, _ in kept] + [next(unseen) for _ in range(count - len(kept))]))


def guesses_of(head: LearningHead, numbers: Tensor, batch: Batch) -> Guesses:
    """Return what a head says at the places of answers; `numbers` (vocabulary,) numbers the tokens that it knows."""
    found = []
    for step, states in enumerate(head.states(batch.taps, batch.tokens)):
        places = slice(step + 1, states.shape[1] + step + 1)
        answers = batch.answers[:, places]
        logits = states[answers] @ head.output.T
        likeliest = numbers[batch.likeliest[:, places][answers]]
        found.append((logits.float().log_softmax(-1), likeliest, batch.shares[:, places][answers]))
    return found


def main() -> None:
    """Parse the arguments, train, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the chat model in Hugging Face layout")
    parser.add_argument("chats", type=Path, help="folder with the lessons of chat_lessons.py")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="a head that this script wrote, to go on from")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--chats-per-step", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    options = parser.parse_args()
    torch.manual_seed(0)
    target, lessons = load_model(options.model), load_lessons(options.chats / "lessons")
    kept = frequent_tokens(split_lessons(lessons)[0], DRAFT_VOCABULARY)
    output = (
        AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).get_output_embeddings().weight.detach()
    )
    head = LearningHead(target, output[kept], inner=INNER, unrolled=UNROLLED, kept=kept)
    if options.start is not None:
        load(head, options.start)
    numbers = torch.full((target.config.vocabulary,), -1)
    assert head.kept is not None  # given above
    numbers[head.kept] = torch.arange(len(head.kept))
    fit(
        head,
        lambda batch: guesses_of(head, numbers, batch),
        lessons,
        checkpoint=options.chats / "eagle.checkpoint",
        steps=options.steps,
        chats=options.chats_per_step,
        rate=options.learning_rate,
        place_weight=PLACE_WEIGHT,
        export=lambda: save(head, len(target.weights.layers), options.output),
    )


if __name__ == "__main__":
    main()
