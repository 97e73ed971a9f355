"""One curve in the making: the seconds of a pass against its tokens."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from treeopt.profiler.clock import Work
from treeopt.profiler.latency.memory import give_back_memory, out_of_memory
from treeopt.profiler.latency.rounds import first_points, next_point, timed_rounds
from treeopt.profiler.latency.watch import Watched
from treeopt.profiler.recorder import Recorder
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.steadiness import line_errors

PILOT_ROUNDS = 3
LIMIT = "limit "
"""Before a curve's kind: the journal's entries of counts for which memory ran out."""


class Curve:
    """Times passes from 1 token to `most`, or to where memory ends.

    Args:
        kind: the curve's name in the journal.
        make_work: from a token count to the pass that is timed.
        most: largest count.
        recorder: what times the calls, and where samples go.
        prepare: called with the count, untimed, before its passes; see `timed_rounds`.
        between: called with the count, untimed, after an untimed pass and before the timed one.
    """

    def __init__(
        self,
        kind: str,
        make_work: Callable[[int], Work],
        most: int,
        recorder: Recorder,
        *,
        prepare: Callable[[int], object] = lambda _: None,
        between: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._kind = kind
        self._make_work = make_work
        self._first = first_points(most)
        journal = recorder.journal
        self._most = min([most, *(entry.key - 1 for entry in journal.entries(LIMIT + kind))])
        self._recorder, self._journal = recorder, journal
        self._prepare, self._between = prepare, between
        self._watched = recorder.watched or Watched(journal)
        self._works: dict[int, Work] = {}

    @property
    def limit_tokens(self) -> int | None:
        """The smallest count for which memory ran out, None where it sufficed."""
        return min((entry.key for entry in self._journal.entries(LIMIT + self._kind)), default=None)

    @property
    def added(self) -> int:
        """Counts that are timed beside the first ones."""
        return len(self._works.keys() - set(self._first))

    @property
    def fewest_undisturbed(self) -> int:
        """Undisturbed samples of the count that has the fewest."""
        return self._watched.fewest(self._kind, self._works)

    def pilot(self, rounds: int) -> None:
        """Time the first counts, which grow, and those of the journal, a few rounds or as many as asked for."""
        for tokens in sorted({*self._first, *self._samples()}):
            self._add(tokens)
        self.sample(min(PILOT_ROUNDS, rounds))

    def bend(self, rounds: int, *, least_error: float = 0.0) -> bool:
        """Add the count where the straight lines are least sure; return False where that is no more than an error."""
        samples = self._samples()
        tokens, medians_s = list(samples), [float(np.median(each)) for each in samples.values()]
        point = next_point(tokens, medians_s)
        if point is None or line_errors(tokens, medians_s).max() < least_error:
            return False
        self._add(point)
        if point in self._works:
            self._timed_rounds({point: self._works[point]}, min(PILOT_ROUNDS, rounds))
        return True

    def sample(self, rounds: int) -> None:
        """Time every count until it has so many samples."""
        self._timed_rounds(self._works, rounds)

    def sample_again(self, rounds: int) -> None:
        """Time every count until it has so many samples that nothing disturbed."""
        self._timed_rounds(self._works, rounds, self._watched.undisturbed(self._kind))

    def table(self) -> LatencyTable:
        """Return the curve as measured so far."""
        samples = self._samples()
        return LatencyTable(list(samples), [Timing(values) for values in samples.values()])

    def _samples(self) -> dict[int, list[float]]:
        return {tokens: each for tokens, each in self._watched.kept(self._kind).items() if tokens <= self._most}

    def _add(self, tokens: int) -> None:
        """Make the pass of a count, and try it where it was never timed."""
        if tokens > self._most or tokens in self._works:
            return
        try:
            work = self._make_work(tokens)
            if tokens not in self._samples():
                self._prepare(tokens)
                work()
        except Exception as error:
            if not out_of_memory(error) or tokens == 1:
                raise
            self._end_before(tokens)
        else:
            self._works[tokens] = work

    def _timed_rounds(
        self, works: dict[int, Work], rounds: int, counted: Mapping[int, Sequence[float]] | None = None
    ) -> None:
        try:
            timed_rounds(
                self._kind,
                works,
                rounds,
                self._recorder,
                prepare=self._prepare,
                lead=lambda tokens: (works[tokens](), self._between(tokens)),
                counted=counted,
            )
        except Exception as error:
            largest = max(works)
            if not out_of_memory(error) or largest == 1:
                raise
            self._end_before(largest)
            self._timed_rounds({tokens: work for tokens, work in works.items() if tokens < largest}, rounds, counted)

    def _end_before(self, tokens: int) -> None:
        """Leave out a count and all larger ones; what was measured below them stays."""
        self._journal.append(LIMIT + self._kind, tokens, ())
        self._most = tokens - 1
        self._works = {count: work for count, work in self._works.items() if count < tokens}
        give_back_memory()
