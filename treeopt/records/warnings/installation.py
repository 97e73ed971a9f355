"""Warnings of a machine or an installation that would spoil measurements."""

import math
from dataclasses import dataclass

from treeopt.records.warnings.caution import Caution


@dataclass(frozen=True, slots=True)
class TorchMissing(Caution):
    """torch cannot be imported, without which nothing is measured or run."""

    reason: str

    @property
    def found(self) -> str:
        """Why."""
        return f"torch cannot be imported ({self.reason}): only solve, show, compare, export and import work."

    @property
    def action(self) -> str:
        """Install it."""
        return "Install it with pip install torch; its CPU build is enough."


@dataclass(frozen=True, slots=True)
class MissingPackages(Caution):
    """Packages that treeopt needs and that are not installed."""

    names: tuple[str, ...]

    @property
    def found(self) -> str:
        """Which."""
        return f"treeopt needs {', '.join(self.names)}, which {'is' if len(self.names) == 1 else 'are'} not installed."

    @property
    def action(self) -> str:
        """Install them."""
        return f"Run pip install {' '.join(self.names)}."


@dataclass(frozen=True, slots=True)
class DeviceUnseen(Caution):
    """An NVIDIA GPU that torch cannot use."""

    torch: str
    """Its version."""

    @property
    def found(self) -> str:
        """That it is so."""
        return f"NVIDIA's driver is here, but torch {self.torch} sees no GPU."

    @property
    def action(self) -> str:
        """Install another build, or ask for the GPU."""
        return "Install a torch that is built for CUDA, and look whether CUDA_VISIBLE_DEVICES hides the GPU."


@dataclass(frozen=True, slots=True)
class SlowGovernor(Caution):
    """Processors whose frequency follows the load."""

    governor: str

    @property
    def found(self) -> str:
        """Who sets it."""
        return f"the processors' frequency is set by the governor {self.governor}, so that short passes run slower than long ones."

    @property
    def action(self) -> str:
        """Set another."""
        return "Run sudo cpupower frequency-set --governor performance before you profile."


@dataclass(frozen=True, slots=True)
class OnBattery(Caution):
    """A computer that runs on its battery."""

    @property
    def found(self) -> str:
        """That it is so."""
        return "the computer runs on its battery and saves power:"

    @property
    def action(self) -> str:
        """Plug it in."""
        return "plug it in before you profile."


@dataclass(frozen=True, slots=True)
class MemoryTaken(Caution):
    """A GPU that others use too."""

    device: str
    share: float
    """Of its memory that is taken."""

    @property
    def found(self) -> str:
        """How much."""
        return (
            f"{self.share:.0%} of the memory of {self.device} is taken by other programs, which may compute there too."
        )

    @property
    def action(self) -> str:
        """Make it quiet."""
        return "Close them (nvidia-smi lists them), or choose another with --device."


@dataclass(frozen=True, slots=True)
class ProcessorQuota(Caution):
    """A container that may use less time than its threads need."""

    processors: float
    threads: int

    @property
    def found(self) -> str:
        """Both."""
        return (
            f"this container may use {self.processors:g} processors' worth of time and torch computes with {self.threads} "
            "threads, which are stopped in turn."
        )

    @property
    def action(self) -> str:
        """Fewer threads."""
        return f"Give --threads {max(1, math.floor(self.processors))}, or raise the container's limit."


@dataclass(frozen=True, slots=True)
class SharedCores(Caution):
    """More threads than cores."""

    threads: int
    cores: int

    @property
    def found(self) -> str:
        """Both."""
        return f"torch computes with {self.threads} threads on {_counted_cores(self.cores)}, so that some share one."

    @property
    def action(self) -> str:
        """Fewer threads."""
        return f"Give --threads {self.cores} and look which is faster."


@dataclass(frozen=True, slots=True)
class FewThreads(Caution):
    """Fewer threads than cores."""

    threads: int
    cores: int
    variable: str | None
    """OMP_NUM_THREADS, where it is set."""

    @property
    def found(self) -> str:
        """Both, and why."""
        why = "" if self.variable is None else f" because OMP_NUM_THREADS is {self.variable}"
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return f"torch computes with {threads} on {_counted_cores(self.cores)}{why}."

    @property
    def action(self) -> str:
        """More threads."""
        return f"Give --threads {self.cores}, unless the others are for something else."


def _counted_cores(cores: int) -> str:
    return f"{cores} core{'s' * (cores != 1)}"
