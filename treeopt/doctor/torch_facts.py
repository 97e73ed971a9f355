"""What torch sees; the rest of the doctor goes on where torch is missing or broken."""

from treeopt.doctor.facts import Device, Torch
from treeopt.records.machine import has_nvidia_driver


def describe_torch() -> Torch:
    """Return what torch sees; no error where it cannot be imported, since to say so is what this is for."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a library that torch is linked to is missing
        reason = " ".join(str(error).split()) or type(error).__name__
        return Torch(version=None, failure=reason, threads=None, devices=(), nvidia_unseen=has_nvidia_driver())
    devices = []
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, memory = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        devices.append(Device(name=f"cuda:{number}", model=name, memory_bytes=memory, free_bytes=free))
    return Torch(
        version=str(torch.__version__),
        failure=None,
        threads=torch.get_num_threads(),
        devices=tuple(devices),
        nvidia_unseen=not devices and has_nvidia_driver(),
    )
