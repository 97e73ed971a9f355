"""What is planned for: the arguments of the planner in one record, and the memory of the device."""

from collections.abc import Sequence
from dataclasses import dataclass

from treeopt.arguments import check_flag, check_integer, check_number, check_text
from treeopt.array_record import ShortRepr
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner.options import OBJECTIVES
from treeopt.records.operating_point import OperatingPoint
from treeopt.records.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Which trees and rules are compared, by which objective, and at which operating point: the options of `plan`.

    Raises InvalidValueError for a budget or batch size below 1, a context below 0, an unknown objective, and values of
    the wrong type.
    """

    rule: str | None = None
    """Verification rule; None for all that were measured, or the first if one is needed."""
    temperature: float | None = None
    """At which acceptance was measured; None for the first of the rule, or for all if several are planned."""
    context_tokens: int | None = None
    """Tokens in the cache; between measured lengths, times and acceptance are interpolated; None for the first measured."""
    batch_size: int | None = None
    """Sequences verified together; interpolated likewise."""
    extrapolate: bool = False
    """Whether to continue beyond what was measured, in context, batch size and nodes."""
    max_nodes: int | None = None
    """Largest number of nodes, root included; None for the largest pass that was timed."""
    max_depth: int | None = None
    """Most levels below the root; None for all that the acceptance was measured for, which limits larger ones too."""
    level_widths: int | Sequence[int] | None = None
    """Most nodes at each depth, as for `treeopt.solve`."""
    objective: str = "speed"
    """`speed`, or `tokens` to ignore the costs of a step."""
    memory_bytes: int | None = None
    """Memory for weights and KV caches: trees that do not fit are not planned; None for no limit."""
    raw: bool = False
    """Whether to take the acceptance as measured, without smoothing."""
    lossy: bool = False
    """Whether to allow rules that change the output's distribution."""

    @property
    def max_length(self) -> int | None:
        """Most draft tokens of a chain; None for all that were measured."""
        limits = [self.max_depth, None if self.max_nodes is None else self.max_nodes - 1]
        return min((limit for limit in limits if limit is not None), default=None)

    def __post_init__(self) -> None:
        if self.rule is not None:
            check_text("rule", self.rule)
        if self.temperature is not None:
            check_number("temperature", self.temperature)
        for name, least in (("context_tokens", 0), ("batch_size", 1), ("max_nodes", 1), ("memory_bytes", 1)):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_integer(name, value, least))
        if self.objective not in OBJECTIVES:
            raise InvalidValueError(
                f"objective: expected {' or '.join(OBJECTIVES)}. Got {self.objective!r}.", field="objective"
            )
        for name in ("extrapolate", "raw", "lossy"):
            check_flag(name, getattr(self, name))


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Memory(ShortRepr):
    """The memory of a device, shared by the weights and a KV cache for every sequence.

        weights + batch size * (context + nodes) * KV bytes per token <= memory

    Target and draft count together: both cache the context and the nodes.  Activations, and the state that some hybrid
    models have per token, are not counted: leave some memory free for them.
    """

    total_bytes: int
    weight_bytes: int
    """Of all models."""
    kv_bytes: int
    """Of one token of one sequence, in all models."""

    def max_nodes(self, context_tokens: int, batch_size: int) -> int:
        """Return the most nodes per sequence, root included, that fit; below 1 if not even plain decoding fits."""
        cached_tokens = (self.total_bytes - self.weight_bytes) // (self.kv_bytes * batch_size)
        return cached_tokens - context_tokens

    def check(self, context_tokens: int, batch_size: int) -> None:
        """Raise InfeasibleError if plain decoding does not fit."""
        if self.max_nodes(context_tokens, batch_size) >= 1:
            return
        needed_bytes = self.weight_bytes + batch_size * (context_tokens + 1) * self.kv_bytes
        sequences = "a sequence" if batch_size == 1 else f"{batch_size} sequences"
        raise InfeasibleError(
            f"memory_bytes: expected at least {needed_bytes} bytes, for the weights and {sequences} of {context_tokens} tokens. "
            f"Got {self.total_bytes}: allow more{', or a smaller batch' * (batch_size > 1)}.",
            field="memory_bytes",
        )

    def sequences(self, context_tokens: int, nodes: int = 1) -> int:
        """Return how many sequences fit with trees of `nodes` nodes; 1 is plain decoding."""
        return max(0, self.total_bytes - self.weight_bytes) // (self.kv_bytes * (context_tokens + nodes))


def limit_nodes(measured: int, request: PlanRequest, memory: Memory | None, point: OperatingPoint) -> int:
    """Return the most nodes that were measured, that the request allows, and that fit in memory at a point."""
    limits = [measured] if request.max_nodes is None else [measured, request.max_nodes]
    if memory is not None:
        limits.append(memory.max_nodes(point.context_tokens, point.batch_size))
    return min(limits)


def device_memory(profile: Profile, total_bytes: int) -> Memory:
    """Return the memory of a device that runs a profile's models.

    Raises InfeasibleError for a profile without the models' memory.
    """
    pair = profile.pair
    weights, kv = [pair.target_weight_bytes], [pair.target_kv_bytes]
    if pair.draft is not None:
        weights, kv = [*weights, pair.draft_weight_bytes], [*kv, pair.draft_kv_bytes]
    if None in weights or None in kv:
        raise InfeasibleError(
            "memory_bytes: expected a profile with the memory of weights and KV caches. Got one without: measure it with "
            "treeopt profile, or leave the limit out.",
            field="memory_bytes",
        )
    return Memory(total_bytes=total_bytes, weight_bytes=sum(filter(None, weights)), kv_bytes=sum(filter(None, kv)))
