"""The head of every bench file: program, date, pair and machine."""

from dataclasses import dataclass

from treeopt.files.fields import Fields
from treeopt.files.record_form import read_record
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

    @classmethod
    def from_fields(cls, fields: Fields) -> "BenchHeading":
        """Return the heading of a bench's fields; the others are left."""
        return cls(
            tool=fields.text("tool"),
            created=fields.text("created"),
            machine=read_record(fields.mapping("machine"), Machine),
            pair=read_record(fields.mapping("pair"), Pair),
        )

    @property
    def identity(self) -> Identity:
        """The pair and the machine."""
        return Identity.of(self.pair, self.machine)
