"""Several sequences decoded together: predictions and measurements."""

from dataclasses import dataclass

from treeopt.records.results import Divergence, Pace, PacedPrediction
from treeopt.trees.token_tree import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeasured:
    """One tree, or plain decoding, at one batch size."""

    tokens_per_s: float
    """Of all texts, while so many run; reading prompts is left out."""
    step_s: float
    batch_tokens_per_step: float
    """Of all texts."""
    speedup: float
    """Tokens per second over those of plain decoding at the same batch size, in the same round."""
    spread: float
    """How far the slowest round's rate is below the fastest's, relative."""
    overhead: float
    """Share of a step that is neither drafting nor verification, from a run of its own."""
    prefill_s: float
    """Seconds of reading all prompts."""
    texts: int
    divergences: tuple[Divergence, ...]
    """Where texts part from those decoded alone; above temperature 0 nobody knows whether at a near-tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One tree at one batch size, as predicted and as measured; predictions are None beyond what was profiled."""

    tree: TokenTree
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
