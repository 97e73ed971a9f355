"""Measurements of a running engine: step times and tokens per step for chains of each length."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.serialization import in_file
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.step_latency import StepLatency
from treeopt.tabular import Row, Tabular

AT_URL = ("vllm", "openai")
"""Engines that treeopt does not start, but measures at an address."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class EngineSetting(ShortRepr):
    """One setting of an engine."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class EngineRun(ShortRepr):
    """The engine that was profiled."""

    name: str
    """As in `treeopt probe --list`; `imported` if another program measured it."""
    version: str
    settings: tuple[EngineSetting, ...] = ()
    """Start options other than the draft length."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TimedChain(ShortRepr):
    """Step times of an engine with a chain of one length, drafting included."""

    length: int = field(metadata=in_file(least=0))
    """Draft tokens; 0 is plain decoding."""
    steps: Timing = field(metadata=in_file(inline=True))
    """Seconds per step, one sample per decoded sequence."""
    verify: Timing | None = None
    """Time of the target's pass within a step, if the engine reports it."""
    draft: Timing | None = None
    """Time of the draft model's passes within a step, if the engine reports it."""
    prefill: LatencyTable | None = None
    """Time to first token by prompt length at batch size 1, if the engine reports it."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ChainLatency(ShortRepr, Tabular):
    """Step times of an engine by draft length, at one context length and batch size.

    Raises InvalidValueError unless lengths increase from 0, plain decoding.
    """

    context_tokens: int = field(metadata=in_file(least=0))
    """Mean sequence length halfway through decoding."""
    batch_size: int
    chains: tuple[TimedChain, ...]

    def __post_init__(self) -> None:
        lengths = [chain.length for chain in self.chains]
        if not lengths or lengths[0] != 0 or lengths != sorted(set(lengths)):
            raise InvalidValueError(
                f"expected increasing lengths from 0, plain decoding. Got {lengths}: measure plain decoding too.",
                field="chains",
            )

    def to_records(self) -> list[Row]:
        """Return one row per length; `tokens` is the number of draft tokens."""
        point = {"context_tokens": self.context_tokens, "batch_size": self.batch_size, "sampled": None}
        return [
            {**point, "part": "step", "rule": None, "tokens": chain.length, **chain.steps.row} for chain in self.chains
        ]

    @property
    def whole_steps(self) -> "WholeSteps":
        """The step times as a `StepLatency`: verifying n tokens takes a whole step with n - 1 draft tokens."""
        zero = Timing([0.0], allow_negative=True)
        return WholeSteps(
            context_tokens=self.context_tokens,
            batch_size=self.batch_size,
            verify=LatencyTable([1 + chain.length for chain in self.chains], [chain.steps for chain in self.chains]),
            draft=LatencyTable([1], [zero]),
            overhead=zero,
        )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class WholeSteps(StepLatency):
    """Step times in place of pass times: `verify` includes drafting and overhead, and steps cannot be padded."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ChainCounts(ShortRepr):
    """Steps and tokens of each sequence with a chain of one length.

    Raises InvalidValueError for sequences without a step, or tokens per step outside 1 to `length` + 1.
    """

    length: int = field(metadata=in_file(least=1))
    steps: tuple[int, ...]
    """Per sequence."""
    tokens: tuple[int, ...]
    """Tokens that these steps committed."""

    def __post_init__(self) -> None:
        if not self.steps or len(self.steps) != len(self.tokens):
            raise InvalidValueError(
                f"expected as many as tokens, {len(self.tokens)}. Got {len(self.steps)}.", field="steps"
            )
        for steps, tokens in zip(self.steps, self.tokens, strict=True):
            if steps < 1 or not steps <= tokens <= steps * (1 + self.length):
                raise InvalidValueError(
                    f"expected 1 to {1 + self.length} in each step. Got {tokens} in {steps}.", field="tokens"
                )

    @property
    def tokens_per_step(self) -> float:
        return sum(self.tokens) / sum(self.steps)


def check_chain_lengths(chains: Sequence[ChainCounts]) -> None:
    """Raise InvalidValueError unless lengths increase and all chains have the same sequences."""
    lengths = [chain.length for chain in chains]
    if lengths != sorted(set(lengths)):
        raise InvalidValueError(f"expected increasing lengths. Got {lengths}.", field="chains")
    if len({len(chain.steps) for chain in chains}) > 1:
        raise InvalidValueError("expected counts of the same sequences at every length.", field="chains")


def lengths_around(measured: Sequence[int], length: int) -> tuple[int, int] | None:
    """Return the measured draft lengths between which one is interpolated; None if it was measured, or none is longer.

    >>> lengths_around([0, 1, 4], 2), lengths_around([0, 1, 4], 4)
    ((1, 4), None)
    """
    if length in measured or length > max(measured):
        return None
    return max(filter(length.__gt__, measured)), min(filter(length.__lt__, measured))
