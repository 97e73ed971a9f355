"""Sample chats that a chat model holds with itself: what drafters of it learn from (Magpie, Xu et al., 2024, section 2).

    python tools/sample_chats.py build/real-model --output build/chats/chats.jsonl --tokens 300000

The model's own chat template, cut where the user's message begins, has the model write that message; then it answers.
Half of the answers are the likeliest token by token, the other half are drawn at temperature 0.7. A system message for
each category has the users ask for different things; the answers are given under the template's own. Every chat is
appended to the file when it has ended, so that a run that was stopped goes on.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chat_lessons import Chat, read_chats
from tqdm import tqdm
from transformers import AutoTokenizer

from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.transformer import Transformer

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
"""System messages under which users write; None is the template's own."""
TEMPERATURES = (0.0, 0.7)
USER_TEMPERATURE, USER_TOP_P = 0.9, 0.95
USER_TOKENS, ANSWER_TOKENS = 112, 256
LEAST_USER_TOKENS = 4
ROUND, AT_ONCE = 216, 72
"""Chats that are begun together, and texts that are decoded together."""
MARK = "USER-MESSAGE"


def written(
    target: Transformer,
    prompts: list[list[int]],
    seed: int,
    max_new_tokens: int,
    *,
    temperature: float,
    top_p: float = 1.0,
) -> Iterator[tuple[int, list[int]]]:
    """Yield what a model writes behind prompts, the end token included, each with its prompt's number when it has ended."""
    longest = max(map(len, prompts)) + max_new_tokens
    decoder = Decoder(
        target, None, temperature=temperature, top_p=top_p, seed=seed, max_text_tokens=longest, max_nodes=1
    )
    texts: list[list[int]] = [[] for _ in prompts]
    for number, tokens in decoder.generate_all(prompts, max_new_tokens, batch_size=AT_ONCE):
        texts[number] += tokens
        if len(texts[number]) == max_new_tokens or texts[number][-1] in target.config.end_tokens:
            yield number, texts[number]


def sample_round(folder: Path, target: Transformer, number: int) -> Iterator[Chat]:
    """Yield the chats of one round, which its number decides; users' messages that do not end or say little are dropped."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    names = [list(CATEGORIES)[row % len(CATEGORIES)] for row in range(ROUND)]
    openings = [tokenizer(opening(tokenizer, CATEGORIES[name]), add_special_tokens=False).input_ids for name in names]
    users = [
        (names[row], tokenizer.decode(message[:-1]).strip())
        for row, message in written(
            target, openings, number, USER_TOKENS, temperature=USER_TEMPERATURE, top_p=USER_TOP_P
        )
        if message[-1] in target.config.end_tokens and len(message) > LEAST_USER_TOKENS
    ]
    for part, temperature in enumerate(TEMPERATURES):
        asked = users[part :: len(TEMPERATURES)]
        prompts = [
            tokenizer.apply_chat_template([{"role": "user", "content": user}], add_generation_prompt=True).input_ids
            for _, user in asked
        ]
        for row, answer in written(target, prompts, number, ANSWER_TOKENS, temperature=temperature):
            text = tokenizer.decode(answer, skip_special_tokens=True)
            yield Chat(*asked[row], text, temperature, answer[-1] in target.config.end_tokens)


def opening(tokenizer: Any, system: str | None) -> str:
    """Return what stands before a user's message."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    text: str = tokenizer.apply_chat_template([*messages, {"role": "user", "content": MARK}], tokenize=False)
    return text.split(MARK)[0]


def main() -> None:
    """Parse the arguments and sample until the file is long enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a chat model in Hugging Face layout")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON Lines, appended to where it exists")
    parser.add_argument("--tokens", type=int, default=300_000, help="of answers, at least so many")
    options = parser.parse_args()
    target, tokenizer = load_model(options.model), AutoTokenizer.from_pretrained(options.model)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    chats = read_chats(options.output) if options.output.exists() else []
    tokens = sum(len(tokenizer(chat.answer).input_ids) for chat in chats)
    number = len(chats)  # a seed that no earlier round had
    with tqdm(total=options.tokens, initial=tokens, unit=" tokens", desc="chats") as bar:
        while bar.n < options.tokens:
            for chat in sample_round(options.model, target, number):
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(chat._asdict(), ensure_ascii=False) + "\n")
                bar.update(len(tokenizer(chat.answer).input_ids))
                number += 1


if __name__ == "__main__":
    main()
