"""What would make measurements better, or is needed before any: every remark ends in what to do."""

from collections.abc import Iterator

from treeopt.doctor.facts import Facts, Torch
from treeopt.records.warnings import (
    Caution,
    DeviceUnseen,
    FewThreads,
    MemoryTaken,
    MissingPackages,
    OnBattery,
    OtherPrograms,
    ProcessorQuota,
    SharedCores,
    SlowGovernor,
    TorchMissing,
)

STEADY = "performance"
"""The governor that leaves the frequency where it is highest."""
MUCH_MEMORY = 0.1
"""Share of a device's memory from which it is taken by others; drivers alone take less."""


def remarks(facts: Facts) -> list[Caution]:
    """Return what to do, the most important first; nothing where all is well."""
    return [*_installation(facts), *_machine(facts), *_threads(facts)]


def _installation(facts: Facts) -> Iterator[Caution]:
    missing = [each for each in facts.packages if each.version is None and each.needed_for == "treeopt"]
    if facts.torch.version is None:
        yield TorchMissing(facts.torch.failure or "it is not installed")
    if names := tuple(each.name for each in missing if each.name != "torch"):
        yield MissingPackages(names)
    if facts.torch.version is not None and facts.torch.nvidia_unseen:
        yield DeviceUnseen(facts.torch.version)


def _machine(facts: Facts) -> Iterator[Caution]:
    host = facts.host
    if facts.load.disturbs and facts.load.sight is not None:
        device = "cuda" if facts.torch.devices else "cpu"
        yield OtherPrograms(facts.load.sight, device, "profile with --wait 10m")
    if host.governor is not None and host.governor != STEADY:
        yield SlowGovernor(host.governor)
    if host.on_battery:
        yield OnBattery()
    for gpu in facts.torch.devices:
        if gpu.free_bytes < (1 - MUCH_MEMORY) * gpu.memory_bytes:
            yield MemoryTaken(gpu.name, 1 - gpu.free_bytes / gpu.memory_bytes)


def _threads(facts: Facts) -> Iterator[Caution]:
    """Yield what is wrong with the number of threads, where models run on the processors."""
    torch: Torch = facts.torch
    if torch.threads is None or torch.devices:
        return
    quota, cores = facts.host.quota_processors, facts.host.cores
    if quota is not None and quota < torch.threads:
        yield ProcessorQuota(quota, torch.threads)
    elif torch.threads > cores:
        yield SharedCores(torch.threads, cores)
    elif torch.threads < cores:
        yield FewThreads(torch.threads, cores, facts.omp_num_threads)
