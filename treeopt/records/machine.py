"""The machine and the pair of models of a measurement."""

import platform
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from treeopt.array_record import ShortRepr

AUTO = "auto"
"""The option value that selects a device or dtype for the machine."""
BUNDLED = "bundled "
"""Prefix of the names of models that ship with treeopt."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Machine(ShortRepr):
    """The machine that the times were measured on."""

    device: str
    """`cpu`, `cuda:0`, …"""
    processor: str
    """Model name of the processor or accelerator."""
    threads: int | None
    """Torch threads; None if nothing was timed here."""
    system: str
    """Operating system and its release."""
    python: str
    torch: str


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Pair(ShortRepr):
    """The measured models."""

    target: str
    """Name or folder of the target model."""
    draft: str | None = None
    """Name or folder of the draft model; None without one."""
    dtype: str
    """Of both models, such as `float32`."""
    vocabulary: int | None = None
    """Logits of the target; None if unknown, as all numbers below."""
    target_parameters: int | None = None
    draft_parameters: int | None = None
    target_weight_bytes: int | None = None
    draft_weight_bytes: int | None = None
    target_kv_bytes: int | None = None
    """KV cache memory per token."""
    draft_kv_bytes: int | None = None
    target_source: str | None = None
    """Folder or hub name that the target was loaded from; None for the bundled one."""
    draft_source: str | None = None
    target_digest: str | None = None
    """Digest of the model's files, independent of their location."""
    draft_digest: str | None = None

    @property
    def label(self) -> str:
        return self.target if self.draft is None else f"{self.target} + {self.draft}"


def has_nvidia_driver() -> bool:
    """Return whether NVIDIA's driver is installed."""
    return shutil.which("nvidia-smi") is not None


def read_processor_name() -> str:
    """Return the processor's model name, which `platform` does not report on Linux."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
