"""Timing prefill: a whole prompt in one pass of each model, after decoding steps of another sequence.

A server prefills between decoding steps, which determine the contents of the processor's caches.  Timing the same prompt
repeatedly took up to 7 % less.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.memory import release_memory
from treeopt.profiler.latency.rounds import Recorder, time_rounds
from treeopt.records.latency import LatencyTable, PrefillLatency, Timing
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel, max_sequence_tokens

SHORTEST_TOKENS = 16
MAX_ROUNDS = 5


def prompt_lengths(longest: int) -> list[int]:
    """Return the timed prompt lengths: powers of two, and the longest.

    >>> prompt_lengths(100), prompt_lengths(9)
    ([16, 32, 64, 100], [9])
    """
    doubled = [SHORTEST_TOKENS << exponent for exponent in range(longest.bit_length())]
    return [length for length in doubled if length < longest] + [longest]


class PrefillTimer:
    """Times the prefill of prompts of several lengths.

    Args:
        target, draft: the models; None for a target alone.
        tokens: token ids that prompts are made of.
        longest: tokens of the longest prompt, at most what the models support.
        recorder: times the calls.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        tokens: Sequence[int],
        longest: int,
        recorder: Recorder,
    ) -> None:
        self._models = {"target": target, **({} if draft is None else {"draft": draft})}
        self._longest = min(longest, max_sequence_tokens(target, draft))
        self._tokens: list[int] = np.resize(np.asarray(tokens), self._longest).tolist()
        self._recorder = recorder

    def measure(self, deadline: Deadline = NO_DEADLINE) -> PrefillLatency:
        """Time prompts up to `MAX_ROUNDS` times, those in the checkpoint included.

        After the deadline no longer prompt and no further round is started.
        """
        for number in range(1, min(self._recorder.most_samples, MAX_ROUNDS) + 1):
            for name in self._models:
                self._time_model(name, number, deadline)
            if deadline.over():
                break
        return PrefillLatency(**{name: self._table(name) for name in self._models})

    def _time_model(self, name: str, rounds: int, deadline: Deadline) -> None:
        """Time one model's prompts; the target's own prompts share a cache with the steps before them."""
        release_memory()
        target = self._decoder("target")
        decoder = target if name == "target" else self._decoder(name)

        def decode_other_sequence(_: int) -> None:
            target.start(self._tokens[:1])
            target.step()

        works: dict[int, Work] = {}
        for length in prompt_lengths(self._longest):
            if works and deadline.over():
                break
            works[length] = partial(decoder.start, self._tokens[:length])
            time_rounds(_kind(name), works, 1, self._recorder, lead=decode_other_sequence)
        time_rounds(_kind(name), works, rounds, self._recorder, lead=decode_other_sequence)

    def _decoder(self, name: str) -> Decoder:
        return Decoder(self._models[name], None, max_sequence_tokens=max(2, self._longest))  # room for a step

    def _table(self, name: str) -> LatencyTable:
        samples = self._recorder.checkpoint.samples(_kind(name))
        return LatencyTable(list(samples), [Timing(seconds) for seconds in samples.values()])


def _kind(name: str) -> str:
    return f"prefill {name}"
