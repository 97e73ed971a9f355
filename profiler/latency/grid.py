"""Latencies over token count, context length and batch size: one operating point after the other."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from treeopt.errors import TreeoptError
from treeopt.profiler.latency.curve import LIMIT
from treeopt.profiler.latency.load import CpuLoadReader
from treeopt.profiler.latency.memory import fits_in_memory, release_memory
from treeopt.profiler.latency.passes import ROOM_TOKENS, TimedPoint
from treeopt.profiler.latency.point import PointTimer
from treeopt.profiler.latency.rounds import Recorder, Tick
from treeopt.profiler.settings import Settings
from treeopt.runtime.models.memory import check_batch_size, decoder_bytes
from treeopt.runtime.models.model import LanguageModel


class LatencyGrid:
    """Times a pair at every operating point of the settings.

    Args:
        target, draft: the models; None for a target alone.
        tokens: token ids that contexts are made of.
        settings: the operating points, and how much to measure.
        recorder: times the calls and stores the samples.
        load: makes a reader of the load of other programs; None for no reading.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        tokens: Sequence[int],
        settings: Settings,
        recorder: Recorder,
        *,
        load: Callable[[], CpuLoadReader] | None = None,
    ) -> None:
        self._target, self._draft = target, draft
        self._tokens = np.asarray(tokens)
        self._settings = settings
        self._recorder, self._checkpoint = recorder, recorder.checkpoint
        self._load = load

    def points(self) -> list[TimedPoint]:
        """Return the operating points not known to exceed the memory, smaller batches first."""
        settings = self._settings
        points = [
            TimedPoint(context_tokens=context, batch_size=batch, sampling=sampling)
            for sampling in settings.timed_samplings
            for context in settings.context_tokens
            for batch in sorted(settings.batch_sizes)
        ]
        return [point for point in points if not self._exceeds_memory(point)]

    def time_points(self, measure: Callable[[PointTimer], object], tick: Tick) -> dict[TimedPoint, PointTimer]:
        """Call `measure` on the timer of each operating point; return those that fit into memory.

        Raises OutOfMemoryError, naming the largest batch that fits, before anything is timed if the caches of the largest
        batch do not fit after the shortest context, and TreeoptError if not even one sequence fits.
        """
        self._check_batches()
        timers: dict[TimedPoint, PointTimer] = {}
        for point in self.points():
            if point.batch_size > 1 and not any(_is_smaller_batch(other, point) for other in timers):
                continue  # a smaller batch did not fit
            timer = self._timer(point, tick)
            if fits_in_memory(partial(measure, timer)):
                timers[point] = timer
            else:
                self._checkpoint.append(LIMIT + point.kind("verify"), 1, ())
            del timer
            release_memory()
        if not timers:
            raise TreeoptError(
                "times: memory ran out before a single token was timed. Use a smaller --context-tokens, or --offload."
            )
        return timers

    def _check_batches(self) -> None:
        settings = self._settings
        sequence_bytes = decoder_bytes(
            self._target,
            self._draft,
            None,
            sequence_tokens=min(settings.context_tokens) + ROOM_TOKENS,
            max_nodes=settings.max_tokens,
            sampling=settings.samplings[0],
        )
        if max(settings.batch_sizes) > 1:
            check_batch_size(sequence_bytes, max(settings.batch_sizes), allocated=0)

    def _timer(self, point: TimedPoint, tick: Tick) -> PointTimer:
        tokens: list[int] = np.resize(self._tokens, point.context_tokens + ROOM_TOKENS).tolist()
        return PointTimer(
            self._target,
            self._draft,
            tokens,
            point,
            self._settings,
            replace(self._recorder, tick=tick),
            load=None if self._load is None else self._load(),
        )

    def _exceeds_memory(self, point: TimedPoint) -> bool:
        return 1 in self._checkpoint.rows(LIMIT + point.kind("verify"))


def _is_smaller_batch(other: TimedPoint, point: TimedPoint) -> bool:
    return other.batch_size < point.batch_size and point == replace(other, batch_size=point.batch_size)
