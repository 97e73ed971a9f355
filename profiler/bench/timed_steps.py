"""Decoding texts in one way, to count what its steps come to."""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from treeopt.records.decode_stats import DecodeStats
from treeopt.records.latency import Timing
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.observer import StepSeconds
from treeopt.runtime.drafters.drafter import Step


class TimedSteps:
    """Steps of a decoder, the seconds of each taken apart: drafting, the target's pass, the rest.

    Args:
        decoder: whose steps.
        now_s: the clock; a CUDA device is waited for before every reading.
    """

    def __init__(self, decoder: Decoder, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._decoder = decoder
        self._now_s = now_s
        self.draft_s: list[float] = []
        self.verify_s: list[float] = []
        self.rest_s: list[float] = []
        self.pass_tokens: list[int] = []

    def step(self) -> Step:
        """Decode one step and keep its times."""
        start_s = self._time_s()
        proposal = self._decoder.draft()
        drafted_s = self._time_s()
        output = self._decoder.verify(proposal)
        verified_s = self._time_s()
        step = self._decoder.accept(proposal, output)
        self._decoder.commit(step)
        seconds = StepSeconds(drafted_s - start_s, verified_s - drafted_s, self._time_s() - verified_s)
        self._decoder.tell(proposal, step, seconds)
        end_s = self._time_s()
        self.draft_s.append(seconds.draft)
        self.verify_s.append(seconds.verify)
        self.rest_s.append(end_s - verified_s)
        self.pass_tokens.append(len(output.logits))
        return step

    def _time_s(self) -> float:
        if self._decoder.target.device.type == "cuda":
            torch.cuda.synchronize(self._decoder.target.device)
        return self._now_s()


def decoded_text(steps: TimedSteps, decoder: Decoder, prompt: Sequence[int], positions: int) -> list[list[int]]:
    """Return the tokens of every step until a text has `positions` new tokens, fewer where it ends."""
    return [step.tokens for step in decoder.whole_steps(prompt, positions, steps.step)]


def decode_stats(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    positions: int,
    *,
    now_s: Callable[[], float] = time.perf_counter,
) -> DecodeStats:
    """Decode every prompt for so many positions and return what the steps came to."""
    steps = TimedSteps(decoder, now_s)
    texts = [decoded_text(steps, decoder, prompt, positions) for prompt in prompts]
    sizes, counts = np.unique(steps.pass_tokens, return_counts=True)
    return DecodeStats(
        tokens=np.array([sum(map(len, text)) for text in texts], np.int64),
        steps=np.array([len(text) for text in texts], np.int64),
        pass_tokens=sizes.astype(np.int64),
        passes=counts.astype(np.int64),
        draft=Timing(steps.draft_s, allow_negative=True),  # 0 where the clock is too coarse
    )
