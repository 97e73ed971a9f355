"""Which timed calls other programs disturbed: written to the journal block by block, and read from it again.

A block is what was timed between two readings of the load.  Its entry of kind `others verify …` says where among the
samples of kind `verify …` it begins, how many it has, and what other programs used meanwhile; of samples that no block
holds, nobody knows.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from treeopt.errors import TreeoptError
from treeopt.profiler.journal import Entry, Journal
from treeopt.profiler.latency.busy import Load, LoadReader
from treeopt.records.step_latency import Disturbance

OTHERS = "others "
"""Before a kind: the journal's entries of what other programs used while its samples were taken."""


class Watch:
    """Reads the load while calls are timed, and keeps what it was beside which of them.

    Args:
        journal: where samples and loads are kept.
        kinds: of the samples that are timed from now on.
        reader: where loads come from.
    """

    def __init__(self, journal: Journal, kinds: Sequence[str], reader: LoadReader) -> None:
        self._journal = journal
        self._reader = reader
        self._counts = {kind: self._count(kind) for kind in kinds}

    def look(self) -> None:
        """Keep the load beside the samples since the last one, where the reader has one: cheap after every call."""
        load = self._reader.others()
        if load is None:
            return
        for kind, before in self._counts.items():
            if new := self._count(kind) - before:
                self._journal.append(OTHERS + kind, before, (new, load.others, load.processors, load.cores))
                self._counts[kind] += new

    def _count(self, kind: str) -> int:
        return sum(1 for _ in self._journal.entries(kind))


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call."""

    seconds: float
    load: Load | None
    """What other programs used meanwhile; None where nobody knows."""


def samples_of(journal: Journal, kind: str) -> dict[int, list[Sample]]:
    """Return the samples of one kind by key, keys rising, each with its load."""
    entries = list(journal.entries(kind))
    loads: list[Load | None] = [None] * len(entries)
    for block in journal.entries(OTHERS + kind):
        end, load = _block(block)
        loads[block.key : end] = [load] * len(loads[block.key : end])
    found: dict[int, list[Sample]] = {}
    for entry, beside in zip(entries, loads, strict=True):
        found.setdefault(entry.key, []).extend(Sample(seconds, beside) for seconds in entry.values)
    return dict(sorted(found.items()))


def _block(entry: Entry) -> tuple[int, Load]:
    """Return where a block ends and its load.

    Raises TreeoptError for numbers that are none.
    """
    with suppress(ValueError, OverflowError):
        count, others, processors, cores = entry.values
        end, load = entry.key + int(count), Load(others, int(processors), int(cores))
        if 0 <= entry.key < end and load.cores >= 1 and 0 <= load.others <= load.processors > 0:
            return end, load
    raise TreeoptError(
        f"journal: expected a block of samples and what other programs used beside it. Got {entry.kind!r:.60} with "
        f"{entry.values!r:.60}: start over with --force in place of --resume."
    )


class Watched:
    """The samples of a journal, told apart by what other programs used meanwhile.

    Args:
        journal: where samples and loads are kept.
        threads: that compute at once in a timed call.
        enough: undisturbed samples of a count with which the disturbed ones are left out.
    """

    def __init__(self, journal: Journal, *, threads: int = 1, enough: int = 1) -> None:
        self._journal = journal
        self._threads = threads
        self._enough = enough

    def undisturbed(self, kind: str) -> dict[int, list[float]]:
        """Return the samples by key that nothing is known to have disturbed, an empty list where all were."""
        return {
            key: [each.seconds for each in samples if not self._disturbed(each)]
            for key, samples in samples_of(self._journal, kind).items()
        }

    def kept(self, kind: str) -> dict[int, list[float]]:
        """Return the samples by key that count: the undisturbed ones where they are enough, otherwise all."""
        return {key: [each.seconds for each in samples] for key, samples in self._kept(kind).items()}

    def quiet_calls(self, kinds: Sequence[str]) -> int:
        """Return how many samples are known to have been taken undisturbed."""
        return sum(
            each.load is not None and not self._disturbed(each)
            for kind in kinds
            for samples in samples_of(self._journal, kind).values()
            for each in samples
        )

    def fewest(self, kind: str, keys: Iterable[int]) -> int:
        """Return how many undisturbed samples that of some keys has that has the fewest."""
        undisturbed = self.undisturbed(kind)
        return min(len(undisturbed.get(key, ())) for key in keys)

    def disturbance(self, kinds: Sequence[str]) -> Disturbance | None:
        """Return what other programs did to the samples of some kinds, None where nobody looked."""
        timed = [each for kind in kinds for samples in samples_of(self._journal, kind).values() for each in samples]
        kept = [each for kind in kinds for samples in self._kept(kind).values() for each in samples]
        if all(each.load is None for each in timed):
            return None
        shares = [each.load.share for each in timed if each.load is not None and self._disturbed(each)]
        return Disturbance(
            calls=len(shares) / len(timed),
            samples=sum(map(self._disturbed, kept)) / len(kept),
            processors=fmean(shares) if shares else None,
        )

    def _kept(self, kind: str) -> dict[int, list[Sample]]:
        found = {}
        for key, samples in samples_of(self._journal, kind).items():
            undisturbed = [each for each in samples if not self._disturbed(each)]
            found[key] = undisturbed if len(undisturbed) >= self._enough else samples
        return found

    def _disturbed(self, sample: Sample) -> bool:
        return sample.load is not None and sample.load.disturbs(self._threads)
