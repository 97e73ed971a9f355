"""Decoding texts in one way, to count what its steps come to."""

import time
from collections.abc import Callable, Sequence

import torch

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
