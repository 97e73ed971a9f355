"""What drafters of a chat model learn from: its chats, and what the model says and thinks at each of their tokens.

    python tools/chat_lessons.py build/real-model build/chats/chats.jsonl

The model reads every chat once. Kept are its states at the boundaries that an EAGLE-3 head reads, and its likeliest
tokens with their probabilities, which hold nearly all that there is to learn: all of them would be a hundred times as
much. Chats are read in shards, each a file, so that a run that was stopped goes on.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from treeopt.runtime import Transformer, load_model
from treeopt.runtime.drafters.eagle.config import default_boundaries
from treeopt.runtime.models.model import Wants

SHARD_CHATS = 48
READ_AT_ONCE = 8
KEPT = 16
"""Of the model's likeliest tokens at each place."""
HELD_OUT_EVERY = 16
"""One of so many chats is learnt from by nothing: its answer measures acceptance, its message is a prompt of benchmarks."""
MOST_TOKENS = 480


class Chat(NamedTuple):
    """A user's message and the answer to it."""

    category: str
    user: str
    answer: str
    temperature: float
    """Of the answer."""
    ended: bool
    """Whether the answer ends, or was cut."""


def read_chats(path: Path) -> list[Chat]:
    """Return the chats of a file that `sample_chats.py` wrote."""
    return [Chat(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


class Lesson(NamedTuple):
    """One chat."""

    tokens: Tensor
    """int64 (T,)."""
    answer: int
    """Where the answer begins."""
    taps: Tensor
    """float16 (T, 3 hidden): the residual stream at the default boundaries."""
    likeliest: Tensor
    """int32 (T, KEPT): of the token behind each place."""
    shares: Tensor
    """float16 (T, KEPT): their probabilities."""
    temperature: float
    """At which the answer was drawn."""


class Batch(NamedTuple):
    """Several chats, filled up on the right."""

    tokens: Tensor
    """int64 (chats, T)."""
    taps: Tensor
    """float32 (chats, T, 3 hidden)."""
    likeliest: Tensor
    """int64 (chats, T, KEPT)."""
    shares: Tensor
    """float32 (chats, T, KEPT)."""
    answers: Tensor
    """bool (chats, T): places behind which a token of an answer stands."""

    @classmethod
    def of(cls, lessons: list[Lesson]) -> "Batch":
        """Return chats side by side."""
        longest = max(len(lesson.tokens) for lesson in lessons)
        answers = torch.zeros(len(lessons), longest, dtype=torch.bool)
        for row, lesson in enumerate(lessons):
            answers[row, lesson.answer - 1 : len(lesson.tokens) - 1] = True

        def filled(parts: list[Tensor]) -> Tensor:
            return torch.stack([F.pad(part, (0,) * (2 * part.ndim - 1) + (longest - len(part),)) for part in parts])

        return cls(
            filled([lesson.tokens for lesson in lessons]),
            filled([lesson.taps for lesson in lessons]).float(),
            filled([lesson.likeliest for lesson in lessons]).long(),
            filled([lesson.shares for lesson in lessons]).float(),
            answers,
        )


def held_out(number: int) -> bool:
    """Return whether the chat of this line is learnt from by nothing."""
    return number % HELD_OUT_EVERY == 0


def split_lessons(lessons: list[Lesson]) -> tuple[list[Lesson], list[Lesson]]:
    """Return those to learn from and those held out."""
    parts: tuple[list[Lesson], list[Lesson]] = ([], [])
    for number, lesson in enumerate(lessons):
        parts[held_out(number)].append(lesson)
    return parts


def batches(lessons: list[Lesson], chats: int, first: int) -> Iterator[Batch]:
    """Yield batches without end, the one of number `first` on: chats of like lengths, which their number decides."""
    by_length = sorted(lessons, key=lambda lesson: len(lesson.tokens))
    number = first
    while True:
        start = int(torch.randint(len(lessons) - chats + 1, (1,), generator=torch.Generator().manual_seed(number)))
        yield Batch.of(by_length[start : start + chats])
        number += 1


def load_lessons(folder: Path) -> list[Lesson]:
    """Return all lessons, in the order of their chats, which stay on the disk until they are read."""
    lessons = []
    for shard in sorted(folder.glob("*.pt")):
        stored = torch.load(shard, weights_only=True, mmap=True)
        lengths: list[int] = stored["lengths"].tolist()
        names = ("tokens", "taps", "likeliest", "shares")
        tokens, taps, likeliest, shares = (stored[name].split(lengths) for name in names)
        answers, temperatures = stored["answers"].tolist(), stored["temperatures"].tolist()
        lessons += [
            Lesson(*parts) for parts in zip(tokens, answers, taps, likeliest, shares, temperatures, strict=True)
        ]
    return lessons


def make_lessons(target: Transformer, chats: list[tuple[list[int], int, float]], folder: Path) -> None:
    """Write the shards that a folder lacks, of chats as (tokens, beginning of the answer, temperature)."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = len(chats) // SHARD_CHATS
    for number in tqdm(range(whole), desc="lessons", unit="shard"):
        path = folder / f"{number:05}.pt"
        if path.exists():
            continue
        unfinished = path.with_suffix(".unfinished")
        torch.save(_shard(target, chats[number * SHARD_CHATS :][:SHARD_CHATS]), unfinished)
        unfinished.rename(path)


def _shard(target: Transformer, chats: list[tuple[list[int], int, float]]) -> dict[str, Tensor]:
    wants = Wants(boundaries=default_boundaries(len(target.weights.layers)), last=True, whole_text=True)
    order = sorted(range(len(chats)), key=lambda index: len(chats[index][0]))
    parts: list[tuple[Tensor, Tensor, Tensor]] = [(torch.empty(0),) * 3] * len(chats)
    for start in range(0, len(chats), READ_AT_ONCE):
        indices = order[start : start + READ_AT_ONCE]
        longest = max(len(chats[index][0]) for index in indices)
        tokens = torch.tensor([chats[index][0] + [0] * (longest - len(chats[index][0])) for index in indices])
        states = target.prefill(tokens, target.new_cache(longest, len(indices)), wants)
        assert states is not None
        assert states.last is not None  # both were wanted
        taps = torch.cat(states.boundaries, -1)
        for row, index in enumerate(indices):
            length = len(chats[index][0])
            likeliest, shares = _likeliest(target, states.last[row, :length])
            parts[index] = taps[row, :length].half(), likeliest.int(), shares.half()
    taps, likeliest, shares = (torch.cat(each) for each in zip(*parts, strict=True))
    return {
        "tokens": torch.cat([torch.tensor(tokens) for tokens, _, _ in chats]),
        "lengths": torch.tensor([len(tokens) for tokens, _, _ in chats]),
        "answers": torch.tensor([answer for _, answer, _ in chats]),
        "temperatures": torch.tensor([temperature for _, _, temperature in chats], dtype=torch.float64),
        "taps": taps,
        "likeliest": likeliest,
        "shares": shares,
    }


def _likeliest(target: Transformer, last: Tensor) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens and their probabilities after states (T, hidden) of the last layer, normed."""
    logits = target.logits(last).float()
    kept, tokens = logits.topk(KEPT)
    return tokens, (kept - logits.logsumexp(-1, keepdim=True)).exp()


def tokens_of(chats: list[Chat], folder: Path) -> list[tuple[list[int], int, float]]:
    """Return chats as tokens under the template of a model's folder, each with where its answer begins."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = []
    for chat in chats:
        messages = [{"role": "user", "content": chat.user}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        before = tokenizer(prompt, add_special_tokens=False).input_ids
        answer = tokenizer(chat.answer, add_special_tokens=False).input_ids
        end = [tokenizer.eos_token_id] if chat.ended else []
        found.append(((before + answer + end)[:MOST_TOKENS], len(before), chat.temperature))
    return found


def main() -> None:
    """Parse the arguments and write the lessons beside the chats."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the chat model in Hugging Face layout")
    parser.add_argument("chats", type=Path, help="what sample_chats.py wrote")
    options = parser.parse_args()
    chats = tokens_of(read_chats(options.chats), options.model)
    make_lessons(load_model(options.model), chats, options.chats.parent / "lessons")


if __name__ == "__main__":
    main()
