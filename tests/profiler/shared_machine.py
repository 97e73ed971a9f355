"""A machine that does not exist, and that other programs use during some of its calls, which then take much longer."""

from collections.abc import Container
from dataclasses import dataclass

from tests.profiler.pretended import Machine
from treeopt.profiler.latency.load import Load

SLOWER = 9.0
BLOCK_CALLS = 10
ALL, NONE = Load(2.0, 2, 2), Load(0.0, 2, 2)
"""Both of two processors, and none."""


@dataclass
class SharedMachine(Machine):
    """A clock by which calls of some numbers are slower, and a reader of loads that knows which."""

    busy: Container[int] = ()
    """Numbers of the timed calls that other programs disturb, from 0."""
    answered: int = 0

    def time_s(self, work) -> float:
        """Return the pretended seconds of a call."""
        seconds = super().time_s(work)
        return seconds * SLOWER if self.timed - 1 in self.busy else seconds

    def read(self) -> Load | None:
        """Answer every so many calls: a block is disturbed where any of its calls is."""
        if self.timed - self.answered < BLOCK_CALLS:
            return None
        calls, self.answered = range(self.answered, self.timed), self.timed
        return ALL if any(call in self.busy for call in calls) else NONE


def shared_machine_and_pair(make_model, contexts, busy):
    """Return a machine and a pair that runs on it."""
    machine = SharedMachine(contexts, busy=busy)
    models = (make_model(seed=1, max_positions=1024, name=name) for name in ("large", "small"))
    return machine, *(machine.run_on(model, name) for model, name in zip(models, ("verify", "draft"), strict=True))
