"""One curve in the making: the seconds of a pass against its tokens."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from treeopt.profiler.budget import Slice
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.memory import give_back_memory, out_of_memory
from treeopt.profiler.latency.rounds import coarse_points, first_points, next_point, timed_rounds
from treeopt.profiler.latency.watch import Watched
from treeopt.profiler.recorder import Recorder
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.steadiness import line_errors

PILOT_ROUNDS = 3
MOST_SAMPLES = 200
"""Of one count, after which more of them tell nothing new."""
LEAST_ERROR = 0.01
"""Straight lines that are off by less need no count between, where time is short."""
CHEAP_S = 1.0
"""Passes that take less are timed at least once, even if no time is left: the budget is known to plans then."""
LIMIT = "limit "
"""Before a curve's kind: the journal's entries of counts for which memory ran out."""


@dataclass(frozen=True)
class Passes:
    """The timed passes of one model, with the caches that they need."""

    make_work: Callable[[int], Work]
    """From a token count to the pass that is timed."""
    prepare: Callable[[int], object] = lambda _: None
    """Called with the count, untimed, before its passes; see `timed_rounds`."""
    between: Callable[[int], object] = lambda _: None
    """Called with the count, untimed, after an untimed pass and before the timed one."""


class Curve:
    """Times passes from 1 token to `most`, or to where memory ends.

    Args:
        kind: the curve's name in the journal.
        open_passes: allocates the caches of the passes, of which one set lives at a time; `close` frees them.
        most: largest count.
        recorder: what times the calls, and where samples go.
        open_single: the same for the pass of one token; by default `open_passes`.
    """

    def __init__(
        self,
        kind: str,
        open_passes: Callable[[], Passes],
        most: int,
        recorder: Recorder,
        *,
        open_single: Callable[[], Passes] | None = None,
    ) -> None:
        self._kind = kind
        self._open_passes, self._open_single = open_passes, open_single or open_passes
        self._first = first_points(most)
        journal = recorder.journal
        self._most = min([most, *(entry.key - 1 for entry in journal.entries(LIMIT + kind))])
        self._recorder, self._journal = recorder, journal
        self._watched = recorder.watched or Watched(journal)
        self._points: set[int] = set()
        self._opened: tuple[Callable[[], Passes], Passes] | None = None
        self._works: dict[int, Work] = {}

    @property
    def limit_tokens(self) -> int | None:
        """The smallest count for which memory ran out, None where it sufficed."""
        return min((entry.key for entry in self._journal.entries(LIMIT + self._kind)), default=None)

    @property
    def added(self) -> int:
        """Counts that are timed beside the first ones."""
        return len(self._points - set(self._first))

    @property
    def fewest_undisturbed(self) -> int:
        """Undisturbed samples of the count that has the fewest."""
        return self._watched.fewest(self._kind, self._points)

    def pilot(self, rounds: int) -> None:
        """Time the first counts, which grow, and those of the journal, a few rounds or as many as asked for."""
        for tokens in sorted({*self._first, *self._samples()}):
            self._add(tokens)
        self.sample(min(PILOT_ROUNDS, rounds))

    def bend(self, rounds: int, *, least_error: float = 0.0) -> bool:
        """Add the count where the straight lines are least sure; return False where that is less than an error."""
        point = self._bent(self._most, least_error)
        if point is None:
            return False
        self._add(point)
        if point in self._points:
            self._timed_rounds({point}, min(PILOT_ROUNDS, rounds))
        return True

    def coarse(self, least: int, time: Slice) -> None:
        """Time counts that grow by half, a few rounds; expensive ones above `least` only while there is time."""
        for tokens in sorted({*coarse_points(self._most), *self._samples()}):
            samples = self._samples()
            if tokens > least and tokens not in samples and time.over() and _extrapolated_s(samples, tokens) > CHEAP_S:
                break
            self._add(tokens)
            self._timed_rounds(self._points & {tokens}, 1, first_calls=1)  # it was tried before
        if not time.over():
            self._timed_rounds(self._points, PILOT_ROUNDS, over=time.over)

    def refine(self, counts: Iterable[int], time: Slice, rounds: int) -> None:
        """Time some counts, and one more where the curve bends most near them, until a time or some rounds are over."""
        largest = max(self._points)
        wanted = {count for count in counts if count <= largest}
        bent = self._bent(2 * max(wanted, default=1), LEAST_ERROR)
        for tokens in sorted({*wanted, *(() if bent is None else (bent,))}):
            self._add(tokens)
            self._timed_rounds(self._points & {tokens} - self._samples().keys(), PILOT_ROUNDS)
        points = wanted & self._points
        self._timed_rounds(points - {1}, rounds, over=time.over)
        self._timed_rounds(points & {1}, self.samples(points - {1}) or rounds, over=time.over)

    def samples(self, counts: Iterable[int]) -> int:
        """Return the samples of the count that has the fewest, of those that are no larger than was timed."""
        samples, largest = self._samples(), max(self._points, default=0)
        return min((len(samples.get(count, ())) for count in counts if count <= largest), default=0)

    def _bent(self, most: int, least_error: float = 0.0) -> int | None:
        """Return the count up to `most` to add next; None where no straight line is off by as much as an error."""
        samples = {tokens: each for tokens, each in self._samples().items() if tokens <= most}
        tokens, medians_s = list(samples), [float(np.median(each)) for each in samples.values()]
        point = next_point(tokens, medians_s)
        return None if point is None or line_errors(tokens, medians_s).max() < least_error else point

    def sample(self, rounds: int, over: Callable[[], bool] = lambda: False) -> None:
        """Time every count until it has so many samples, or until a time is over."""
        self._timed_rounds(self._points, rounds, over=over)

    def sample_again(self, rounds: int) -> None:
        """Time every count until it has so many samples that nothing disturbed."""
        self._timed_rounds(self._points, rounds, self._watched.undisturbed(self._kind))

    def close(self) -> None:
        """Free the caches; they are allocated again for the next pass that is timed."""
        self._opened, self._works = None, {}

    def table(self) -> LatencyTable:
        """Return the curve as measured so far."""
        samples = self._samples()
        return LatencyTable(list(samples), [Timing(values) for values in samples.values()])

    def _samples(self) -> dict[int, list[float]]:
        return {tokens: each for tokens, each in self._watched.kept(self._kind).items() if tokens <= self._most}

    def _add(self, tokens: int) -> None:
        """Add a count, and try its pass where it was never timed."""
        if tokens > self._most or tokens in self._points:
            return

        def attempt() -> None:
            self._passes(tokens).prepare(tokens)
            self._work(tokens)()

        if tokens not in self._samples():
            self._passes(tokens)  # no room for the caches is no limit of the curve
            if not self._fits(tokens, attempt):
                return
        self._points.add(tokens)

    def _timed_rounds(
        self,
        points: set[int],
        rounds: int,
        counted: Mapping[int, Sequence[float]] | None = None,
        over: Callable[[], bool] = lambda: False,
        first_calls: int | None = None,
    ) -> None:
        time_rounds = partial(timed_rounds, rounds=rounds, counted=counted, over=over, first_calls=first_calls)
        have = self._journal.samples(self._kind) if counted is None else counted
        due = {tokens for tokens in points if len(have.get(tokens, ())) < rounds}
        single = {1} if self._open_single is not self._open_passes else set()
        for group in (due & single, due - single):  # each behind caches of its own
            while group and not self._timed_group(group, time_rounds):
                group &= self._points

    def _timed_group(self, group: set[int], time_rounds: Callable[..., None]) -> bool:
        self._passes(min(group))
        return self._fits(max(group), partial(self._time_group, group, time_rounds))

    def _time_group(self, group: set[int], time_rounds: Callable[..., None]) -> None:
        passes = self._passes(min(group))
        works = {tokens: self._work(tokens) for tokens in sorted(group)}
        time_rounds(
            self._kind,
            works,
            recorder=self._recorder,
            prepare=passes.prepare,
            lead=lambda tokens: (works[tokens](), passes.between(tokens)),
        )

    def _passes(self, tokens: int) -> Passes:
        """Return the passes that a count belongs to, after freeing the caches of others."""
        opener = self._open_single if tokens == 1 else self._open_passes
        if self._opened is None or self._opened[0] is not opener:
            self.close()
            give_back_memory()  # decoders refer to themselves, so that their caches outlive them
            self._opened = opener, opener()
        return self._opened[1]

    def _work(self, tokens: int) -> Work:
        passes = self._passes(tokens)
        if tokens not in self._works:
            self._works[tokens] = passes.make_work(tokens)
        return self._works[tokens]

    def _fits(self, tokens: int, call: Callable[[], object]) -> bool:
        """Make a call; if memory runs out in it, end the curve before `tokens` and return False.

        Memory is given back after the exception is gone, because its traceback holds what the failed pass allocated.
        """
        try:
            call()
        except Exception as error:
            if not out_of_memory(error) or tokens == 1:
                raise
        else:
            return True
        self._journal.append(LIMIT + self._kind, tokens, ())
        self._most = tokens - 1
        self._points = {count for count in self._points if count < tokens}
        self._works = {count: work for count, work in self._works.items() if count < tokens}
        give_back_memory()
        return False


def _extrapolated_s(samples: Mapping[int, Sequence[float]], tokens: int) -> float:
    """Return the seconds of a larger pass than was timed, if each token takes as long as in the largest one."""
    largest = max(samples)
    return float(np.median(samples[largest])) * tokens / largest
