"""Options that choose prompts, and how they are put to the model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options.inputs import file
from treeopt.cli.options.record import Heading, option
from treeopt.cli.options.values import Whole
from treeopt.report.text import counted

if TYPE_CHECKING:
    from treeopt.texts.tokenizer import Tokenizer

MAX_PROMPT_TOKENS = 512
"""Tokens of a prompt that are used, the first ones."""
CHAT = option(
    "--chat",
    heading=Heading.PROMPTS,
    is_flag=True,
    help="Put prompts as a user's messages, by the model's chat template.",
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
            help="Prompts, a .txt, .json or .jsonl file or a datasets folder; by default the bundled ones.",
        )
    )
    chat: bool = field(metadata=CHAT)
    most: int = field(
        metadata=option(
            "--max-prompts",
            "max_prompts",
            heading=Heading.PROMPTS,
            type=Whole(3, 4096),
            default=64,
            show_default=True,
            help="Prompts taken, the first ones; every 4th is kept for benchmarks.",
        )
    )

    def load(self, tokenizer: "Tokenizer") -> list[list[int]]:
        """Return the tokens of every prompt; say on standard error how many of a file are taken, and how many cut."""
        from treeopt.texts.tokenizer import UNFINISHED

        texts = taken_prompts(self.path, self.most)
        if self.path is not None:
            click.echo(f"{self.path}: {len(texts)} prompts taken, at most {self.most} (--max-prompts).", err=True)
        cut, prompts = 0, []
        for text in texts:
            tokens = tokenizer.encode_inner(text)
            if len(tokens) > MAX_PROMPT_TOKENS:
                cut += 1
                text = tokenizer.decode(tokens[:MAX_PROMPT_TOKENS]).rstrip(UNFINISHED)
            prompts.append(prompt_tokens(tokenizer, text, chat=self.chat))
        if cut:
            click.echo(f"{counted(cut, 'prompt')} cut to the first {MAX_PROMPT_TOKENS} tokens.", err=True)
        return prompts


def taken_prompts(path: Path | None, most: int) -> list[str]:
    """Return the first prompts of a file, or of the bundled ones where none is named."""
    from treeopt.texts.prompts import load_prompts

    return load_prompts(most=most) if path is None else load_prompts(path, most=most)


def prompt_tokens(tokenizer: "Tokenizer", text: str, *, chat: bool) -> list[int]:
    """Return the tokens of a prompt as it is, or as a user's message in the model's chat template."""
    return tokenizer.chat(text) if chat else tokenizer.encode(text)
