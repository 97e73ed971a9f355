"""Options that choose prompts, and prompts as token ids."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt import bundled
from treeopt.cli.options.inputs import file
from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import whole
from treeopt.errors import TreeoptError
from treeopt.report.text import counted
from treeopt.texts.prompts import DEFAULT_PROMPTS, PromptSample, sample_prompts

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.texts.tokenizer import Tokenizer

MAX_PROMPT_TOKENS = 512
"""Longer prompts are cut."""
MAX_CATEGORIES = 12
"""Categories that are listed."""


def chat_option() -> Any:
    return Heading.PROMPTS.option(
        "--chat/--no-chat",
        default=None,
        help="Apply the model's chat template to each prompt as a user message, or use prompts as they are; by default, "
        "apply the template if there is one.",
    )


def prompts_option() -> Any:
    return option(
        "--prompts",
        type=file,
        metavar="PATH",
        help="Prompts: a .txt, .json or .jsonl file, or a datasets folder; by default treeopt's own.",
    )


def max_prompts_option(default: int) -> Any:
    return Heading.PROMPTS.option(
        "--max-prompts",
        type=whole(3, 4096),
        default=default,
        help="Maximum number of prompts, spread over the file and its categories; every 4th is held out for benchmarks.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    prompts: Path | None = prompts_option()
    chat: bool | None = chat_option()
    max_prompts: int = max_prompts_option(64)

    def load(self, models: "ModelPair") -> list[list[int]]:
        """Return the token ids of all prompts, and print on standard error which prompts are used and how."""
        return self.load_with_categories(models)[0]

    def load_with_categories(self, models: "ModelPair") -> tuple[list[list[int]], tuple[str, ...]]:
        """Return the token ids and the category (`""` for none) of each prompt; prints as `load` does."""
        from treeopt.texts.tokenizer import UNFINISHED

        tokenizer, chat = models.tokenizer, use_chat_template(models.tokenizer, self.chat)
        cut, prompts = 0, []
        sample = select_prompts(self.prompts, self.max_prompts, bundled_pair=models.bundled)
        for text in sample.texts:
            tokens = tokenizer.encode_without_special(text)
            if len(tokens) > MAX_PROMPT_TOKENS:
                cut += 1
                text = tokenizer.decode(tokens[:MAX_PROMPT_TOKENS]).rstrip(UNFINISHED)
            prompts.append(tokenize_prompt(tokenizer, text, chat=chat))
        if cut:
            click.echo(f"{counted(cut, 'prompt')} cut to the first {MAX_PROMPT_TOKENS} tokens.", err=True)
        return prompts, sample.categories


def select_prompts(path: Path | None, max_prompts: int, *, bundled_pair: bool = False) -> PromptSample:
    """Return prompts of a file, or the default ones, and print on standard error how many of each category.

    The bundled pair has its own default prompts, those that it was trained for.
    """
    default = bundled.PROMPTS if bundled_pair else DEFAULT_PROMPTS
    sample = sample_prompts(path or default, most=max_prompts)
    if path is None and bundled_pair:
        return sample
    name = "Default prompts (--prompts uses yours)" if path is None else str(path)
    count = len(sample.texts)
    of_all = f"{count} of {sample.available}" if count < sample.available else str(count)
    click.echo(
        f"{name}: {of_all} prompts taken, at most {max_prompts} (--max-prompts){_describe_categories(sample)}.",
        err=True,
    )
    return sample


def _describe_categories(sample: PromptSample) -> str:
    if not any(sample.categories):
        return ""
    counts = [f"{number} {name or 'without category'}" for name, number in Counter(sample.categories).items()]
    more = [f"and {len(counts) - MAX_CATEGORIES} more categories"] if len(counts) > MAX_CATEGORIES else []
    return f": {', '.join([*counts[:MAX_CATEGORIES], *more])}"


def use_chat_template(tokenizer: "Tokenizer", chat: bool | None) -> bool:
    """Return whether to apply the chat template; print on standard error if no option decides it."""
    if chat is None and tokenizer.has_chat_template:
        click.echo("Using the model's chat template; --no-chat uses prompts as they are.", err=True)
    return tokenizer.has_chat_template if chat is None else chat


def tokenize_prompt(tokenizer: "Tokenizer", text: str, *, chat: bool) -> list[int]:
    """Return the token ids of a prompt as it is, or as a user message in the model's chat template."""
    return tokenizer.chat(text) if chat else tokenizer.encode(text)


def apply_chat_template(texts: Sequence[str], folder: str | None) -> list[str]:
    """Return texts as user messages in the chat template of a model folder, or as they are without a folder.

    Raises TreeoptError for a folder without a template.
    """
    if folder is None:
        return list(texts)
    from treeopt.texts.tokenizer import Tokenizer

    tokenizer = Tokenizer(folder)
    if not tokenizer.has_chat_template:
        raise TreeoptError(f"{folder}: no chat template. Name a chat model's folder, or leave --chat-template out.")
    return [tokenizer.chat_text(text) for text in texts]
