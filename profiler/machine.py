"""Descriptions of the machine and the software of a measurement."""

import platform

import torch

from treeopt.records.machine import Machine, read_processor_name


def describe_processor(device: str) -> str:
    """Return the name of a CUDA device, or that of the processor for any other device."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else read_processor_name()


def describe_machine(device: torch.device) -> Machine:
    return Machine(
        device=str(device),
        processor=describe_processor(str(device)),
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
    )
