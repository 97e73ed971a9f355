"""The texts that acceptance is counted on at one context length: prompts, cut or decoded on until they are that long.

Positions are counted around every context length, as many before it as behind it.  A text is decoded once, plainly, up
to the longest context, and its beginning serves the shorter ones; of a prompt that is long enough only the beginning is
taken, and nothing is decoded.  Texts of other drafters than the draft model go on from the same beginnings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from treeopt.errors import TreeoptError
from treeopt.profiler.journal import Journal
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import chain


class CountedTexts(Protocol):
    """Says what is continued while acceptance is counted."""

    @property
    def context_tokens(self) -> int | None:
        """Where positions are counted; None where they follow the prompts, however long these are."""

    def prompt(self, number: int, sampling: Sampling) -> Sequence[int] | None:
        """Return what is continued of one text; None where the text ends before."""


@dataclass(frozen=True, slots=True)
class WholePrompts:
    """The prompts as they were given."""

    prompts: Sequence[Sequence[int]]

    @property
    def context_tokens(self) -> None:
        """None: wherever prompts end."""

    def prompt(self, number: int, sampling: Sampling) -> Sequence[int]:
        """Return the prompt, whatever the sampling."""
        del sampling
        return self.prompts[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The positions of a text that count for one context length."""

    context_tokens: int
    prompt_tokens: int
    """After which they begin; the first of them has one token fewer in the cache."""
    positions: int

    @classmethod
    def around(cls, context_tokens: int, positions: int, trained: int) -> "Window":
        """Return the window with a context in its middle.

        Args:
            context_tokens: tokens in the cache in its middle.
            positions: at most so many, and no more than reach half the context to either side: at 10 tokens, 100 more
                would be another context.
            trained: longest text of the models.
        """
        half = max(0, min((positions + 1) // 2, context_tokens // 2, trained - context_tokens - 1))
        return cls(
            context_tokens=context_tokens, prompt_tokens=max(1, context_tokens - half + 1), positions=max(1, 2 * half)
        )


class LongTexts:
    """Texts of every prompt and sampling that are as long as the longest window needs, each decoded once.

    Args:
        target: continues prompts that are too short, plainly.
        prompts: token ids.
        tokens: of every text, fewer where one ends.
        journal: where decoded texts are kept.
    """

    def __init__(self, target: LanguageModel, prompts: Sequence[Sequence[int]], tokens: int, journal: Journal) -> None:
        self._target, self._prompts, self._tokens, self._journal = target, prompts, tokens, journal
        self._known: dict[tuple[int, Sampling], list[int]] = {}

    @property
    def count(self) -> int:
        """How many prompts there are."""
        return len(self._prompts)

    def text(self, number: int, sampling: Sampling) -> list[int]:
        """Return one text, without a token that ends it; its seed is its own, so that a resumed profile equals a whole one."""
        if (number, sampling) not in self._known:
            self._known[number, sampling] = self._decoded(number, sampling)
        return self._known[number, sampling]

    def _decoded(self, number: int, sampling: Sampling) -> list[int]:
        prompt, kind = list(self._prompts[number]), f"text at temperature {sampling.temperature:g}"
        if len(prompt) >= self._tokens:
            return prompt[: self._tokens]
        for entry in self._journal.entries(kind):
            if entry.key == number:
                return [*prompt, *map(int, entry.values)]
        decoder = Decoder(self._target, None, chain(0), sampling=sampling, seed=number, max_text_tokens=self._tokens)
        generated = list(decoder.generate(prompt, self._tokens - len(prompt)))
        if generated[-1] in self._target.config.end_tokens:
            generated.pop()
        self._journal.append(kind, number, tuple(map(float, generated)))
        return [*prompt, *generated]


@dataclass(frozen=True, slots=True)
class TextsAtContext:
    """The beginnings of long texts, up to where the positions of one window begin."""

    texts: LongTexts
    window: Window

    @property
    def context_tokens(self) -> int:
        """In the middle of the window."""
        return self.window.context_tokens

    def prompt(self, number: int, sampling: Sampling) -> Sequence[int] | None:
        """Return the beginning of a text, None where it ends before."""
        text = self.texts.text(number, sampling)[: self.window.prompt_tokens]
        return text if len(text) == self.window.prompt_tokens else None


class Stretch(NamedTuple):
    """Texts that are continued, and by how much."""

    prompts: dict[int, Sequence[int]]
    """What is continued by the number of its prompt; those that end before are left out."""
    positions: int


class Place(Protocol):
    """Where texts are continued while a drafter is measured."""

    @property
    def context_tokens(self) -> int | None:
        """In the middle of what is decoded; None behind the prompts, however long these are."""

    def stretch(self, sampling: Sampling, positions: int, texts: int | None = None) -> Stretch:
        """Return what is continued by so many positions: the first `texts` that go on so far, by default all."""


@dataclass(frozen=True, slots=True)
class BehindPrompts:
    """Right behind the prompts as they were given."""

    prompts: Sequence[Sequence[int]]

    @property
    def context_tokens(self) -> None:
        """None: wherever prompts end."""

    def stretch(self, sampling: Sampling, positions: int, texts: int | None = None) -> Stretch:
        """Return the first prompts, whatever the sampling."""
        del sampling
        return Stretch(dict(enumerate(self.prompts[:texts])), positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundContext:
    """Around one context length of long texts."""

    texts: LongTexts
    context_tokens: int
    trained: int
    """Longest text of the models."""

    def stretch(self, sampling: Sampling, positions: int, texts: int | None = None) -> Stretch:
        """Return the first beginnings that are long enough; raises TreeoptError where fewer than two are."""
        window = Window.around(self.context_tokens, positions, self.trained)
        beginnings = TextsAtContext(self.texts, window)
        found: dict[int, Sequence[int]] = {}
        for number in range(self.texts.count):
            if len(found) == texts:
                break
            if (prompt := beginnings.prompt(number, sampling)) is not None:
                found[number] = prompt
        if len(found) != texts:
            check_long_enough(self.context_tokens, len(found), self.texts.count)
        return Stretch(found, window.positions)


def check_long_enough(context_tokens: int, found: int, texts: int) -> None:
    """Raise TreeoptError where fewer than two texts go on to a context length."""
    if found < 2:
        raise TreeoptError(
            f"acceptance at {context_tokens} tokens of context: expected two texts or more that go on so far. Got "
            f"{found} of {texts}: give longer or more prompts, or leave that context out."
        )
