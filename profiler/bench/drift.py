"""A stream of texts that changes, decoded in several ways in turn."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from treeopt.records.drift import TimedText
from treeopt.runtime import Decoder

COMPUTING = "import numpy; a = numpy.ones((600, 600), numpy.float32)\nwhile True: a @ a"
"""What the other process does."""
WARM_UP_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPart:
    """Texts of a stream between two changes."""

    prompts: Sequence[Sequence[int]]
    """Token ids, one for each text."""
    busy: bool = False
    """Whether another process computes meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to decode a stream."""

    decoders: Sequence[Callable[[], Decoder]]
    """Make the decoder of each part, when it begins."""


@dataclass(frozen=True, slots=True)
class DecodedStream:
    """What one way came to."""

    texts: list[TimedText]
    tokens: list[list[int]]


def decode_stream(
    parts: Sequence[StreamPart],
    ways: Sequence[Way],
    *,
    new_tokens: int,
    before_text: Callable[[int], object] = lambda _: None,
    tick: Callable[[], object] = lambda: None,
    now_s: Callable[[], float] = time.perf_counter,
) -> list[DecodedStream]:
    """Decode every text of a stream in every way, in turn, and return what each came to.

    Filling the caches with the prompt is not timed.

    Args:
        parts: of the stream, one after the other.
        ways: with a decoder for each part.
        new_tokens: of every text.
        before_text: told the number of the text that follows.
        tick: called after every text in every way.
        now_s: the clock.
    """
    found = [DecodedStream([], []) for _ in ways]
    number = 0
    for place, part in enumerate(parts):
        with computing(busy=part.busy):
            decoders = [way.decoders[place]() for way in ways]
            for decoder in decoders if place == 0 else ():
                _decode(decoder, part.prompts[0], WARM_UP_TOKENS, 0, now_s)
            for prompt in part.prompts:
                before_text(number)
                for each in range(len(ways)):
                    turn = (each + number) % len(ways)
                    tokens, seconds = _decode(decoders[turn], prompt, new_tokens, number, now_s)
                    found[turn].texts.append(TimedText(tokens=len(tokens), seconds=seconds))
                    found[turn].tokens.append(tokens)
                    tick()
                number += 1
    return found


def _decode(
    decoder: Decoder, prompt: Sequence[int], new_tokens: int, seed: int, now_s: Callable[[], float]
) -> tuple[list[int], float]:
    steps = decoder.steps(prompt, new_tokens, seed=seed)  # fills the caches
    if decoder.target.device.type == "cuda":
        torch.cuda.synchronize(decoder.target.device)
    start_s = now_s()
    tokens = [token for committed in steps for token in committed]
    return tokens, now_s() - start_s


@contextmanager
def computing(*, busy: bool) -> Iterator[None]:
    """Have another process compute, if asked for, until the end."""
    if not busy:
        yield
        return
    other = subprocess.Popen([sys.executable, "-c", COMPUTING])
    try:
        yield
    finally:
        other.kill()
        other.wait()
