"""The arguments of the planner in one record."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.arguments import flag, number, text, whole
from treeopt.errors import InvalidValueError
from treeopt.planner.options import OBJECTIVES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Which trees and rules are compared, by which objective, and at which operating point.

    Raises InvalidValueError for a budget or batch below 1, a context below 0, an unknown objective, and values of
    another kind.
    """

    rule: str | None = None
    """Verification rule; None for all that were measured, or where one is needed the first."""
    temperature: float | None = None
    """At which acceptance was measured; None for the first of the rule, or for all where several are planned."""
    context_tokens: int | None = None
    """Tokens in the cache; between measured lengths, times and acceptance are interpolated; None as first measured."""
    batch_size: int | None = None
    """Sequences verified together; interpolated likewise."""
    extrapolate: bool = False
    """Whether to continue beyond what was measured, in context, batch size and nodes."""
    max_nodes: int | None = None
    """Largest number of nodes, root included; None for the largest pass that was timed."""
    max_depth: int | None = None
    """Most levels below the root; None for all that the acceptance was measured for."""
    level_widths: int | Sequence[int] | None = None
    """Most nodes at each depth, as for `treeopt.solve`."""
    objective: str = "speed"
    """`speed`, or `tokens` to ignore what a step costs."""
    memory_bytes: int | None = None
    """Memory for weights and KV caches: trees that do not fit are not planned; None for no limit."""
    raw: bool = False
    """Whether the acceptance is taken as measured, rows that rise by noise not smoothed."""
    lossy: bool = False
    """Whether rules may be planned that change the text's distribution."""

    def __post_init__(self) -> None:
        if self.rule is not None:
            text("rule", self.rule)
        if self.temperature is not None:
            number("temperature", self.temperature)
        for name, least in (("context_tokens", 0), ("batch_size", 1)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole(name, value, least))
        if self.max_nodes is not None:
            object.__setattr__(self, "max_nodes", whole("max_nodes", self.max_nodes, 1))
        if self.memory_bytes is not None:
            object.__setattr__(self, "memory_bytes", whole("memory_bytes", self.memory_bytes, 1))
        if self.objective not in OBJECTIVES:
            raise InvalidValueError(
                f"objective: expected {' or '.join(OBJECTIVES)}. Got {self.objective!r}.", field="objective"
            )
        for name in ("extrapolate", "raw", "lossy"):
            flag(name, getattr(self, name))
