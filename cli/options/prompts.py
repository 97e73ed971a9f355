"""Options that choose prompts, and how they are put to the model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.inputs import file
from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import Whole
from treeopt.errors import TreeoptError
from treeopt.report.text import counted

if TYPE_CHECKING:
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.texts.prompts import PromptSample
    from treeopt.texts.tokenizer import Tokenizer

MAX_PROMPT_TOKENS = 512
"""Tokens of a prompt that are used, the first ones."""
MAX_NAMED = 12
"""Categories whose numbers are printed."""
CHAT = option(
    "--chat/--no-chat",
    "chat",
    heading=Heading.PROMPTS,
    default=None,
    help="Put prompts into the model's chat template as a user's messages, or use them as they are; by default, use the "
    "template if there is one.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """Which prompts, and how they are put to the model."""

    path: Path | None = field(
        metadata=option(
            "--prompts",
            "prompts",
            type=file,
            metavar="PATH",
            help="Prompts, a .txt, .json or .jsonl file or a datasets folder; by default treeopt's own.",
        )
    )
    chat: bool | None = field(metadata=CHAT)
    """None: if the model has a chat template."""
    most: int = field(
        metadata=option(
            "--max-prompts",
            "max_prompts",
            heading=Heading.PROMPTS,
            type=Whole(3, 4096),
            default=64,
            show_default=True,
            help="Most prompts to take, evenly over the file and its categories; every 4th is held out for benchmarks.",
        )
    )

    def load(self, models: "ModelPair") -> list[list[int]]:
        """Return the token ids of every prompt; print what was taken, cut or put into a chat template on standard error."""
        return self.load_with_categories(models)[0]

    def load_with_categories(self, models: "ModelPair") -> tuple[list[list[int]], tuple[str, ...]]:
        """Return the token ids and the category of every prompt, `""` for none; prints as `load` does."""
        from treeopt.texts.tokenizer import UNFINISHED

        tokenizer, chat = models.tokenizer, uses_chat(models.tokenizer, self.chat)
        cut, prompts = 0, []
        sample = taken_prompts(self.path, self.most, bundled_pair=models.bundled)
        for text in sample.texts:
            tokens = tokenizer.encode_inner(text)
            if len(tokens) > MAX_PROMPT_TOKENS:
                cut += 1
                text = tokenizer.decode(tokens[:MAX_PROMPT_TOKENS]).rstrip(UNFINISHED)
            prompts.append(prompt_tokens(tokenizer, text, chat=chat))
        if cut:
            click.echo(f"{counted(cut, 'prompt')} cut to the first {MAX_PROMPT_TOKENS} tokens.", err=True)
        return prompts, sample.text_categories


def taken_prompts(path: Path | None, most: int, *, bundled_pair: bool = False) -> "PromptSample":
    """Return prompts of a file, or the default ones; print on standard error how many there are of each category.

    The bundled pair has prompts of its own: those that it was trained for.
    """
    from treeopt import bundled
    from treeopt.texts.prompts import DEFAULT_PROMPTS, sample_prompts

    default = bundled.PROMPTS if bundled_pair else DEFAULT_PROMPTS
    sample = sample_prompts(path or default, most=most)
    if path is not None or not bundled_pair:
        name = "Default prompts (--prompts uses yours)" if path is None else str(path)
        click.echo(f"{name}: {_numbers(sample)}, at most {most} (--max-prompts){_by_category(sample)}.", err=True)
    return sample


def _numbers(sample: "PromptSample") -> str:
    taken = len(sample.texts)
    return f"{taken} of {sample.available} prompts taken" if taken < sample.available else f"{taken} prompts taken"


def _by_category(sample: "PromptSample") -> str:
    """Return the number of prompts of each category, empty if none has one."""
    named = [f"{number} {name or 'without category'}" for name, number in sample.categories.items()]
    if not any(sample.categories):
        return ""
    more = [f"and {len(named) - MAX_NAMED} more categories"] if len(named) > MAX_NAMED else []
    return f": {', '.join([*named[:MAX_NAMED], *more])}"


def uses_chat(tokenizer: "Tokenizer", chat: bool | None) -> bool:
    """Return whether prompts are put into the chat template; print on standard error if that was not asked for."""
    if chat is None and tokenizer.has_chat_template:
        click.echo("Using the model's chat template; --no-chat uses prompts as they are.", err=True)
    return tokenizer.has_chat_template if chat is None else chat


def prompt_tokens(tokenizer: "Tokenizer", text: str, *, chat: bool) -> list[int]:
    """Return the tokens of a prompt as it is, or as a user's message in the model's chat template."""
    return tokenizer.chat(text) if chat else tokenizer.encode(text)


def in_chat_template(texts: Sequence[str], folder: str | None) -> list[str]:
    """Return texts as a user's messages in the chat template of a model folder, as they are where none is named.

    Raises TreeoptError for a folder without a template.
    """
    if folder is None:
        return list(texts)
    from treeopt.texts.tokenizer import Tokenizer

    tokenizer = Tokenizer(folder)
    if not tokenizer.has_chat_template:
        raise TreeoptError(f"{folder}: no chat template. Name a chat model's folder, or leave --chat-template out.")
    return [tokenizer.chat_text(text) for text in texts]
