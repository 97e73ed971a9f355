"""Sample chats from a chat model, both messages and answers: training data for its drafters (Magpie, Xu et al., 2024).

    python tools/sample_chats.py build/real-model --output build/chats/chats.jsonl --tokens 300000

The model continues its own chat template in place of the user's message, then answers that message. Half of the
answers are greedy, half are sampled at temperature 0.7. For messages of different kinds, messages are generated after a
system message for each category; answers are generated with the template's default. Every chat is appended to the file
as soon as it is complete, so that an interrupted run resumes.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from teacher_outputs import Chat, chat_prompt, encode, measure_fastest_dtype, read_chats
from tqdm import tqdm
from transformers import AutoTokenizer

from treeopt.runtime import Decoder, Transformer, load_model

CATEGORIES = {
    "chat": None,
    "code": "You are a programming assistant. The user asks for a function, a program or a bug fix, and often shows code.",
    "maths": "You are a mathematics tutor. The user poses a word problem or an equation with numbers.",
    "writing": "You are a writing assistant. The user asks for a story, an email, a poem or a better wording of a text.",
    "facts": "You are an encyclopedia. The user asks a short question about history, science or geography.",
    "summary": "You are an editor. The user pastes a paragraph of text and asks for a short summary of it.",
    "translation": "You are a translator. The user gives a sentence and asks for its translation into another language.",
    "reading": "You answer questions about texts. The user pastes a paragraph and then asks a question about it.",
    "structured": "You write structured output. The user asks for a JSON object, a table or a list with given fields.",
}
"""System messages by category; None is the template's default."""
ANSWER_TEMPERATURES = (0.0, 0.7)
USER_TEMPERATURE, USER_TOP_P = 0.9, 0.95
MAX_USER_TOKENS, MAX_ANSWER_TOKENS = 112, 256
MIN_USER_TOKENS = 4
ROUND_CHATS, BATCH_SIZE = 216, 72
MESSAGE_MARK = "USER-MESSAGE"


def generate_all(
    target: Transformer,
    prompts: list[list[int]],
    max_new_tokens: int,
    *,
    temperature: float,
    seed: int,
    top_p: float = 1.0,
) -> Iterator[tuple[int, list[int]]]:
    """Yield every completed output, end token included, with the index of its prompt."""
    max_tokens = max(map(len, prompts)) + max_new_tokens
    decoder = Decoder(target, None, temperature=temperature, top_p=top_p, seed=seed, max_sequence_tokens=max_tokens)
    outputs: list[list[int]] = [[] for _ in prompts]
    for index, tokens in decoder.generate_all(prompts, max_new_tokens, batch_size=BATCH_SIZE):
        outputs[index] += tokens
        if len(outputs[index]) == max_new_tokens or outputs[index][-1] in target.config.end_tokens:
            yield index, outputs[index]


def sample_round(tokenizer: Any, target: Transformer, seed: int) -> Iterator[Chat]:
    """Yield chats, fewer than ROUND_CHATS: messages that do not end, or have few tokens, are dropped."""
    end_tokens = target.config.end_tokens
    categories = [list(CATEGORIES)[index % len(CATEGORIES)] for index in range(ROUND_CHATS)]
    prefixes = [
        encode(tokenizer, chat_prompt(tokenizer, MESSAGE_MARK, CATEGORIES[category]).split(MESSAGE_MARK)[0])
        for category in categories
    ]
    messages = [
        (categories[index], tokenizer.decode(output[:-1]).strip())
        for index, output in generate_all(
            target, prefixes, MAX_USER_TOKENS, temperature=USER_TEMPERATURE, top_p=USER_TOP_P, seed=seed
        )
        if output[-1] in end_tokens and len(output) > MIN_USER_TOKENS
    ]
    for first, temperature in enumerate(ANSWER_TEMPERATURES):
        selected = messages[first :: len(ANSWER_TEMPERATURES)]
        if not selected:
            continue
        prompts = [encode(tokenizer, chat_prompt(tokenizer, message)) for _, message in selected]
        for index, output in generate_all(target, prompts, MAX_ANSWER_TOKENS, temperature=temperature, seed=seed):
            answer = tokenizer.decode(output, skip_special_tokens=True)
            yield Chat(*selected[index], answer, temperature, output[-1] in end_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a chat model in Hugging Face layout")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON Lines; chats are appended to it")
    parser.add_argument("--tokens", type=int, default=300_000, help="minimum number of answer tokens in the file")
    options = parser.parse_args()
    target = load_model(options.model, dtype=measure_fastest_dtype())
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    chats = read_chats(options.output) if options.output.exists() else []
    answer_tokens = sum(len(encode(tokenizer, chat.answer)) for chat in chats)
    with tqdm(total=options.tokens, initial=answer_tokens, unit=" tokens", desc="chats") as bar:
        for seed in count(len(chats)):  # a round has several chats, so seeds are not repeated
            if bar.n >= options.tokens:
                break
            for chat in sample_round(tokenizer, target, seed):
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(chat._asdict(), ensure_ascii=False) + "\n")
                bar.update(len(encode(tokenizer, chat.answer)))


if __name__ == "__main__":
    main()
