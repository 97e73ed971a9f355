"""How long prompts take to be read."""

from dataclasses import dataclass

from treeopt.array_record import ShortRepr
from treeopt.records.latency import LatencyTable


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class PrefillLatency(ShortRepr):
    """Seconds of beginning a text against the tokens of its prompt, until its first step may begin."""

    target: LatencyTable
    """Of the target."""
    draft: LatencyTable
    """Of the draft model, which reads the prompt too where there is one."""
