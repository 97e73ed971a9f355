"""Several sequences decoded together: predictions and measurements."""

from dataclasses import dataclass, field
from itertools import pairwise

from treeopt.errors import InvalidValueError
from treeopt.files.record_form import in_file
from treeopt.records.results import MOST, Divergence, Pace, PacedPrediction
from treeopt.records.step_latency import parents, read_tree
from treeopt.trees.token_tree import TokenTree

_POSITIVE = in_file(least=1e-12, most=MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeasured:
    """One tree, or plain decoding, at one batch size."""

    tokens_per_s: float = field(metadata=_POSITIVE)
    """Of all texts, while so many run; reading prompts is left out."""
    step_s: float
    batch_tokens_per_step: float
    """Of all texts."""
    speedup: float = field(metadata=_POSITIVE)
    """Tokens per second over those of plain decoding at the same batch size, in the same round."""
    spread: float
    """How far the slowest round's rate is below the fastest's, relative."""
    overhead: float = field(metadata=in_file(most=1.0))
    """Share of a step that is neither drafting nor verification, from a run of its own."""
    prefill_s: float
    """Seconds of reading all prompts."""
    texts: int
    divergences: tuple[Divergence, ...] = field(metadata=in_file(may_be_empty=True))
    """Where texts part from those decoded alone; above temperature 0 nobody knows whether at a near-tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One tree at one batch size, as predicted and as measured; predictions are None beyond what was profiled."""

    tree: TokenTree = field(metadata=in_file("parents", read=read_tree, write=parents))
    chosen: bool
    """Whether the schedule takes it there, the plan, or with one tree the prediction."""
    measured: BatchMeasured
    predicted_tokens_per_s: float | None
    predicted_tokens_per_step: float | None
    """Of one text."""
    predicted_step_s: float | None
    predicted_speedup: float | None
    predicted_at_pace: PacedPrediction | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """All trees at one batch size, plain decoding first."""

    batch_size: int
    rows: tuple[BatchRow, ...]
    pace: Pace | None = None
    """That of the machine meanwhile; None without reference passes."""

    def __post_init__(self) -> None:
        if sum(row.chosen for row in self.rows) > 1:
            raise InvalidValueError("expected at most one that is chosen.", field="rows")

    @property
    def chosen(self) -> BatchRow | None:
        """None where nobody chose."""
        return next((row for row in self.rows if row.chosen), None)

    @property
    def best(self) -> BatchRow:
        """The fastest measured."""
        return max(self.rows, key=lambda row: row.measured.speedup)

    @property
    def regret(self) -> float | None:
        """How much faster the fastest measured is than the chosen one, relative."""
        return None if self.chosen is None else self.best.measured.speedup / self.chosen.measured.speedup - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBench:
    """A bench of several texts at a time."""

    rule: str
    temperature: float
    prompts: int
    max_new_tokens: int
    rounds: int
    sizes: tuple[BatchSize, ...]

    def __post_init__(self) -> None:
        if any(one.batch_size >= other.batch_size for one, other in pairwise(self.sizes)):
            raise InvalidValueError("expected batch sizes that rise.", field="sizes")
