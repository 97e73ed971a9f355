"""What this machine and installation are, and what would make measurements better; nothing is measured or changed.

Every check returns what it found and, where that is in the way of good measurements, what to do.
"""

import math
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from types import ModuleType

from treeopt.engines.probes.named import availabilities
from treeopt.errors import printable
from treeopt.records.machine import has_nvidia_driver, processor_name
from treeopt.records.steadiness import other_programs_warning
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted
from treeopt.version import __version__

ROOT = Path("/")
GIB = 2**30
STEADY = "performance"
"""The governor that leaves the frequency where it is highest."""
MUCH_MEMORY = 0.1
"""Share of a device's memory from which others are taken to use it; drivers alone take less."""
OPTIONAL = {
    "transformers": ("other architectures, quantised models, engine transformers", "hf"),
    "accelerate": ("models over several devices, or offloaded", "hf"),
    "gguf": ("GGUF models", "gguf"),
    "llama-cpp-python": ("GGUF models", "gguf"),
    "xllamacpp": ("engine llama-server", "engines"),
}
"""What treeopt does without, what for, and the extra that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding, and what to do about it."""

    name: str
    found: str
    action: str | None = None
    """None where all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All checks; `treeopt doctor --json` prints it."""

    checks: tuple[Check, ...]


def examine() -> DoctorReport:
    """Return all findings; takes half a second of watching other programs."""
    found = [check_treeopt(), check_packages(), check_torch(), *check_gpus()]
    found += [check_threads(), check_processor(), check_power(), check_memory(), check_load()]
    return DoctorReport(checks=(*found, *check_optional(), *check_engines()))


def doctor_text(report: DoctorReport) -> str:
    """Return a line for each finding, and below it what to do."""
    rows = aligned([(each.name, each.found) for each in report.checks], [Column(least=18), Column()])
    lines = []
    for row, check in zip(rows, report.checks, strict=True):
        lines.append(row)
        if check.action is not None:
            lines.append(f"  -> {check.action}")
    actions = sum(check.action is not None for check in report.checks)
    summary = f"{counted(actions, 'thing')} to do, after ->." if actions else "Nothing stands in the way."
    return "\n".join(printable(line) for line in [*lines, "", summary])


def check_treeopt() -> Check:
    """Return the versions of treeopt, Python and the system."""
    system = f"{platform.system()} {platform.release()}"
    return Check(name="treeopt", found=f"{__version__}, Python {platform.python_version()}, {system}")


def check_packages() -> Check:
    """Return the packages that treeopt needs, torch left out."""
    versions = {name: _version(name) for name in required_packages() if name != "torch"}
    missing = [name for name, found in versions.items() if found is None]
    return Check(
        name="packages",
        found=", ".join(f"{name} {found or 'missing'}" for name, found in versions.items()),
        action=f"Run pip install {' '.join(missing)}." if missing else None,
    )


def required_packages() -> tuple[str, ...]:
    """Return the names of the packages that treeopt itself needs, as its metadata list them."""
    try:
        lines = requires("treeopt") or []
    except PackageNotFoundError:  # a source tree that was never installed
        lines = []
    return tuple(sorted(_package_name(line) for line in lines if ";" not in line))


def check_torch() -> Check:
    """Return the version of torch, or why it cannot be imported."""
    torch = _torch()
    if isinstance(torch, str):
        return Check(
            name="torch",
            found=f"cannot be imported ({torch}): only solve, show, compare, export and import work",
            action="Install it with pip install torch; its CPU build is enough.",
        )
    if not torch.cuda.is_available() and has_nvidia_driver():
        return Check(
            name="torch",
            found=f"{torch.__version__}, which sees no GPU, although an NVIDIA driver is installed",
            action="Install a torch that is built for CUDA, and check that CUDA_VISIBLE_DEVICES does not hide the GPU.",
        )
    devices = "" if torch.cuda.is_available() else ", no device but cpu"
    return Check(name="torch", found=f"{torch.__version__}{devices}")


def check_gpus() -> Iterator[Check]:
    """Yield each device that torch sees, and whether others use its memory."""
    torch = _torch()
    if isinstance(torch, str) or not torch.cuda.is_available():
        return
    for number in range(torch.cuda.device_count()):
        free_bytes, total_bytes = torch.cuda.mem_get_info(number)
        taken = 1 - free_bytes / total_bytes
        model = f"{torch.cuda.get_device_name(number)}: {_gib(total_bytes)}, {_gib(free_bytes)} free"
        yield Check(
            name=f"cuda:{number}",
            found=model if taken <= MUCH_MEMORY else f"{model}: other programs use {taken:.0%} and may compute on it",
            action=None
            if taken <= MUCH_MEMORY
            else "Close them (nvidia-smi lists them), or choose another device with --device.",
        )


def check_threads(root: Path = ROOT) -> Check:
    """Return how many threads torch runs; where models run on the processors, that suits cores and a container's quota.

    Args:
        root: folder of the Linux files that contain limits; other systems have none.
    """
    torch, quota, (_, cores) = _torch(), quota_processors(root), _processors()
    if isinstance(torch, str):
        return Check(name="threads", found="not known without torch")
    threads = torch.get_num_threads()
    found = f"torch runs {counted(threads, 'thread')} on {counted(cores, 'core')}"
    if torch.cuda.is_available():
        return Check(name="threads", found=found)
    if quota is not None and quota < threads:
        return Check(
            name="threads",
            found=f"{found}, but this container may use the time of {quota:g} processors: they are paused in turn",
            action=f"Give --threads {max(1, math.floor(quota))}, or raise the container's limit.",
        )
    if threads > cores:
        action = f"Give --threads {cores} and check which is faster."
        return Check(name="threads", found=f"{found}, so some share a core", action=action)
    if threads < cores:
        variable = os.environ.get("OMP_NUM_THREADS")
        why = "" if variable is None else f" because OMP_NUM_THREADS is {variable}"
        action = f"Give --threads {cores}, unless the other cores are reserved."
        return Check(name="threads", found=f"{found}{why}", action=action)
    return Check(name="threads", found=found)


def check_processor(root: Path = ROOT) -> Check:
    """Return the processor, and whether its frequency follows the load; `root` as for `check_threads`."""
    threads, cores = _processors()
    quota, governor = quota_processors(root), frequency_governor(root)
    found = f"{processor_name()}: {counted(threads, 'thread')} on {counted(cores, 'core')}"
    if quota is not None:
        found += f", at most {quota:g} processors of time"
    if governor is None or governor == STEADY:
        return Check(name="processor", found=found + ("" if governor is None else f", governor {governor}"))
    return Check(
        name="processor",
        found=f"{found}, governor {governor}: short passes run slower than long ones",
        action="Run sudo cpupower frequency-set --governor performance before you profile.",
    )


def frequency_governor(root: Path = ROOT) -> str | None:
    """Return what sets the frequency of the processors, with commas where they differ; None where it is unknown."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    found = {text for path in files if (text := _text(path))}
    return ", ".join(sorted(found)) or None


def quota_processors(root: Path = ROOT) -> float | None:
    """Return how many processors' worth of time a container may use, None without a limit (control groups 2 and 1)."""
    groups = root / "sys/fs/cgroup"
    quota, _, period = (_text(groups / "cpu.max") or "").partition(" ")
    if not period:
        quota = _text(groups / "cpu/cpu.cfs_quota_us") or ""
        period = _text(groups / "cpu/cpu.cfs_period_us") or ""
    with suppress(ValueError, ZeroDivisionError):
        share = int(quota) / int(period)
        return share if share > 0 else None  # -1 is no limit, and so is `max`, which is no number
    return None


def check_power() -> Check:
    """Return whether the computer runs on its battery."""
    import psutil

    battery = None
    with suppress(AttributeError, OSError, psutil.Error):  # not every system tells
        battery = psutil.sensors_battery()
    if battery is None or battery.power_plugged is not False:
        return Check(name="power", found="not on battery")
    return Check(name="power", found="on battery, which saves power", action="Plug it in before you profile.")


def check_memory() -> Check:
    """Return the computer's memory."""
    import psutil

    memory = psutil.virtual_memory()
    return Check(name="memory", found=f"{_gib(memory.total)}, {_gib(memory.available)} available")


def check_load() -> Check:
    """Return what other programs use, which is known where torch is."""
    torch = _torch()
    try:
        from treeopt.profiler.latency.programs import look
    except ImportError:  # of a package that is missing, which another check finds
        return Check(name="other programs", found="not known")
    if isinstance(torch, str):
        return Check(name="other programs", found="not known without torch")
    sight, device = look(), "cuda" if torch.cuda.is_available() else "cpu"
    if sight.disturbs(1 if device == "cuda" else torch.get_num_threads()):
        warning = other_programs_warning(str(sight), device, "profile with --wait 10m")
        return Check(name="other programs", found=warning.found, action=warning.action)
    return Check(name="other programs", found=str(sight) if sight.load is not None else "not known")


def check_optional() -> Iterator[Check]:
    """Yield the packages that treeopt does without, and what each is for."""
    for name, (purpose, extra) in OPTIONAL.items():
        installed = _version(name) or f'not installed: pip install "treeopt[{extra}]"'
        yield Check(name=name, found=f"{installed}, for {purpose}")


def check_engines() -> Iterator[Check]:
    """Yield the engines that `treeopt probe` can measure."""
    for each in availabilities():
        installed = each.version or f"not installed: {each.install}"
        yield Check(name=f"engine {each.name}", found=installed)


@cache
def _torch() -> ModuleType | str:
    """Return torch, or why it cannot be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library that torch is linked to is missing
        return " ".join(str(error).split()) or type(error).__name__
    return torch


def _processors() -> tuple[int, int]:
    """Return how many processors this process may run on, and how many of them share no core."""
    import psutil

    every = psutil.cpu_count() or 1
    try:
        usable = len(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error):  # not every system tells
        usable = every
    physical = psutil.cpu_count(logical=False) or every
    return usable, max(1, min(usable, round(usable * physical / every)))


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _package_name(requirement: str) -> str:
    """Return the name that a requirement begins with.

    >>> _package_name("numpy>=2.0"), _package_name("prometheus-client (>=0.20)")
    ('numpy', 'prometheus-client')
    """
    ends = [place for mark in " <>=!~([;" if (place := requirement.find(mark)) >= 0]
    return requirement[: min(ends, default=len(requirement))]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"
