"""Which timed calls were disturbed by other programs, and in which block of calls each was made.

The load is read after blocks of calls and stored in the checkpoint.  The entry of kind `others verify …` has as its key the
index of the block's first sample of kind `verify …`, and as its values the number of samples and the load.  The load of
samples outside all blocks is unknown.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.latency.drift import remove_drift
from treeopt.profiler.latency.load import CpuLoadReader, Load
from treeopt.records.step_latency import Interference

OTHERS = "others "
"""Prefix of the checkpoint's entries with the load during samples of a kind."""
BLOCK = "block "
"""Prefix of the checkpoint's entries whose keys are the indices of first samples of blocks of a kind."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call."""

    seconds: float
    load: Load | None
    """During the call; None if unknown."""
    block: int = 0
    """Number of the block of calls that were made within seconds; see `treeopt.profiler.latency.drift`."""


def read_samples(checkpoint: Checkpoint, kind: str) -> dict[int, list[Sample]]:
    """Return the samples of one kind with their loads and blocks, by ascending key."""
    entries = checkpoint.entries(kind)
    loads: list[Load | None] = [None] * len(entries)
    for block in checkpoint.entries(OTHERS + kind):
        count, used, processors, cores = block.values
        loads[block.key : block.key + int(count)] = [Load(used, int(processors), int(cores))] * int(count)
    starts = [start.key for start in checkpoint.entries(BLOCK + kind)]
    samples: dict[int, list[Sample]] = {}
    for index, (entry, entry_load) in enumerate(zip(entries, loads, strict=True)):
        number = bisect_right(starts, index)
        samples.setdefault(entry.key, []).extend(Sample(seconds, entry_load, number) for seconds in entry.values)
    return dict(sorted(samples.items()))


def start_block(checkpoint: Checkpoint, kind: str) -> None:
    """Store that the next samples of one kind are made at another time than those before."""
    checkpoint.append(BLOCK + kind, len(checkpoint.entries(kind)), ())


class SampleFilter:
    """Stores the load of other programs next to the samples of a checkpoint, and separates those that they disturbed.

    Args:
        checkpoint: where samples and loads are stored.
        kinds: of the samples whose load is read.
        reader: where loads come from; None for nowhere.
        threads: that compute at the same time in a timed call.
        enough: undisturbed samples of a key from which on disturbed ones are left out.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        kinds: Sequence[str] = (),
        reader: CpuLoadReader | None = None,
        *,
        threads: int = 1,
        enough: int = 1,
    ) -> None:
        self._checkpoint = checkpoint
        self._reader = reader
        self._threads = threads
        self._enough = enough
        self._counts = {kind: len(checkpoint.entries(kind)) for kind in kinds}
        self.is_quiet = False
        """Whether other programs disturb nothing according to the last load that was read."""

    def update(self) -> None:
        """Store the load since the last update, if the reader has one.  Cheap enough to call after every sample."""
        load = None if self._reader is None else self._reader.read()
        if load is None:
            return
        self.is_quiet = not load.disturbs(self._threads)
        for kind, count in self._counts.items():
            if new := len(self._checkpoint.entries(kind)) - count:
                self._checkpoint.append(OTHERS + kind, count, (new, load.used, load.processors, load.cores))
                self._counts[kind] += new

    def undisturbed(self, kind: str) -> dict[int, list[float]]:
        """Return the seconds of samples not known to be disturbed, by key; a list may be empty."""
        return {
            key: [sample.seconds for sample in samples if not self._disturbed(sample)]
            for key, samples in read_samples(self._checkpoint, kind).items()
        }

    def usable(self, kind: str) -> dict[int, list[float]]:
        """Return the seconds of the undisturbed samples of each key if they are enough, otherwise of all, without drift."""
        usable = self._usable(kind)
        return remove_drift(
            {key: [sample.seconds for sample in samples] for key, samples in usable.items()},
            {key: [sample.block for sample in samples] for key, samples in usable.items()},
        )

    def disturbed(self, kind: str) -> set[int]:
        """Return the keys with disturbed samples among the usable ones."""
        return {key for key, samples in self._usable(kind).items() if any(map(self._disturbed, samples))}

    def interference(self) -> Interference | None:
        """Return how far other programs disturbed the samples; None if no load is known."""
        every = [read_samples(self._checkpoint, kind) for kind in self._counts]
        all_samples = [sample for by_key in every for samples in by_key.values() for sample in samples]
        if all(sample.load is None for sample in all_samples):
            return None
        usable = [sample for kind in self._counts for samples in self._usable(kind).values() for sample in samples]
        shares = [sample.load.share for sample in all_samples if sample.load is not None and self._disturbed(sample)]
        return Interference(
            calls=len(shares) / len(all_samples),
            samples=sum(map(self._disturbed, usable)) / len(usable),
            processors=fmean(shares) if shares else None,
        )

    def _usable(self, kind: str) -> dict[int, list[Sample]]:
        usable = {}
        for key, samples in read_samples(self._checkpoint, kind).items():
            undisturbed = [sample for sample in samples if not self._disturbed(sample)]
            usable[key] = undisturbed if len(undisturbed) >= self._enough else samples
        return usable

    def _disturbed(self, sample: Sample) -> bool:
        return sample.load is not None and sample.load.disturbs(self._threads)
