"""The prompts that acceptance and drafters are measured on: as given, or cut or continued to a context length.

At a context length positions are counted around it, half of them before and half after.  Short prompts are continued by
plain decoding, once, up to the longest context; shorter contexts use the beginning of that sequence.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from treeopt.errors import TreeoptError
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.latency.memory import release_memory
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel


class PromptSet(NamedTuple):
    """Prompts to continue, and by how much."""

    prompts: dict[int, Sequence[int]]
    """Token ids by prompt number; sequences that end before the context length are left out."""
    positions: int


@dataclass(frozen=True, slots=True)
class WholePrompts:
    """The prompts as given, at any context length."""

    prompts: Sequence[Sequence[int]]
    context_tokens: None = None

    def positions(self, positions: int) -> int:
        return positions

    def prompt(self, number: int, sampling: Sampling, positions: int) -> Sequence[int]:
        del sampling, positions
        return self.prompts[number]

    def __len__(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The positions of a sequence that count for one context length."""

    prompt_tokens: int
    """Tokens before the window; at its first position the cache has one token fewer."""
    positions: int

    @classmethod
    def around(cls, context_tokens: int, positions: int, max_tokens: int) -> "Window":
        """Return the window with a context length in its middle.

        Args:
            context_tokens: tokens in the cache in the middle.
            positions: upper bound.  The window also reaches at most half the context to either side: 100 positions around
                10 tokens would measure another context.
            max_tokens: longest sequence of the models.
        """
        half = max(0, min((positions + 1) // 2, context_tokens // 2, max_tokens - context_tokens - 1))
        return cls(prompt_tokens=max(1, context_tokens - half + 1), positions=max(1, 2 * half))


class LongSequences:
    """Sequences of every prompt and sampling that are long enough for the longest window, each decoded once.

    Args:
        target: continues short prompts by plain decoding.
        prompts: token ids.
        tokens: length of each sequence; fewer if it ends earlier.
        checkpoint: where decoded sequences are stored.
    """

    def __init__(
        self, target: LanguageModel, prompts: Sequence[Sequence[int]], tokens: int, checkpoint: Checkpoint
    ) -> None:
        self._target, self._prompts, self._tokens, self._checkpoint = target, prompts, tokens, checkpoint

    def __len__(self) -> int:
        return len(self._prompts)

    def sequence(self, number: int, sampling: Sampling) -> list[int]:
        """Return one sequence without its end token."""
        prompt, kind = list(self._prompts[number]), f"text at temperature {sampling.temperature:g}"
        if len(prompt) >= self._tokens:
            return prompt[: self._tokens]
        if (row := self._checkpoint.rows(kind).get(number)) is None:
            row = tuple(map(float, self._decode(prompt, number, sampling)))
            self._checkpoint.append(kind, number, row)
        return [*prompt, *map(int, row)]

    def _decode(self, prompt: list[int], number: int, sampling: Sampling) -> list[int]:
        """Return the tokens after a prompt.  Its number is the seed, so resuming changes nothing."""
        decoder = Decoder(self._target, None, sampling=sampling, max_sequence_tokens=self._tokens)
        new_tokens = list(decoder.generate(prompt, self._tokens - len(prompt), seed=number))
        del decoder
        release_memory()  # decoders refer to themselves, so their caches outlive them
        if new_tokens[-1] in self._target.config.end_tokens:
            new_tokens.pop()
        return new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsAtContext:
    """Beginnings of long sequences, up to the window around one context length."""

    sequences: LongSequences
    context_tokens: int
    """In the middle of the counted positions."""
    max_tokens: int
    """Longest sequence of the models."""

    def positions(self, positions: int) -> int:
        """Return how many positions are counted if up to `positions` are wanted."""
        return self._window(positions).positions

    def prompt(self, number: int, sampling: Sampling, positions: int) -> Sequence[int] | None:
        """Return the tokens before the counted positions; None if the sequence ends earlier."""
        prompt_tokens = self._window(positions).prompt_tokens
        prompt = self.sequences.sequence(number, sampling)[:prompt_tokens]
        return prompt if len(prompt) == prompt_tokens else None

    def __len__(self) -> int:
        return len(self.sequences)

    def _window(self, positions: int) -> Window:
        return Window.around(self.context_tokens, positions, self.max_tokens)


PromptSource = WholePrompts | PromptsAtContext


class DecodingPoint(NamedTuple):
    """How the target samples, and the prompts at one context length."""

    sampling: Sampling
    source: PromptSource

    @property
    def name(self) -> str:
        """In the checkpoint."""
        at = "" if self.source.context_tokens is None else f" at {self.source.context_tokens}"
        return f"{self.sampling.temperature:g}{at}"

    def prompt_set(self, positions: int, limit: int | None = None) -> PromptSet:
        """Return the first `limit` prompts that are long enough, by default all; raises TreeoptError if fewer than two are."""
        source, prompts = self.source, dict[int, Sequence[int]]()
        for number in range(len(source)):
            if len(prompts) == limit:
                break
            if (prompt := source.prompt(number, self.sampling, positions)) is not None:
                prompts[number] = prompt
        if source.context_tokens is not None and len(prompts) != limit:
            check_sequence_count(source.context_tokens, len(prompts), len(source))
        return PromptSet(prompts, source.positions(positions))

    def middle_tokens(self, prompts: Iterable[Sequence[int]], new_tokens: Iterable[int]) -> int:
        """Return the context length halfway through the new tokens, on average over sequences."""
        if self.source.context_tokens is not None:
            return self.source.context_tokens
        return round(fmean(len(prompt) + new / 2 for prompt, new in zip(prompts, new_tokens, strict=True)))


def check_sequence_count(context_tokens: int, long_enough: int, total: int) -> None:
    """Raise TreeoptError if fewer than two sequences reach a context length."""
    if long_enough < 2:
        raise TreeoptError(
            f"acceptance at {context_tokens} tokens of context: expected two sequences or more of that length. Got "
            f"{long_enough} of {total}: give longer or more prompts, or leave that context out."
        )
