"""Timing how long a text takes to begin: the whole prompt in one pass of each model, after steps of another text.

A server reads a prompt between steps of decoding, and their work is what the processor's caches hold by then.  After
the same prompt again and again it took up to 7 % less.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from treeopt.profiler.budget import UNLIMITED, Slice
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.memory import give_back_memory
from treeopt.profiler.latency.rounds import timed_rounds
from treeopt.profiler.recorder import Recorder
from treeopt.records.latency import LatencyTable, PrefillLatency, Timing
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel, trained_tokens
from treeopt.trees import chain

LEAST_TOKENS = 16
"""Of the shortest prompt that is timed."""
MOST_ROUNDS = 5


def prompt_lengths(longest: int) -> list[int]:
    """Return the tokens of the prompts that are timed: doubled again and again, and the longest.

    >>> prompt_lengths(100), prompt_lengths(9)
    ([16, 32, 64, 100], [9])
    """
    doubled = [LEAST_TOKENS << times for times in range(longest.bit_length())]
    return [each for each in doubled if each < longest] + [longest]


class PrefillTimes:
    """Times how long prompts of several lengths take.

    Args:
        target, draft: the models; None for a target alone.
        text: token ids that prompts are made of.
        longest: tokens of the longest prompt; no more than the models take.
        recorder: what times the calls, and where samples go.
    """

    def __init__(
        self, target: LanguageModel, draft: LanguageModel | None, text: Sequence[int], longest: int, recorder: Recorder
    ) -> None:
        self._models = {"target": target, **({} if draft is None else {"draft": draft})}
        self._longest = min(longest, trained_tokens(target, draft))
        self._text: list[int] = np.resize(np.asarray(text), self._longest).tolist()
        self._recorder = recorder

    @property
    def calls(self) -> int:
        """Most calls that are timed for a round."""
        return len(self._models) * len(prompt_lengths(self._longest))

    def measure(self, rounds: int, time: Slice = UNLIMITED) -> PrefillLatency:
        """Time all that the journal does not hold yet.

        Args:
            rounds: samples of each length, at most `MOST_ROUNDS` of which are taken.
            time: after which no longer prompt is begun, and no further round.
        """
        for number in range(1, min(rounds, MOST_ROUNDS) + 1):
            for name in self._models:
                self._time_model(name, number, time)
            if time.over():
                break
        return PrefillLatency(**{name: self._table(name) for name in self._models})

    def _time_model(self, name: str, rounds: int, time: Slice) -> None:
        """Time one model's prompts; the target's share the cache of the steps before them."""
        give_back_memory()
        target = self._decoder("target")
        decoder = target if name == "target" else self._decoder(name)

        def step_elsewhere(_: int) -> None:
            target.start(self._text[:1])
            target.step()

        works: dict[int, Work] = {}
        for length in prompt_lengths(self._longest):
            if works and time.over():
                break
            works[length] = partial(decoder.start, self._text[:length])
            if time.end_s < math.inf:
                timed_rounds(_kind(name), works, 1, self._recorder, lead=step_elsewhere)
        timed_rounds(_kind(name), works, rounds, self._recorder, lead=step_elsewhere)

    def _decoder(self, name: str) -> Decoder:
        room = max(2, self._longest)  # for a step at least
        return Decoder(self._models[name], None, chain(0), max_text_tokens=room)

    def _table(self, name: str) -> LatencyTable:
        samples = self._recorder.journal.samples(_kind(name))
        return LatencyTable(list(samples), [Timing(each) for each in samples.values()])


def _kind(name: str) -> str:
    return f"prefill {name}"
