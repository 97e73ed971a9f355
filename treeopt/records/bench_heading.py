"""What every file of a bench begins with: by which program, when, with which pair and on which machine it was raced."""

from dataclasses import dataclass

from treeopt.records.identity import Identity
from treeopt.records.machine import Machine, Pair
from treeopt.version import TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchHeading:
    """What a bench is of; files of older versions name their program alone."""

    tool: str = TOOL
    """Program and version that raced."""
    created: str | None = None
    """Date and time, ISO 8601."""
    machine: Machine | None = None
    pair: Pair | None = None

    @property
    def identity(self) -> Identity:
        """The pair and the machine, as far as they are said."""
        return Identity() if self.pair is None or self.machine is None else Identity.of(self.pair, self.machine)
