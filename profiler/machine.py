"""Descriptions of the machine, the software and the models of a measurement."""

import platform
from datetime import UTC, datetime

import torch

from treeopt.records.machine import Machine, Pair, read_processor_name
from treeopt.runtime.models.model import LanguageModel, kv_bytes, weight_bytes


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


def describe_pair(target: LanguageModel, draft: LanguageModel | None) -> Pair:
    return Pair(
        target=target.name,
        draft=None if draft is None else draft.name,
        dtype=str(target.dtype).removeprefix("torch."),
        vocabulary=target.config.vocabulary,
        target_parameters=target.parameters,
        draft_parameters=None if draft is None else draft.parameters,
        target_weight_bytes=weight_bytes(target),
        draft_weight_bytes=None if draft is None else weight_bytes(draft),
        target_kv_bytes=kv_bytes(target),
        draft_kv_bytes=None if draft is None else kv_bytes(draft),
    )


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
