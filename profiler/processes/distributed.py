"""Several processes under `torchrun`: prompts dealt out among them, or one target split over all of them.

They meet at collectives of torch.distributed; `exit_reasons` says which of them ended before the others.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.profiler.clock import Clock, WarmUp, Work
from treeopt.profiler.processes.exit_reasons import ExitReasons
from treeopt.profiler.processes.processes import Numbers, OneProcess, Processes
from treeopt.runtime.models.pair import without_auto

Result = TypeVar("Result")

PATIENCE = timedelta(days=30)
"""How long processes wait for one that is alive: for as long as it measures."""
PAUSE_S = 0.1


def processes_for(environ: Mapping[str, str], *, tensor_parallel: bool, device: torch.device) -> Processes:
    """Return the processes that `torchrun` started, this one among them; one alone where it did not.

    Args:
        environ: the environment, in which `torchrun` says how many there are.
        tensor_parallel: the target is split over all of them; otherwise each has all of it.
        device: this process's own, see `local_device`; NCCL joins GPUs, gloo CPUs.

    Raises TreeoptError when they do not find each other, InvalidValueError when one alone is to split a target.
    """
    count = int(environ.get("WORLD_SIZE", "1"))
    if count == 1:
        if tensor_parallel:
            raise InvalidValueError(
                "tensor_parallel: expected several processes. Got one: start them with torchrun.",
                field="tensor_parallel",
            )
        return OneProcess()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        store, rank, _ = next(rendezvous("env://"))
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=PrefixStore("all", store), rank=rank, world_size=count)
    except (ValueError, dist.DistError) as error:
        raise TreeoptError(
            f"processes: expected {count}, as WORLD_SIZE says, that find each other. Got: {error} "
            "Start them with torchrun."
        ) from error
    kind = TensorParallel if tensor_parallel else DataParallel
    return kind(ExitReasons(rank, count, PrefixStore("exit reasons", store)))


def local_device(name: str, environ: Mapping[str, str]) -> torch.device:
    """Return the device of this process: among several each takes the GPU of its number on the machine.

    Args:
        name: what the user asks for: auto, cpu, cuda, or with one process cuda:1.
        environ: the environment, in which `torchrun` says which number this process has.

    Raises InvalidValueError where several processes are to share one GPU.
    """
    name = without_auto(name)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidValueError(
            f"device: expected one that is there, such as cpu. Got {name!r}.", field="device"
        ) from None
    if device.type != "cuda" or int(environ.get("WORLD_SIZE", "1")) == 1:
        return device
    if device.index is not None:
        raise InvalidValueError(
            f"device: expected cuda, since each process takes a GPU of its own. Got {name}.", field="device"
        )
    return torch.device("cuda", int(environ["LOCAL_RANK"]))


class DataParallel:
    """Each process has both models and counts its share of the prompts; process 0 alone takes the times."""

    conditions = ""
    keeps_journal = True

    def __init__(self, exit_reasons: ExitReasons) -> None:
        self.rank, self.count = exit_reasons.rank, exit_reasons.count
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._exit_reasons = exit_reasons

    def owns(self, number: int) -> bool:
        """Return whether a prompt is this process's: they are dealt out one after the other."""
        return number % self.count == self.rank

    def together(self, done: Mapping[int, Numbers]) -> dict[int, Numbers]:
        """Return what all processes counted."""
        return {number: values for each in self._gathered(dict(done)) for number, values in each.items()}

    def from_first(self, make: Callable[[], Result]) -> Result:
        """Return what process 0 makes while the others wait without using the processor."""
        return self._of_first(make() if self.rank == 0 else None)

    def clock(self, own: Clock) -> Clock:
        """Return the process's own clock: no one else times."""
        return own

    @contextmanager
    def watched(self, kept: Path | None) -> Iterator[None]:
        """See `Processes`; afterwards they are processes no longer."""
        with self._exit_reasons.watched(kept):
            yield
        dist.destroy_process_group()

    def _gathered(self, own: Result) -> list[Result]:
        """Return what each process gives."""
        self._meet()
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, own, group=self._group)
        return found

    def _of_first(self, own: Result | None) -> Result:
        """Return what process 0 gives."""
        self._meet()
        found: list[Any] = [own]
        dist.broadcast_object_list(found, src=0, group=self._group)
        result: Result = found[0]
        return result

    def _meet(self) -> None:
        """Wait for all processes in a way that signals can interrupt."""
        arrival = dist.barrier(group=self._group, async_op=True)
        assert arrival is not None
        while not arrival.is_completed():
            time.sleep(PAUSE_S)
        arrival.wait()


class TensorParallel(DataParallel):
    """All processes run every pass of a target that is split over them, each beside a whole draft model.

    All count the same prompts with the same seeds, and take what process 0 measures and decides.
    """

    def __init__(self, exit_reasons: ExitReasons) -> None:
        super().__init__(exit_reasons)
        self.conditions = f", target split over {self.count} processes"
        self.keeps_journal = self.rank == 0

    def owns(self, number: int) -> bool:
        """Return that every process takes part in every prompt."""
        return number >= 0

    def together(self, done: Mapping[int, Numbers]) -> dict[int, Numbers]:
        """Return what every process counted.

        Raises TreeoptError where they did not count the same.
        """
        own = dict(done)
        others = [rank for rank, each in enumerate(self._gathered(own)) if each != own]
        if others:
            raise TreeoptError(
                f"processes: expected equal counts of all, since they share one target. Got others from process "
                f"{', '.join(map(str, others))}: use devices of one kind."
            )
        return own

    def from_first(self, make: Callable[[], Result]) -> Result:
        """Return what process 0 makes; all make it, because passes of the target need all of them."""
        return self._of_first(make())

    def clock(self, own: Clock) -> Clock:
        """Return a clock that shows the same to all."""
        return SharedClock(own, self._group)


class SharedClock:
    """The clock of process 0, shown to all, so that what is decided by times is decided alike.

    Args:
        own: the clock of this process.
        group: the processes.
    """

    def __init__(self, own: Clock, group: dist.ProcessGroup) -> None:
        self._own = own
        self._group = group

    @property
    def warm_up(self) -> WarmUp:
        """What goes untimed before a call, in every process alike."""
        return self._own.warm_up

    def now_s(self) -> float:
        return self._own.now_s()

    def time_s(self, work: Work) -> float:
        """Return the seconds of one call, which all processes make, by the clock of process 0."""
        seconds = torch.tensor(self._own.time_s(work), dtype=torch.float64)
        dist.broadcast(seconds, src=0, group=self._group)
        return float(seconds)
