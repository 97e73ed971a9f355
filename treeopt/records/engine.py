"""What a running engine was measured to do: whole steps with chains of each length, and how many tokens they came to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.record_form import in_file
from treeopt.records.latency import LatencyTable, Timing
from treeopt.records.step_latency import StepLatency, read_samples, samples
from treeopt.tabular import Row, Tabular

NOTHING_S = 0.0
MAX_POSITIONS = 10_000
"""Draft positions of a step that counters and logs of an engine may tell apart."""


def parse_position(label: str) -> int:
    """Return the draft position that a counter's label names, from 0; raises ValueError for anything else."""
    if not (label.isascii() and label.isdecimal() and len(label) < 9 and int(label) < MAX_POSITIONS):
        raise ValueError(f"position {label:.20}")
    return int(label)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class EngineSetting(ShortRepr):
    """One setting that an engine ran under."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class EngineRun(ShortRepr):
    """The engine that a profile is of."""

    name: str
    """As in `treeopt probe --list`; `imported` where another program measured."""
    version: str
    settings: tuple[EngineSetting, ...] = ()
    """What it was started with beside the draft length."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class TimedChain(ShortRepr):
    """Whole steps of an engine with a chain of one length, drafting included."""

    length: int = field(metadata=in_file(least=0))
    """Draft tokens; 0 is plain decoding."""
    steps: Timing = field(metadata=in_file("samples_s", read=read_samples, write=samples))
    """Seconds of a step, a sample for each text decoded."""
    verify: Timing | None = None
    """Of these the target's pass, where the engine tells it."""
    draft: Timing | None = None
    """Of these the draft model's passes, where it tells them."""
    prefill: LatencyTable | None = None
    """Reading prompts of so many tokens, each alone, until the first token, where it tells it."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ChainLatency(ShortRepr, Tabular):
    """Seconds of an engine's steps by draft length, at one context length and batch size.

    Raises InvalidValueError unless lengths rise from 0, plain decoding.
    """

    context_tokens: int = field(metadata=in_file(least=0))
    """Tokens of a text in the middle of what was decoded, on average."""
    batch_size: int
    chains: tuple[TimedChain, ...]

    def __post_init__(self) -> None:
        lengths = [each.length for each in self.chains]
        if not lengths or lengths[0] != 0 or lengths != sorted(set(lengths)):
            raise InvalidValueError(
                f"expected lengths that rise from 0, plain decoding. Got {lengths}: measure plain decoding too.",
                field="chains",
            )

    def to_records(self) -> list[Row]:
        """Return a row for every length; `tokens` are its draft tokens."""
        where = {"context_tokens": self.context_tokens, "batch_size": self.batch_size, "sampled": None}
        return [
            {**where, "part": "step", "rule": None, "tokens": each.length, **each.steps.row} for each in self.chains
        ]

    @property
    def whole_steps(self) -> "WholeSteps":
        """The same as planners take it: a pass over n tokens is the whole step with n - 1 draft tokens."""
        nothing = Timing([NOTHING_S], allow_negative=True)
        return WholeSteps(
            context_tokens=self.context_tokens,
            batch_size=self.batch_size,
            verify=LatencyTable([1 + each.length for each in self.chains], [each.steps for each in self.chains]),
            draft=LatencyTable([1], [nothing]),
            overhead=nothing,
        )


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class WholeSteps(StepLatency):
    """Whole steps in place of passes: drafting and overhead are part of them, and no step can be padded."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class ChainCounts(ShortRepr):
    """What steps with a chain of one length came to, text by text.

    Raises InvalidValueError for texts without a step, or steps that yield less than one token or more than they can.
    """

    length: int = field(metadata=in_file(least=1))
    steps: tuple[int, ...]
    """Of each text."""
    tokens: tuple[int, ...]
    """That these steps committed."""

    def __post_init__(self) -> None:
        if not self.steps or len(self.steps) != len(self.tokens):
            raise InvalidValueError(
                f"expected as many of each. Got {len(self.steps)} and {len(self.tokens)}.", field="steps"
            )
        for steps, tokens in zip(self.steps, self.tokens, strict=True):
            if steps < 1 or not steps <= tokens <= steps * (1 + self.length):
                raise InvalidValueError(
                    f"expected 1 to {1 + self.length} in each step. Got {tokens} in {steps}.", field="tokens"
                )

    @property
    def tokens_per_step(self) -> float:
        """Over all texts together."""
        return sum(self.tokens) / sum(self.steps)


def check_lengths(chains: Sequence[ChainCounts]) -> None:
    """Raise InvalidValueError unless lengths rise and all are of the same texts."""
    lengths = [each.length for each in chains]
    if lengths != sorted(set(lengths)):
        raise InvalidValueError(f"expected lengths that rise. Got {lengths}.", field="chains")
    if len({len(each.steps) for each in chains}) > 1:
        raise InvalidValueError("expected counts of the same texts at every length.", field="chains")
