"""Several processes under `torchrun`: data parallel over the prompts, or one target split over all of them.

They communicate with collectives of torch.distributed; `exit_reasons` finds the process that ended first.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.profiler.clock import Clock, WarmUp, Work
from treeopt.profiler.processes.exit_reasons import POLL_S, ExitReasons
from treeopt.profiler.processes.processes import Numbers, Processes, Result
from treeopt.runtime.models.load import list_devices, resolve_device_name

TIMEOUT = timedelta(days=30)
"""Processes wait as long as another one measures."""


def processes_for(environ: Mapping[str, str], *, tensor_parallel: bool, device: torch.device) -> Processes:
    """Return the processes that `torchrun` started, this one included, or one process without `torchrun`.

    Args:
        environ: environment variables, with the number of processes.
        tensor_parallel: whether the target is split over all of them; otherwise each has a whole one.
        device: of this process, see `local_device`; GPUs communicate with NCCL, CPUs with gloo.

    Raises TreeoptError if they do not find each other, InvalidValueError for a split target with one process.
    """
    count = int(environ.get("WORLD_SIZE", "1"))
    if count == 1:
        if tensor_parallel:
            raise InvalidValueError(
                "tensor_parallel: expected several processes. Got one: start them with torchrun.",
                field="tensor_parallel",
            )
        return Processes()
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
    """Return the device of this process: among several, each takes the GPU of its local rank.

    Args:
        name: auto, cpu, cuda, or with one process cuda:1.
        environ: environment variables, with the local rank.

    Raises InvalidValueError if several processes would share one GPU, or there are fewer GPUs.
    """
    name = resolve_device_name(name)
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidValueError(
            f"device: expected a device of this machine: {', '.join(list_devices())}. Got {name!r}.", field="device"
        ) from None
    if device.type != "cuda" or int(environ.get("WORLD_SIZE", "1")) == 1:
        return device
    if device.index is not None:
        raise InvalidValueError(
            f"device: expected cuda, since each process takes a GPU of its own. Got {name}.", field="device"
        )
    if (local_rank := environ.get("LOCAL_RANK")) is None:
        raise InvalidValueError(
            "device: expected LOCAL_RANK for several processes. Got none: start them with torchrun.", field="device"
        )
    count = torch.cuda.device_count()
    if int(local_rank) >= count:
        raise InvalidValueError(
            f"device: expected a GPU for each process of this machine. Got {count} GPUs for process {local_rank}: start "
            "fewer.",
            field="device",
        )
    return torch.device("cuda", int(local_rank))


class DataParallel(Processes):
    """Each process has both models and counts its share of the prompts; process 0 alone takes the times."""

    def __init__(self, exit_reasons: ExitReasons) -> None:
        self.rank, self.count = exit_reasons.rank, exit_reasons.count
        self.parts = self.count
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        self._exit_reasons = exit_reasons

    def gather(self, counted: Mapping[int, Numbers]) -> dict[int, Numbers]:
        return {number: values for counts in self._all_gather(dict(counted)) for number, values in counts.items()}

    def run_on_first(self, make: Callable[[], Result]) -> Result:
        """Return the result of process 0, while the others wait without using the processor."""
        return self._broadcast(make() if self.rank == 0 else None)

    @contextmanager
    def supervise(self, checkpoint: Path | None) -> Iterator[None]:
        """Also destroys the process group at the end."""
        with self._exit_reasons.supervise(checkpoint):
            yield
        dist.destroy_process_group()

    def _all_gather(self, own: Result) -> list[Result]:
        self._wait_for_all()
        results: list[Any] = [None] * self.count
        dist.all_gather_object(results, own, group=self._group)
        return results

    def _broadcast(self, own: Result | None) -> Result:
        self._wait_for_all()
        values: list[Any] = [own]
        dist.broadcast_object_list(values, src=0, group=self._group)
        result: Result = values[0]
        return result

    def _wait_for_all(self) -> None:
        """Wait for all processes in a way that signals can interrupt."""
        barrier = dist.barrier(group=self._group, async_op=True)
        assert barrier is not None
        while not barrier.is_completed():
            time.sleep(POLL_S)
        barrier.wait()


class TensorParallel(DataParallel):
    """All processes run every pass of a target that is split over them; each has a whole draft model.

    All count the same prompts with the same seeds, and use the measurements and decisions of process 0.
    """

    def __init__(self, exit_reasons: ExitReasons) -> None:
        super().__init__(exit_reasons)
        self.parts = 1
        self.conditions = f", target split over {self.count} processes"
        self.writes_checkpoint = self.rank == 0

    def gather(self, counted: Mapping[int, Numbers]) -> dict[int, Numbers]:
        """Return the common counts; raises TreeoptError if the processes' counts differ."""
        own = dict(counted)
        different = [rank for rank, counts in enumerate(self._all_gather(own)) if counts != own]
        if different:
            raise TreeoptError(
                f"processes: expected equal counts of all, since they share one target. Got others from process "
                f"{', '.join(map(str, different))}: use devices of one kind."
            )
        return own

    def run_on_first(self, make: Callable[[], Result]) -> Result:
        """Return the result of process 0; all run it, because passes of the target need all of them."""
        return self._broadcast(make())

    def clock(self, own: Clock) -> Clock:
        return SharedClock(own, self._group)


class SharedClock:
    """The clock of process 0 for all processes, so that all decide alike.

    Args:
        own: the clock of this process.
        group: the processes.
    """

    def __init__(self, own: Clock, group: dist.ProcessGroup) -> None:
        self._own = own
        self._group = group

    @property
    def warm_up(self) -> WarmUp:
        return self._own.warm_up

    def now_s(self) -> float:
        return self._own.now_s()

    def time_s(self, work: Work) -> float:
        """Return the seconds of one call, made by all processes, by the clock of process 0."""
        seconds = torch.tensor(self._own.time_s(work), dtype=torch.float64)
        dist.broadcast(seconds, src=0, group=self._group)
        return float(seconds)
