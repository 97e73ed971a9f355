"""The head of every bench file: program, date, pair and machine."""

from dataclasses import dataclass

from treeopt.records.identity import Identity
from treeopt.records.machine import Machine, Pair
from treeopt.version import TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchHeading:
    """What a bench measured, when, and with which program."""

    tool: str = TOOL
    """Program and version."""
    created: str
    """Date and time, ISO 8601."""
    machine: Machine
    pair: Pair

    @property
    def identity(self) -> Identity:
        """The pair and the machine."""
        return Identity.of(self.pair, self.machine)
