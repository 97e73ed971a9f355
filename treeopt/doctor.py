"""Checks of the machine and the installation, each with what would improve measurements; nothing is changed."""

import math
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from types import ModuleType

from treeopt.engines.clients.registry import list_engines
from treeopt.errors import printable
from treeopt.records.machine import has_nvidia_driver, read_processor_name
from treeopt.records.timing_quality import other_programs_warning
from treeopt.report.table import Column, aligned
from treeopt.report.text import counted, percent
from treeopt.version import __version__

ROOT = Path("/")
GIB = 2**30
STEADY_GOVERNOR = "performance"
"""Keeps the processor at its highest frequency."""
MAX_USED_MEMORY = 0.1
"""Fraction of a device's memory above which other programs are assumed to use it; the driver uses less."""
OPTIONAL = {
    "transformers": ("other architectures, quantised models, engine transformers", "hf"),
    "accelerate": ("models over several devices, or offloaded", "hf"),
    "gguf": ("GGUF models", "gguf"),
    "llama-cpp-python": ("GGUF models", "gguf"),
    "xllamacpp": ("engine llama-server", "engines"),
}
"""Optional packages, with their purpose and the extra that installs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A finding and what to do about it."""

    name: str
    found: str
    action: str | None = None
    """None if there is nothing to do."""


def run_checks() -> list[Check]:
    """Return all findings; other programs are observed for half a second."""
    checks = [check_treeopt(), check_packages(), check_torch(), *check_gpus()]
    checks += [check_threads(), check_processor(), check_power(), check_memory(), check_load()]
    return [*checks, *check_optional(), *check_engines()]


def doctor_text(checks: Sequence[Check]) -> str:
    """Return a line for each finding, followed by what to do."""
    rows = aligned([(check.name, check.found) for check in checks], [Column(least=18), Column()])
    lines = []
    for row, check in zip(rows, checks, strict=True):
        lines.append(row)
        if check.action is not None:
            lines.append(f"  -> {check.action}")
    actions = sum(check.action is not None for check in checks)
    summary = f"{counted(actions, 'thing')} to do: see the lines with ->." if actions else "Nothing to do."
    return "\n".join(printable(line) for line in [*lines, "", summary])


def check_treeopt() -> Check:
    """Return the versions of treeopt, Python and the system."""
    system = f"{platform.system()} {platform.release()}"
    return Check(name="treeopt", found=f"{__version__}, Python {platform.python_version()}, {system}")


def check_packages() -> Check:
    """Return the versions of the required packages except torch."""
    versions = {name: _version(name) for name in required_packages() if name != "torch"}
    missing = [name for name, installed in versions.items() if installed is None]
    return Check(
        name="packages",
        found=", ".join(f"{name} {installed or 'missing'}" for name, installed in versions.items()),
        action=f"Run pip install {' '.join(missing)}." if missing else None,
    )


def required_packages() -> tuple[str, ...]:
    """Return the names of the required packages in treeopt's metadata."""
    try:
        lines = requires("treeopt") or []
    except PackageNotFoundError:  # a source tree that was never installed
        lines = []
    return tuple(sorted(_package_name(line) for line in lines if ";" not in line))


def check_torch() -> Check:
    """Return the version of torch, or why it is not usable."""
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
            found=f"{torch.__version__}, finds no GPU although an NVIDIA driver is installed",
            action="Install torch with CUDA, and check that CUDA_VISIBLE_DEVICES does not hide the GPU.",
        )
    devices = "" if torch.cuda.is_available() else ", no device but cpu"
    return Check(name="torch", found=f"{torch.__version__}{devices}")


def check_gpus() -> Iterator[Check]:
    """Yield each GPU of torch, and whether other programs use its memory."""
    torch = _torch()
    if isinstance(torch, str) or not torch.cuda.is_available():
        return
    for number in range(torch.cuda.device_count()):
        free_bytes, total_bytes = torch.cuda.mem_get_info(number)
        used = 1 - free_bytes / total_bytes
        model = f"{torch.cuda.get_device_name(number)}: {_gib(total_bytes)}, {_gib(free_bytes)} free"
        if used <= MAX_USED_MEMORY:
            yield Check(name=f"cuda:{number}", found=model)
            continue
        yield Check(
            name=f"cuda:{number}",
            found=f"{model}: other programs use {percent(used)} and may compute on it",
            action="Close them (nvidia-smi lists them), or choose another device with --device.",
        )


def check_threads(root: Path = ROOT) -> Check:
    """Return torch's threads, compared with the cores and a container's quota unless models run on a GPU.

    Args:
        root: of the file system; Linux files below it contain the limits.
    """
    torch, quota, (_, cores) = _torch(), quota_processors(root), _processors()
    if isinstance(torch, str):
        return Check(name="threads", found="unknown without torch")
    threads = torch.get_num_threads()
    summary = f"torch runs {counted(threads, 'thread')} on {counted(cores, 'core')}"
    if torch.cuda.is_available():
        return Check(name="threads", found=summary)
    if quota is not None and quota < threads:
        return Check(
            name="threads",
            found=f"{summary}, but the container's quota is {quota:g} processors: threads are throttled",
            action=f"Use --threads {max(1, math.floor(quota))}, or raise the container's limit.",
        )
    if threads > cores:
        action = f"Use --threads {cores} and check which is faster."
        return Check(name="threads", found=f"{summary}, so some threads share a core", action=action)
    if threads < cores:
        variable = os.environ.get("OMP_NUM_THREADS")
        why = "" if variable is None else f" because OMP_NUM_THREADS is {variable}"
        action = f"Use --threads {cores}, unless the other cores are reserved."
        return Check(name="threads", found=f"{summary}{why}", action=action)
    return Check(name="threads", found=summary)


def check_processor(root: Path = ROOT) -> Check:
    """Return the processor, and whether its frequency depends on the load; `root` as for `check_threads`."""
    threads, cores = _processors()
    quota, governor = quota_processors(root), frequency_governor(root)
    summary = f"{read_processor_name()}: {counted(threads, 'thread')} on {counted(cores, 'core')}"
    if quota is not None:
        summary += f", at most {quota:g} processors of time"
    if governor is None or governor == STEADY_GOVERNOR:
        return Check(name="processor", found=summary + ("" if governor is None else f", governor {governor}"))
    return Check(
        name="processor",
        found=f"{summary}, governor {governor}: short passes run slower than long ones",
        action="Run sudo cpupower frequency-set --governor performance before you profile.",
    )


def frequency_governor(root: Path = ROOT) -> str | None:
    """Return the frequency governor, several separated by commas; None if unknown."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = {text for path in files if (text := _text(path))}
    return ", ".join(sorted(governors)) or None


def quota_processors(root: Path = ROOT) -> float | None:
    """Return a container's quota in processors (cgroup v2 and v1); None without a limit."""
    groups = root / "sys/fs/cgroup"
    quota, _, period = (_text(groups / "cpu.max") or "").partition(" ")
    if not period:
        quota = _text(groups / "cpu/cpu.cfs_quota_us") or ""
        period = _text(groups / "cpu/cpu.cfs_period_us") or ""
    with suppress(ValueError, ZeroDivisionError):
        processors = int(quota) / int(period)
        return processors if processors > 0 else None  # -1 is no limit; so is `max`, which raises ValueError
    return None


def check_power() -> Check:
    """Return whether the computer is on battery."""
    import psutil

    battery = None
    with suppress(AttributeError, OSError, psutil.Error):  # not available on every system
        battery = psutil.sensors_battery()
    if battery is None or battery.power_plugged is not False:
        return Check(name="power", found="not on battery")
    return Check(
        name="power", found="on battery, which may lower the frequency", action="Plug it in before you profile."
    )


def check_memory() -> Check:
    """Return total and available memory."""
    import psutil

    memory = psutil.virtual_memory()
    return Check(name="memory", found=f"{_gib(memory.total)}, {_gib(memory.available)} available")


def check_load() -> Check:
    """Return the load of other programs; unknown without torch."""
    torch = _torch()
    try:
        from treeopt.profiler.latency.load import report_load
    except ImportError:  # a package is missing, which another check reports
        return Check(name="other programs", found="unknown")
    if isinstance(torch, str):
        return Check(name="other programs", found="unknown without torch")
    load, device = report_load(), "cuda" if torch.cuda.is_available() else "cpu"
    if load.disturbs(1 if device == "cuda" else torch.get_num_threads()):
        warning = other_programs_warning(str(load), device, "profile with --wait 10m")
        return Check(name="other programs", found=warning.problem, action=warning.action)
    return Check(name="other programs", found=str(load) if load.load is not None else "unknown")


def check_optional() -> Iterator[Check]:
    """Yield the optional packages and their purpose."""
    for name, (purpose, extra) in OPTIONAL.items():
        installed = _version(name) or f'not installed: pip install "treeopt[{extra}]"'
        yield Check(name=name, found=f"{installed}, for {purpose}")


def check_engines() -> Iterator[Check]:
    """Yield the engines that `treeopt probe` measures."""
    for engine in list_engines():
        yield Check(name=f"engine {engine.name}", found=engine.state)


@cache
def _torch() -> ModuleType | str:
    """Return the module, or why it cannot be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a linked library is missing
        return " ".join(str(error).split()) or type(error).__name__
    return torch


def _processors() -> tuple[int, int]:
    """Return the numbers of hardware threads and of cores that this process may use."""
    import psutil

    threads = psutil.cpu_count() or 1
    try:
        usable = len(psutil.Process().cpu_affinity())
    except (AttributeError, psutil.Error):  # not available on every system
        usable = threads
    cores = psutil.cpu_count(logical=False) or threads
    return usable, max(1, min(usable, round(usable * cores / threads)))


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
    """Return the package name of a requirement.

    >>> _package_name("numpy>=2.0"), _package_name("prometheus-client (>=0.20)")
    ('numpy', 'prometheus-client')
    """
    ends = [index for mark in " <>=!~([;" if (index := requirement.find(mark)) >= 0]
    return requirement[: min(ends, default=len(requirement))]


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"
