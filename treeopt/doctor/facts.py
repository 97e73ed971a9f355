"""What was found of a machine and an installation, in records that `treeopt doctor --json` prints."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package that treeopt needs, or that something optional needs."""

    name: str
    version: str | None
    """None where it is not installed."""
    needed_for: str
    """What it is for; `treeopt` where nothing works without it."""
    install: str
    """The command that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The computer, as its operating system tells it."""

    system: str
    """Operating system and its release."""
    processor: str
    processors: int
    """That this process may run on, hardware threads one by one."""
    cores: int
    """As many of them as can compute without sharing a core."""
    quota_processors: float | None
    """Processors' worth of time that a container may use; None without a limit."""
    governor: str | None
    """Who sets the processors' frequency, where the system tells it; all of them with commas where they differ."""
    on_battery: bool
    memory_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What models can run on."""

    name: str
    """As `--device` takes it."""
    model: str
    memory_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """What torch sees; it is imported only to ask it."""

    version: str | None
    """None where it cannot be imported."""
    failure: str | None
    """Why it cannot."""
    threads: int | None
    """That it computes with unless --threads says another number."""
    devices: tuple[Device, ...]
    nvidia_unseen: bool
    """Whether there is an NVIDIA GPU that this torch does not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFound:
    """An engine that can be probed, and whether it is here."""

    name: str
    version: str | None
    """None where it is not installed."""
    started: str
    """How it is started."""
    install: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What other programs use of the processors."""

    sight: str | None
    """In words; None where nobody knows."""
    disturbs: bool
    """Whether times that are taken now would be too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that was found, before anything is concluded from it."""

    treeopt: str
    python: str
    host: Host
    torch: Torch
    omp_num_threads: str | None
    """The variable of the environment, where it is set."""
    packages: tuple[Package, ...]
    engines: tuple[EngineFound, ...]
    load: Load
