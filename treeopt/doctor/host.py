"""The computer as its operating system tells it, without torch."""

import platform
from contextlib import suppress
from pathlib import Path

from treeopt.doctor.facts import Host
from treeopt.records.machine import processor_name

ROOT = Path("/")


def describe_host(root: Path = ROOT) -> Host:
    """Return what the computer is.

    Args:
        root: where the files of Linux are that tell of frequencies and limits; another system has none of them.
    """
    import psutil

    memory = psutil.virtual_memory()
    processors, cores = _processors()
    return Host(
        system=f"{platform.system()} {platform.release()}",
        processor=processor_name(),
        processors=processors,
        cores=cores,
        quota_processors=quota_processors(root),
        governor=governor(root),
        on_battery=_on_battery(),
        memory_bytes=memory.total,
        available_bytes=memory.available,
    )


def governor(root: Path = ROOT) -> str | None:
    """Return who sets the frequency of the processors, None where the system does not tell."""
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


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return None


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


def _on_battery() -> bool:
    import psutil

    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, psutil.Error):
        return False
    return battery is not None and battery.power_plugged is False
