"""Decoding texts in one way, to count what its steps come to."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from treeopt.records.latency import Timing
from treeopt.records.trial import Trial
from treeopt.runtime.decode_loop import DecodeLoop


class Tokens(Protocol):
    """What a step guesses: tokens, the root first."""

    tokens: Tensor


class TimedSteps:
    """Steps of a decoder, the seconds of each taken apart: drafting, the target's pass, the rest.

    Args:
        decoder: whose steps.
        now_s: the clock; a CUDA device is waited for before every reading.
    """

    def __init__(self, decoder: DecodeLoop, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._decoder = decoder
        self._now_s = now_s
        self.draft_s: list[float] = []
        self.read_s: list[float] = []
        self.rest_s: list[float] = []
        self.pass_tokens: list[int] = []

    def step(self) -> list[int]:
        """Decode one step and keep its times."""
        start_s = self._time_s()
        drafted = self._decoder.draft()
        drafted_s = self._time_s()
        read = self._decoder.read(drafted)
        read_s = self._time_s()
        tokens = self._decoder.settle(drafted, read)
        end_s = self._time_s()
        self.draft_s.append(drafted_s - start_s)
        self.read_s.append(read_s - drafted_s)
        self.rest_s.append(end_s - read_s)
        extra = getattr(drafted, "extra", None)
        self.pass_tokens.append(len(drafted.tokens) + (0 if extra is None else len(extra.tokens)))
        return tokens

    def _time_s(self) -> float:
        if self._decoder.target.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.target.device)
        return self._now_s()


def decoded_text(steps: TimedSteps, decoder: DecodeLoop, prompt: Sequence[int], positions: int) -> list[list[int]]:
    """Return the tokens of every step until a text has `positions` new tokens, fewer where it ends."""
    decoder.start(prompt)
    ends = set(decoder.target.config.end_tokens)
    found: list[list[int]] = []
    room = decoder.max_text_tokens - len(prompt)
    while sum(map(len, found)) < min(positions, room):
        found.append(steps.step())
        if not ends.isdisjoint(found[-1]):
            break
    return found


def run_trial(
    decoder: DecodeLoop,
    prompts: Sequence[Sequence[int]],
    positions: int,
    *,
    now_s: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Decode every prompt for so many positions and return what the steps came to."""
    steps = TimedSteps(decoder, now_s)
    texts = [decoded_text(steps, decoder, prompt, positions) for prompt in prompts]
    sizes, counts = np.unique(steps.pass_tokens, return_counts=True)
    return Trial(
        tokens=np.array([sum(map(len, text)) for text in texts], np.int64),
        steps=np.array([len(text) for text in texts], np.int64),
        pass_tokens=sizes.astype(np.int64),
        passes=counts.astype(np.int64),
        draft=Timing(steps.draft_s, allow_negative=True),  # 0 where the clock is too coarse
    )
