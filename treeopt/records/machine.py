"""Which machine and which pair of models something was measured with."""

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from treeopt.array_record import ShortRepr

AUTO = "auto"
"""The device or dtype that suits the machine, as users name it."""
BUNDLED = "bundled "
"""How the names of the models begin that ship with treeopt."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Machine(ShortRepr):
    """What the times were measured on."""

    device: str
    """`cpu`, `cuda:0`, …"""
    processor: str
    """Model name of the processor or accelerator."""
    threads: int | None
    """Threads that torch used; None where nothing was timed here."""
    system: str
    """Operating system and its release."""
    python: str
    torch: str


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Pair(ShortRepr):
    """The models that were measured: a target, and a draft model where there is one."""

    target: str
    """Name or folder of the target model."""
    draft: str | None = None
    """Name or folder of the draft model; None for a target alone, with which other drafters work."""
    dtype: str
    """Number format that both ran in, such as `float32`."""
    vocabulary: int | None = None
    """Logits of the target; this and the next two are None where no model was looked at."""
    target_parameters: int | None = None
    draft_parameters: int | None = None
    target_weight_bytes: int | None = None
    """Memory of the target's weights; None if unknown, and so are the next three."""
    draft_weight_bytes: int | None = None
    target_kv_bytes: int | None = None
    """Memory of one cached token of one sequence."""
    draft_kv_bytes: int | None = None
    target_source: str | None = None
    """What the target was loaded from: a folder as it was given, or a name on the hub; None for the bundled one."""
    draft_source: str | None = None
    target_digest: str | None = None
    """What its files hold, see `treeopt.runtime.models.digest`; equal models have equal digests wherever they lie."""
    draft_digest: str | None = None

    @property
    def label(self) -> str:
        """Target and draft model in words."""
        return self.target if self.draft is None else f"{self.target} + {self.draft}"


def has_nvidia_driver() -> bool:
    """Return whether NVIDIA's driver is installed, and with it, in all likelihood, a GPU."""
    return shutil.which("nvidia-smi") is not None


def processor_name() -> str:
    """Return the processor's model name, which `platform` does not know on Linux."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text("utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
