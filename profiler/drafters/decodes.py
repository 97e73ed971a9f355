"""Texts decoded in several ways in turn, each timed from end to end and kept in the journal at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from treeopt.profiler.budget import UNLIMITED, Slice
from treeopt.profiler.recorder import Recorder
from treeopt.records.latency import Timing
from treeopt.records.measured_drafter import DecodedTexts
from treeopt.runtime import Decoder

WARM_UP_TOKENS = 16
"""Decoded untimed with every decoder, because its first passes of every size are slower."""


class DecodedText(NamedTuple):
    """One text, the prompt left out."""

    tokens: int
    steps: int
    seconds: float
    passes: dict[int, int]
    """How many of the target's passes had each number of tokens."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of it in one row, as a journal keeps it."""
        return (self.tokens, self.steps, self.seconds, *(float(n) for each in self.passes.items() for n in each))

    @classmethod
    def of(cls, numbers: Sequence[float]) -> "DecodedText":
        """Return the text of which `numbers` gave a row."""
        tokens, steps, seconds, *passes = numbers
        counts = {int(size): int(count) for size, count in zip(passes[::2], passes[1::2], strict=True)}
        return cls(int(tokens), int(steps), seconds, counts)


@dataclass(frozen=True)
class Way:
    """One way to decode."""

    kind: str
    """Its name in the journal."""
    make: Callable[[], Decoder]

    @cached_property
    def decoder(self) -> Decoder:
        """Its decoder, made when the first text is decoded."""
        return self.make()


def decoded_in_turn(
    ways: Sequence[Way],
    prompts: Mapping[int, Sequence[int]],
    positions: int,
    recorder: Recorder,
    time: Slice = UNLIMITED,
    least: int = 2,
) -> list[list[DecodedText]]:
    """Return of every way the texts that it decoded, each prompt in all ways before the next, so that drift hits all alike.

    Those that the journal holds are not decoded again.  Every text has a seed of its own, so that a resumed profile
    equals a whole one.

    Args:
        ways: how to decode.
        prompts: token ids by their numbers, which are the seeds too.
        positions: new tokens of each, fewer where a text ends.
        recorder: what times them, and where they are kept; its `tick` is called after every text.
        time: no further prompt is begun that may take longer.
        least: prompts that are decoded however long they take.
    """
    known = [{entry.key: entry.values for entry in recorder.journal.entries(way.kind)} for way in ways]
    warm = [False] * len(ways)
    first = next(iter(prompts.values()))
    decoded: list[int] = []
    longest_s = 0.0  # that a prompt took in all ways
    for number, prompt in prompts.items():
        new = any(number not in each for each in known)
        if len(decoded) >= least and new and time.left_s < longest_s:
            break
        decoded.append(number)
        for place, way in enumerate(ways):
            if number not in known[place]:
                if not warm[place]:
                    _decoded(way.decoder, first, min(WARM_UP_TOKENS, -(-positions // 3)), 0, recorder)
                    warm[place] = True
                known[place][number] = _decoded(way.decoder, prompt, positions, number, recorder).numbers
                recorder.journal.append(way.kind, number, known[place][number])
            recorder.tick()
        longest_s = max(longest_s, sum(DecodedText.of(each[number]).seconds for each in known))
    return [[DecodedText.of(each[number]) for number in decoded] for each in known]


def together(texts: Sequence[DecodedText]) -> DecodedTexts:
    """Return texts decoded in one way as profiles hold them."""
    return DecodedTexts(
        tokens=tuple(each.tokens for each in texts),
        steps=tuple(each.steps for each in texts),
        seconds=Timing([each.seconds for each in texts]),
    )


def passes_of(texts: Sequence[DecodedText]) -> dict[int, int]:
    """Return how many passes over all texts had each number of tokens, numbers rising."""
    sizes = np.concatenate([np.repeat(list(each.passes), list(each.passes.values())) for each in texts])
    return {int(size): int(count) for size, count in zip(*np.unique(sizes, return_counts=True), strict=True)}


def middle_tokens(prompts: Iterable[Sequence[int]], texts: Sequence[DecodedText]) -> int:
    """Return the tokens of a text in the middle of what was decoded, on average."""
    return round(float(np.mean([len(prompt) + each.tokens / 2 for prompt, each in zip(prompts, texts, strict=True)])))


def _decoded(decoder: Decoder, prompt: Sequence[int], positions: int, seed: int, recorder: Recorder) -> DecodedText:
    steps = decoder.whole_steps(prompt, positions, seed=seed)
    tokens: list[int] = []
    sizes: dict[int, int] = {}

    def decode() -> None:
        for step in steps:
            tokens.append(len(step.tokens))
            sizes[len(step.logits)] = sizes.get(len(step.logits), 0) + 1

    seconds = recorder.clock.time_s(decode)
    return DecodedText(sum(tokens), len(tokens), seconds, dict(sorted(sizes.items())))
