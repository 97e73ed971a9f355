"""What would make measurements better, or is needed before any: each remark ends in what to do."""

import math
from collections.abc import Iterator

from treeopt.doctor.facts import Facts, Torch
from treeopt.errors import Warning
from treeopt.records.steadiness import other_programs_warning
from treeopt.report.text import counted

STEADY = "performance"
"""The governor that leaves the frequency where it is highest."""
MUCH_MEMORY = 0.1
"""Share of a device's memory from which others are taken to use it; drivers alone take less."""


def remarks(facts: Facts) -> list[Warning]:
    """Return what to do, the most important first."""
    return [*_installation(facts), *_machine(facts), *_threads(facts)]


def _installation(facts: Facts) -> Iterator[Warning]:
    torch = facts.torch
    missing = [each for each in facts.packages if each.version is None and each.needed_for == "treeopt"]
    if torch.version is None:
        yield Warning(
            f"torch cannot be imported ({torch.failure or 'it is not installed'}): only solve, show, compare, export and "
            "import work.",
            "Install it with pip install torch; its CPU build is enough.",
        )
    if names := [each.name for each in missing if each.name != "torch"]:
        yield Warning(
            f"treeopt needs {', '.join(names)}, which {'is' if len(names) == 1 else 'are'} not installed.",
            f"Run pip install {' '.join(names)}.",
        )
    if torch.version is not None and torch.nvidia_unseen:
        yield Warning(
            f"an NVIDIA driver is installed, but torch {torch.version} sees no GPU.",
            "Install a torch that is built for CUDA, and check that CUDA_VISIBLE_DEVICES does not hide the GPU.",
        )


def _machine(facts: Facts) -> Iterator[Warning]:
    host = facts.host
    if facts.load.disturbs and facts.load.sight is not None:
        device = "cuda" if facts.torch.devices else "cpu"
        yield other_programs_warning(facts.load.sight, device, "profile with --wait 10m")
    if host.governor is not None and host.governor != STEADY:
        yield Warning(
            f"the frequency governor of the processors is {host.governor}, so short passes run slower than long ones.",
            "Run sudo cpupower frequency-set --governor performance before you profile.",
        )
    if host.on_battery:
        yield Warning("the computer runs on its battery and saves power.", "Plug it in before you profile.")
    for gpu in facts.torch.devices:
        if gpu.free_bytes < (1 - MUCH_MEMORY) * gpu.memory_bytes:
            yield Warning(
                f"other programs use {1 - gpu.free_bytes / gpu.memory_bytes:.0%} of the memory of {gpu.name}, and may "
                "compute on it.",
                "Close them (nvidia-smi lists them), or choose another device with --device.",
            )


def _threads(facts: Facts) -> Iterator[Warning]:
    """Yield what is wrong with the number of threads, where models run on the processors."""
    torch: Torch = facts.torch
    if torch.threads is None or torch.devices:
        return
    quota, cores = facts.host.quota_processors, facts.host.cores
    threads_on_cores = f"torch runs {counted(torch.threads, 'thread')} on {counted(cores, 'core')}"
    if quota is not None and quota < torch.threads:
        yield Warning(
            f"this container may use the time of {quota:g} processors, but torch runs {torch.threads} threads, which are "
            "paused in turn.",
            f"Give --threads {max(1, math.floor(quota))}, or raise the container's limit.",
        )
    elif torch.threads > cores:
        yield Warning(
            f"{threads_on_cores}, so some share a core.", f"Give --threads {cores} and check which is faster."
        )
    elif torch.threads < cores:
        variable = facts.omp_num_threads
        why = "" if variable is None else f" because OMP_NUM_THREADS is {variable}"
        yield Warning(f"{threads_on_cores}{why}.", f"Give --threads {cores}, unless the other cores are reserved.")
