"""Write a chat model's outputs at every token of its chats: the training data of its drafters.

    python tools/teacher_outputs.py build/real-model build/chats/chats.jsonl

The data contains the hidden states that an EAGLE-3 head reads, and the model's 16 most likely next tokens with their
probabilities: all 49,152 logits would take a hundred times the space. Chats are processed in shards of 48, one file each,
so that an interrupted run resumes. Chats after the last whole shard are left out until more are sampled.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import AutoTokenizer

from treeopt.runtime import Transformer, load_model
from treeopt.runtime.drafters.eagle.load import default_layer_ids
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import RequestedStates

SHARD_CHATS = 48
PREFILL_CHATS = 8
"""Chats in one forward pass."""
TOP_TOKENS = 16
HELD_OUT_EVERY = 16
"""One chat of 16 is held out of training."""
MAX_TOKENS = 480


class Chat(NamedTuple):
    """A user's message and the model's answer."""

    category: str
    user: str
    answer: str
    temperature: float
    """At which the answer was sampled."""
    ended: bool
    """Whether the answer ends with an end token."""


class TokenizedChat(NamedTuple):
    """A chat in the model's chat template."""

    tokens: list[int]
    answer_start: int
    temperature: float


class TeacherOutput(NamedTuple):
    """The model's outputs on one chat of T tokens."""

    tokens: Tensor
    """int64 (T,)."""
    answer_start: int
    temperature: float
    """At which the answer was sampled."""
    hidden_states: Tensor
    """float16 (T, 3 hidden): the residual stream at the default layers."""
    top_tokens: Tensor
    """int32 (T, TOP_TOKENS): the most likely next tokens."""
    top_probabilities: Tensor
    """float16 (T, TOP_TOKENS)."""


class Batch(NamedTuple):
    """The model's outputs on several chats, padded on the right to T tokens."""

    tokens: Tensor
    """int64 (chats, T)."""
    hidden_states: Tensor
    """float32 (chats, T, 3 hidden)."""
    top_tokens: Tensor
    """int64 (chats, T, TOP_TOKENS)."""
    top_probabilities: Tensor
    """float32 (chats, T, TOP_TOKENS)."""
    predicts_answer: Tensor
    """bool (chats, T): whether the next token belongs to the answer."""

    @classmethod
    def collate(cls, outputs: list[TeacherOutput]) -> "Batch":
        max_tokens = max(len(output.tokens) for output in outputs)
        predicts_answer = torch.zeros(len(outputs), max_tokens, dtype=torch.bool)
        for row, output in enumerate(outputs):
            predicts_answer[row, output.answer_start - 1 : len(output.tokens) - 1] = True

        def pad(tensors: list[Tensor]) -> Tensor:
            padding = [(0,) * (2 * tensor.ndim - 1) + (max_tokens - len(tensor),) for tensor in tensors]
            return torch.stack([F.pad(tensor, widths) for tensor, widths in zip(tensors, padding, strict=True)])

        return cls(
            pad([output.tokens for output in outputs]),
            pad([output.hidden_states for output in outputs]).float(),
            pad([output.top_tokens for output in outputs]).long(),
            pad([output.top_probabilities for output in outputs]).float(),
            predicts_answer,
        )


def read_chats(path: Path) -> list[Chat]:
    """Return the chats in a file that `sample_chats.py` wrote."""
    return [Chat(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def chat_prompt(tokenizer: Any, message: str, system: str | None = None) -> str:
    """Return the chat template with a user's message, up to the start of the answer."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": message})
    prompt: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return prompt


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that already contains its special tokens."""
    tokens: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return tokens


def tokenize_chats(chats: list[Chat], folder: Path) -> list[TokenizedChat]:
    """Return chats in the chat template of a model's folder, cut to MAX_TOKENS."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenized = []
    for chat in chats:
        prompt = encode(tokenizer, chat_prompt(tokenizer, chat.user))
        end = [tokenizer.eos_token_id] if chat.ended else []
        tokens = prompt + encode(tokenizer, chat.answer) + end
        tokenized.append(TokenizedChat(tokens[:MAX_TOKENS], len(prompt), chat.temperature))
    return tokenized


def write_teacher_outputs(target: Transformer, chats: list[TokenizedChat], folder: Path) -> None:
    """Write the missing shards to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in tqdm(range(len(chats) // SHARD_CHATS), desc="teacher outputs", unit="shard"):
        path = folder / f"{number:05}.pt"
        if path.exists():
            continue
        partial = path.with_suffix(".partial")
        torch.save(compute_shard(target, chats[number * SHARD_CHATS :][:SHARD_CHATS]), partial)
        partial.rename(path)


def compute_shard(target: Transformer, chats: list[TokenizedChat]) -> dict[str, Tensor]:
    """Return the model's outputs on chats, concatenated over all their tokens, by the names of `TeacherOutput`."""
    head = Linear(
        target.weights.head.weight.float()
    )  # bfloat16 gives equal logits to tokens of different probabilities
    requested_states = RequestedStates(layer_ids=default_layer_ids(len(target.weights.layers)), last=True)
    by_length = sorted(range(len(chats)), key=lambda index: len(chats[index].tokens))
    hidden_states, top_tokens, top_probabilities = ([torch.empty(0)] * len(chats) for _ in range(3))
    for start in range(0, len(chats), PREFILL_CHATS):
        indices = by_length[start : start + PREFILL_CHATS]
        sequences = [torch.tensor(chats[index].tokens) for index in indices]
        padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        states = target.compute_states(padded, requested_states)
        assert states.last is not None  # it was requested
        layer_states = torch.cat(states.layers, -1)
        for row, index in enumerate(indices):
            length = len(chats[index].tokens)
            logits = head(states.last[row, :length].float())
            top_logits, top = logits.topk(TOP_TOKENS)
            hidden_states[index] = layer_states[row, :length].half()
            top_tokens[index] = top.int()
            top_probabilities[index] = (top_logits - logits.logsumexp(-1, keepdim=True)).exp().half()
    return {
        "tokens": torch.cat([torch.tensor(chat.tokens) for chat in chats]),
        "lengths": torch.tensor([len(chat.tokens) for chat in chats]),
        "answer_starts": torch.tensor([chat.answer_start for chat in chats]),
        "temperatures": torch.tensor([chat.temperature for chat in chats], dtype=torch.float64),
        "hidden_states": torch.cat(hidden_states),
        "top_tokens": torch.cat(top_tokens),
        "top_probabilities": torch.cat(top_probabilities),
    }


def load_teacher_outputs(folder: Path) -> list[TeacherOutput]:
    """Return all outputs in the order of their chats; tensors are memory-mapped."""
    outputs = []
    for path in sorted(folder.glob("*.pt")):
        shard = torch.load(path, weights_only=True, mmap=True)
        lengths: list[int] = shard["lengths"].tolist()
        columns = (
            shard["tokens"].split(lengths),
            shard["answer_starts"].tolist(),
            shard["temperatures"].tolist(),
            *(shard[name].split(lengths) for name in ("hidden_states", "top_tokens", "top_probabilities")),
        )
        outputs += [TeacherOutput(*row) for row in zip(*columns, strict=True)]
    return outputs


def split_held_out(outputs: list[TeacherOutput]) -> tuple[list[TeacherOutput], list[TeacherOutput]]:
    """Return the outputs to train on, and those that are held out."""
    held_out = outputs[::HELD_OUT_EVERY]
    return [output for number, output in enumerate(outputs) if number % HELD_OUT_EVERY], held_out


def sample_batches(outputs: list[TeacherOutput], chats: int, first_step: int) -> Iterator[Batch]:
    """Yield batches of chats of similar lengths without end; the number of a step determines its batch."""
    by_length = sorted(outputs, key=lambda output: len(output.tokens))
    step = first_step
    while True:
        start = int(torch.randint(len(outputs) - chats + 1, (1,), generator=torch.Generator().manual_seed(step)))
        yield Batch.collate(by_length[start : start + chats])
        step += 1


def measure_fastest_dtype() -> torch.dtype:
    """Return the faster of float32 and bfloat16 for a matrix product, and print both times."""
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = torch.ones(1024, 576, dtype=dtype), torch.ones(576, 1536, dtype=dtype)
        a @ b
        start_s = time.perf_counter()
        for _ in range(5):
            a @ b
        seconds[dtype] = (time.perf_counter() - start_s) / 5
    times = (f"{str(dtype).removeprefix('torch.')} {1e3 * mean_s:.1f} ms" for dtype, mean_s in seconds.items())
    print(f"matrix product 1024 x 576 x 1536: {', '.join(times)}")
    return min(seconds, key=seconds.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of the chat model in Hugging Face layout")
    parser.add_argument("chats", type=Path, help="file that sample_chats.py wrote")
    options = parser.parse_args()
    chats = tokenize_chats(read_chats(options.chats), options.model)
    target = load_model(options.model, dtype=measure_fastest_dtype())
    write_teacher_outputs(target, chats, options.chats.parent / "teacher")


if __name__ == "__main__":
    main()
