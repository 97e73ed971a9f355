"""Measuring one latency curve: the seconds of a pass by its tokens."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial

import numpy as np

from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.disturbance import SampleFilter, start_block
from treeopt.profiler.latency.memory import fits_in_memory, release_memory
from treeopt.profiler.latency.rounds import Recorder, coarse_points, next_point, time_rounds
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.timing_quality import interpolation_errors

PILOT_ROUNDS = 3
STEP_ROUNDS = 12
"""Samples of each step, and of each pass in it, from which the overhead of a step follows, if there is time."""
SMALL_COUNTS = range(1, 13)
"""Chains that differ by one node are compared, and odd counts take longer."""
EXTRA_COUNTS = 10
"""The most counts that are added to a curve where it bends."""
LEAST_ERROR = 0.01
"""Linear interpolation with a smaller error needs no further count if time is short."""
CHEAP_S = 1.0
"""Shorter passes are timed at least once, even after the deadline, so that plans know the whole budget."""
QUICK_S = 0.1
"""Shorter passes are timed `PILOT_ROUNDS` times, even after the deadline, so that one disturbed sample does not decide."""
LIMIT = "limit "
"""Prefix of the checkpoint's entries of counts for which memory ran out."""


class Passes:
    """The timed passes of one model, with their caches.

    Args:
        make_work: from a token count to the pass that is timed; called once for each count.
        prepare: called with the count, untimed, before its passes; see `time_rounds`.
        between: called, untimed, between an untimed pass and the timed one.
    """

    def __init__(
        self,
        make_work: Callable[[int], Work],
        prepare: Callable[[int], object] = lambda _: None,
        between: Callable[[], object] = lambda: None,
    ) -> None:
        self.work = cache(make_work)
        self.prepare = prepare
        self._between = between

    def lead(self, tokens: int) -> None:
        """Make the untimed calls before a timed pass."""
        self.work(tokens)()
        self._between()


class LatencyCurve:
    """Times passes from 1 token to `max_tokens`, or to where memory runs out.

    Args:
        kind: of the samples in the checkpoint.
        open_passes: allocates the caches of the passes; `close` frees them.  Only one set exists at a time.
        max_tokens: largest count.
        recorder: times the passes.
        open_single: the same for the pass of one token; by default `open_passes`.
    """

    def __init__(
        self,
        kind: str,
        open_passes: Callable[[], Passes],
        max_tokens: int,
        recorder: Recorder,
        *,
        open_single: Callable[[], Passes] | None = None,
    ) -> None:
        self._kind = kind
        self._open_passes, self._open_single = open_passes, open_single or open_passes
        self._coarse = coarse_points(max_tokens)
        self._recorder, self._checkpoint = recorder, recorder.checkpoint
        limit_tokens = self.limit_tokens
        self._max_tokens = max_tokens if limit_tokens is None else min(max_tokens, limit_tokens - 1)
        self._filter = recorder.sample_filter or SampleFilter(self._checkpoint)
        self._points: set[int] = set()
        self._opened: tuple[Callable[[], Passes], Passes] | None = None

    @property
    def limit_tokens(self) -> int | None:
        """The smallest count for which memory ran out, if any."""
        return min(self._checkpoint.rows(LIMIT + self._kind), default=None)

    @property
    def disturbed(self) -> set[int]:
        """The counts with disturbed samples among the usable ones."""
        return self._points & self._filter.disturbed(self._kind)

    def coarse(self, always_tokens: int, deadline: Deadline, often: Collection[int] = ()) -> None:
        """Time counts that grow by half, quick ones repeatedly.

        Args:
            always_tokens: up to which expensive counts are timed even after the deadline.
            deadline: after which only the necessary minimum is timed.
            often: counts of passes in the steps that are timed, whose overhead follows from them; they are timed
                `STEP_ROUNDS` times.
        """
        start_block(self._checkpoint, self._kind)
        for tokens in sorted({*self._coarse, *self._samples()}):
            samples = self._samples()
            optional = tokens > always_tokens and tokens not in samples
            if optional and deadline.over() and _extrapolate_s(samples, tokens) > CHEAP_S:
                break
            self._add(tokens)
            self._time(self._points & {tokens}, 1, first_calls=1)  # `_add` has tried it
        quick = {tokens for tokens, seconds in self._samples().items() if min(seconds) <= QUICK_S}
        self._time(self._points & quick, PILOT_ROUNDS)
        if deadline.over():
            return
        self._time(self._points, PILOT_ROUNDS, deadline=deadline)
        for tokens in sorted(often):
            self._add(tokens)
        self._time(self._points & {*often}, STEP_ROUNDS, deadline=deadline)

    def add_counts(self, deadline: Deadline) -> None:
        """Add every small count, and counts where the curve bends, until the deadline."""
        if deadline.over():
            return
        for tokens in SMALL_COUNTS:
            self._add(tokens)
        self._time(self._points, PILOT_ROUNDS, deadline=deadline)
        regular = {*SMALL_COUNTS, *self._coarse}
        while len(self._points - regular) < EXTRA_COUNTS and not deadline.over():
            point = self._next_point(self._max_tokens)
            if point is None:
                return
            self._add(point)
            self._time(self._points & {point}, PILOT_ROUNDS)

    def refine(self, counts: Iterable[int], deadline: Deadline, rounds: int) -> None:
        """Time some counts, and one more where the curve bends most near them, until the deadline or for some rounds.

        Smaller counts with few undisturbed samples are timed again first.  Before them, the neighbours of the counts are timed
        again: they show how fast the machine is now.
        """
        start_block(self._checkpoint, self._kind)
        largest = max(self._points)
        counts = {count for count in counts if count <= largest}
        neighbours = self._neighbours(counts - {1})
        slowest_s = max((min(self._samples()[tokens]) for tokens in neighbours), default=0.0)
        # warmed up: a slow first call would make all other samples of the block look fast
        self._time(neighbours, PILOT_ROUNDS if slowest_s <= QUICK_S else 1, counted={}, deadline=deadline)
        bend = self._next_point(2 * max(counts, default=1), LEAST_ERROR)
        timed = self._samples().keys()
        for tokens in sorted(counts if bend is None else {*counts, bend}):
            self._add(tokens)
            self._time(self._points & {tokens} - timed, PILOT_ROUNDS)
        smaller = {tokens for tokens in self._points if tokens <= max(counts, default=0)}
        self._time(smaller, PILOT_ROUNDS, self._filter.undisturbed(self._kind), deadline)
        points = counts & self._points
        several, single = points - {1}, points & {1}  # which have their own caches
        share = deadline.part(1 - 1 / len(points)) if several and single else deadline
        self._time(several, rounds, deadline=share)
        self._time(single, rounds, deadline=deadline)

    def _neighbours(self, counts: set[int]) -> set[int]:
        """Return the timed counts next to some counts above 1; 1 token has caches of its own."""
        if not counts:
            return set()
        timed = self._samples().keys() - {1}
        below, above = (
            (count for count in timed if count < min(counts)),
            (count for count in timed if count > max(counts)),
        )
        return {max(below, default=0), min(above, default=0)} - {0}

    def samples(self, counts: Iterable[int]) -> int:
        """Return the smallest number of samples of some counts, those beyond the curve left out."""
        samples, largest = self._samples(), max(self._points, default=0)
        return min((len(samples.get(count, ())) for count in counts if count <= largest), default=0)

    def sample(self, rounds: int, deadline: Deadline = NO_DEADLINE) -> None:
        """Time every count until it has `rounds` usable samples, or to the deadline."""
        start_block(self._checkpoint, self._kind)
        self._time(self._points, rounds, deadline=deadline)

    def repeat_disturbed(self, deadline: Deadline) -> None:
        """Time the disturbed counts until enough of their samples are undisturbed, or to the deadline."""
        start_block(self._checkpoint, self._kind)
        self._time(self.disturbed, PILOT_ROUNDS, self._filter.undisturbed(self._kind), deadline)

    def close(self) -> None:
        """Free the caches; the next timed pass allocates them again."""
        self._opened = None

    def table(self) -> LatencyTable:
        samples = self._samples()
        return LatencyTable(list(samples), [Timing(seconds) for seconds in samples.values()])

    def _samples(self) -> dict[int, list[float]]:
        usable = self._filter.usable(self._kind)
        return {tokens: seconds for tokens, seconds in usable.items() if tokens <= self._max_tokens}

    def _next_point(self, max_tokens: int, least_error: float = 0.0) -> int | None:
        """Return the count to add next, up to about `max_tokens`; None if interpolation errors are below `least_error`."""
        samples = {tokens: seconds for tokens, seconds in self._samples().items() if tokens <= max_tokens}
        tokens, medians_s = list(samples), [float(np.median(seconds)) for seconds in samples.values()]
        point = next_point(tokens, medians_s)
        return None if point is None or interpolation_errors(tokens, medians_s).max() < least_error else point

    def _add(self, tokens: int) -> None:
        if tokens > self._max_tokens or tokens in self._points:
            return

        def try_pass() -> None:
            self._passes(tokens).prepare(tokens)
            self._passes(tokens).work(tokens)()

        if tokens not in self._samples():
            self._passes(tokens)  # if the caches do not fit, the curve as a whole does not
            if not self._fits(tokens, try_pass):
                return
        self._points.add(tokens)

    def _time(
        self,
        points: set[int],
        rounds: int,
        counted: Mapping[int, Sequence[float]] | None = None,
        deadline: Deadline = NO_DEADLINE,
        first_calls: int | None = None,
    ) -> None:
        """Time some counts until they have `rounds` of the counted samples, by default the usable ones."""
        rounds = min(rounds, self._recorder.most_samples)
        samples = self._samples() if counted is None else counted
        missing = {tokens for tokens in points if len(samples.get(tokens, ())) < rounds}
        single = {1} if self._open_single is not self._open_passes else set()

        def time_group(group: set[int]) -> None:
            passes = self._passes(min(group))
            works = {tokens: passes.work(tokens) for tokens in sorted(group)}
            time_rounds(
                self._kind,
                works,
                rounds,
                self._recorder,
                prepare=passes.prepare,
                lead=passes.lead,
                counted=self._samples() if counted is None else counted,
                deadline=deadline,
                first_calls=first_calls,
            )

        for group in (missing & single, missing - single):  # each has its own caches
            while group:
                self._passes(min(group))
                if self._fits(max(group), partial(time_group, group)):
                    break
                group &= self._points

    def _passes(self, tokens: int) -> Passes:
        """Return the passes of a count, after freeing the caches of others."""
        opener = self._open_single if tokens == 1 else self._open_passes
        if self._opened is None or self._opened[0] is not opener:
            self.close()
            release_memory()  # decoders refer to themselves, so their caches outlive them
            self._opened = opener, opener()
        return self._opened[1]

    def _fits(self, tokens: int, call: Callable[[], object]) -> bool:
        """Make a call; if memory runs out in it, end the curve before `tokens` and return False, or raise for 1 token."""
        if tokens == 1:
            call()
            return True
        if fits_in_memory(call):
            return True
        self._checkpoint.append(LIMIT + self._kind, tokens, ())
        self._max_tokens = tokens - 1
        self._points = {count for count in self._points if count < tokens}
        release_memory()
        return False


def _extrapolate_s(samples: Mapping[int, Sequence[float]], tokens: int) -> float:
    """Return the seconds of a pass if each token takes as long as in the largest timed pass."""
    largest = max(samples)
    return float(np.median(samples[largest])) * tokens / largest
