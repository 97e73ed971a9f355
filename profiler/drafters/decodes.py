"""Prompts decoded by several decoders in interleaved runs, each timed as a whole and kept in the journal."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from treeopt.profiler.bench.interleave import decode_run, interleave
from treeopt.profiler.budget import UNLIMITED, Slice
from treeopt.profiler.recorder import Recorder
from treeopt.records.latency import Timing
from treeopt.records.measured_drafter import DecodedTexts
from treeopt.runtime import Decoder


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
class Configuration:
    """A decoder that is made when the first prompt is decoded, and its name in the journal."""

    kind: str
    make: Callable[[], Decoder]

    @cached_property
    def decoder(self) -> Decoder:
        return self.make()


def decode_prompts(
    configurations: Sequence[Configuration],
    prompts: Mapping[int, Sequence[int]],
    positions: int,
    recorder: Recorder,
    time: Slice = UNLIMITED,
    least: int = 2,
) -> list[list[DecodedText]]:
    """Return what every configuration decoded, in interleaved runs.

    Those that the journal contains are not decoded again.  Every prompt has a seed of its own, so that a resumed profile
    equals a whole one.

    Args:
        configurations: what decodes.
        prompts: token ids by their numbers, which are the seeds too.
        positions: new tokens of each, fewer where a sequence ends.
        recorder: what times them, and where they are kept; its `tick` is called once for each.
        time: no further prompt begins that may take longer.
        least: prompts that are decoded however long they take.
    """
    known = [
        {entry.key: DecodedText.of(entry.values) for entry in recorder.journal.entries(each.kind)}
        for each in configurations
    ]
    decoded: list[list[DecodedText]] = []

    def affordable() -> Iterator[tuple[int, int]]:
        for number in prompts:
            new = any(number not in each for each in known)
            longest_s = max((sum(run.seconds for run in runs) for runs in decoded), default=0.0)
            if len(decoded) >= least and new and time.left_s < longest_s:
                return
            yield number, 0

    def decode(configuration: Configuration, number: int, _: int, new_tokens: int) -> DecodedText:
        run = decode_run(configuration.decoder, prompts[number], new_tokens, number, recorder.clock)
        return DecodedText(len(run.tokens), run.steps, run.seconds, run.passes)

    rounds = interleave(
        [partial(decode, each) for each in configurations],
        positions,
        affordable(),
        recorded=lambda place, number: known[place].get(number),
        record=lambda place, number, run: recorder.journal.append(configurations[place].kind, number, run.numbers),
    )
    for each in rounds:
        for _ in configurations:
            recorder.tick()
        decoded.append([*each.runs])
    return [[*runs] for runs in zip(*decoded, strict=True)]


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


def middle_tokens(prompts: Iterable[Sequence[int]], new_tokens: Iterable[int]) -> int:
    """Return the tokens of a text in the middle of what was decoded, on average."""
    return round(float(np.mean([len(prompt) + new / 2 for prompt, new in zip(prompts, new_tokens, strict=True)])))
