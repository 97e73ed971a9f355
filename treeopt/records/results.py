"""Predictions and measurements of trees, methods, the draft lengths of an engine, and batch sizes."""

from dataclasses import dataclass, field
from itertools import pairwise

from treeopt.errors import InvalidValueError
from treeopt.files.serialization import in_file
from treeopt.records.latency import Estimate
from treeopt.trees.token_tree import TokenTree
from treeopt.trees.tree_file import TREE

MAX_VALUE = 1e12
"""Upper bound of ratios and seconds in files."""
_POSITIVE = in_file(least=1e-12, most=MAX_VALUE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Speed of the machine during a benchmark: median seconds of reference passes over those of the profile."""

    plain: float = field(metadata=in_file(most=MAX_VALUE))
    """Target pass over one token; for a batch, a plain step."""
    verify: float = field(metadata=in_file(most=MAX_VALUE))
    """Target pass over `verify_tokens` tokens."""
    verify_tokens: int
    draft: float | None = field(default=None, metadata=in_file(most=MAX_VALUE))
    """Drafting a level of `draft_width` nodes; None without a draft model."""
    draft_width: int | None = None
    samples: int
    """Samples per pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedPrediction:
    """A prediction corrected for the machine's pace."""

    step_s: float = field(metadata=in_file(most=MAX_VALUE))
    speedup: float = field(metadata=in_file(most=MAX_VALUE))


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePrediction:
    """The prediction of a profile or a tree file for one tree; None without a prediction."""

    tokens_per_step: float | None
    step_s: float | None
    speedup: float | None
    interval: tuple[float, ...] = ()
    """95 % interval of the speedup; empty if the prediction comes from a tree file."""
    at_pace: PacedPrediction | None = None

    def __post_init__(self) -> None:
        if self.interval and not (len(self.interval) == 2 and 0 <= self.interval[0] <= self.interval[1]):
            raise InvalidValueError("expected two increasing numbers of at least 0.", field="interval")

    @property
    def estimate(self) -> Estimate | float | None:
        if self.speedup is None or not self.interval:
            return self.speedup
        low, high = self.interval
        return Estimate(self.speedup, low, high)

    @property
    def tokens_per_s(self) -> float | None:
        """Of one sequence."""
        return None if self.tokens_per_step is None or self.step_s is None else self.tokens_per_step / self.step_s


NO_PREDICTION = TreePrediction(tokens_per_step=None, step_s=None, speedup=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token that differs from plain decoding."""

    prompt: int = field(metadata=in_file(least=0))
    """Number of the prompt."""
    position: int = field(metadata=in_file(least=0))
    """Equal tokens after the prompt."""
    gap: float
    """The largest logit minus the lower of the two tokens' logits."""
    near_tie: bool
    """Whether rounding explains the divergence: both logits are within a few rounding steps of the largest."""


NEAR_TIE, FAULT, UNCHECKED = "near-tie", "fault", "not checked"
VERDICTS = (NEAR_TIE, FAULT, UNCHECKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDivergence:
    """The first character where an engine's output differs from its plain decoding."""

    prompt: int = field(metadata=in_file(least=0))
    """Number of the prompt."""
    position: int = field(metadata=in_file(least=0))
    """Equal characters after the prompt."""
    plain: str
    """What plain decoding generated from there, shortened and printable."""
    other: str
    """What the engine generated instead."""
    gap: float | None
    """The largest log-probability minus the lower of the two tokens'; None if unknown."""
    at_least: bool
    """Whether the gap is a lower bound, because the engine did not report the other token."""
    verdict: str
    """One of `VERDICTS`."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidValueError(
                f"expected one of {', '.join(VERDICTS)}. Got {self.verdict!r:.40}.", field="verdict"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """The comparison of an engine's outputs with its plain decoding."""

    prompts: int
    near_tie_nats: float
    """Largest gap of a near-tie."""
    unchecked: str | None
    """Why divergences were not checked; None if they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMeasurement:
    """Decoding with one tree, measured in interleaved runs with plain decoding."""

    speedup: Estimate
    """Its interval is a bootstrap over prompts."""
    tokens_per_step: float
    step_s: float
    plain_step_s: float
    divergences: tuple[Divergence, ...] | None = field(metadata=in_file(may_be_empty=True))
    """From plain decoding; None above temperature 0."""
    tokens: int = field(metadata=in_file(least=0))
    """Tokens decoded with the tree in one pass over the prompts, including all tokens of each last step."""
    prompts: int
    """Prompts decoded; after an interrupt, fewer than requested."""
    rounds: int
    """Prompts decoded, repeats included."""
    pace: Pace | None = None
    """None without reference passes."""

    @property
    def identical(self) -> bool | None:
        """Whether all outputs equal plain decoding; None above temperature 0."""
        return None if self.divergences is None else not self.divergences


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """One method at one temperature, predicted and measured."""

    method: str
    rule: str
    temperature: float
    setting: str
    tokens_per_step: float
    step_s: float
    draft_s: float
    """Mean per step, as the next two, from a separate run that synchronises after every part."""
    verify_s: float
    overhead_s: float = field(metadata=in_file(least=-MAX_VALUE))
    tokens_per_s: float
    speedup: float
    """Over `plain` on the same prompts."""
    predicted_speedup: float
    lossless: bool
    evidence: str
    """The result of the losslessness test."""
    assumed: tuple[str, ...] = ()
    """Assumptions of the prediction; all other values in a row are measured."""
    predicted_at_pace: PacedPrediction | None = None
    """None if passes were not timed separately."""
    pace: Pace | None = None
    rounds: int
    """Prompts decoded, repeats included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRun:
    """A method that cannot run with a pair or a profile."""

    method: str
    temperature: float
    reason: str
    """One line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One draft length of an engine, predicted and measured."""

    length: int = field(metadata=in_file(least=0))
    """Draft tokens; 0 is plain decoding."""
    chosen: bool
    """Whether the plan chose this length."""
    predicted: TreePrediction
    """`NO_PREDICTION` outside the probed range."""
    tokens_per_step: float
    tokens_per_s: float
    speedup: float
    """Over plain decoding in the same engine."""
    spread: float
    """Relative difference between repeats of the same prompts."""
    identical: bool | None
    """Whether all outputs equal plain decoding; None above temperature 0."""
    divergences: tuple[OutputDivergence, ...] = ()
    """From plain decoding; for plain decoding itself, between its repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBench:
    """`bench engine`: draft lengths compared in an engine."""

    engine: str
    version: str
    rows: tuple[EngineRow, ...]
    losslessness: Losslessness | None = None
    """None above temperature 0."""

    def __post_init__(self) -> None:
        if not any(row.chosen for row in self.rows):
            raise InvalidValueError("expected one that is chosen.", field="rows")

    @property
    def chosen(self) -> EngineRow:
        return next(row for row in self.rows if row.chosen)

    @property
    def best(self) -> EngineRow:
        return max(self.rows, key=lambda row: row.tokens_per_s)

    @property
    def gap_to_best(self) -> float:
        """Relative speed advantage of the fastest length over the chosen one."""
        return self.best.tokens_per_s / self.chosen.tokens_per_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMeasurement:
    """One tree, or plain decoding, at one batch size."""

    tokens_per_s: float = field(metadata=_POSITIVE)
    """Of the whole batch, in steps with a full batch; prefill is not included."""
    step_s: float
    batch_tokens_per_step: float
    """Of the whole batch."""
    speedup: float = field(metadata=_POSITIVE)
    """Over plain decoding at the same batch size, in the same round."""
    spread: float
    """Relative difference between the fastest and the slowest round."""
    overhead: float = field(metadata=in_file(most=1.0))
    """Share of a step that is neither drafting nor verification, from a separate run."""
    prefill_s: float
    """Of all prompts."""
    outputs: int
    """Number of outputs."""
    divergences: tuple[Divergence, ...] = field(metadata=in_file(may_be_empty=True))
    """From decoding one sequence at a time; above temperature 0, near-ties cannot be determined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """One tree at one batch size, predicted and measured."""

    tree: TokenTree = field(metadata=TREE)
    chosen: bool
    """Whether the schedule, the plan or, for a single tree, the prediction chose this tree."""
    predicted: TreePrediction
    """`NO_PREDICTION` outside the profiled range."""
    measured: BatchMeasurement


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """All trees at one batch size, plain decoding first."""

    batch_size: int
    rows: tuple[BatchRow, ...]
    pace: Pace | None = None
    """None without reference passes."""

    def __post_init__(self) -> None:
        if sum(row.chosen for row in self.rows) > 1:
            raise InvalidValueError("expected at most one that is chosen.", field="rows")

    def predicted_tokens_per_s(self, row: BatchRow) -> float | None:
        """Of the whole batch."""
        rate = row.predicted.tokens_per_s
        return None if rate is None else self.batch_size * rate

    @property
    def chosen(self) -> BatchRow | None:
        return next((row for row in self.rows if row.chosen), None)

    @property
    def best(self) -> BatchRow:
        return max(self.rows, key=lambda row: row.measured.speedup)

    @property
    def gap_to_best(self) -> float | None:
        """Relative speed advantage of the fastest tree over the chosen one."""
        return None if self.chosen is None else self.best.measured.speedup / self.chosen.measured.speedup - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBench:
    """`bench batches`: trees at several batch sizes."""

    rule: str
    temperature: float
    prompts: int
    max_new_tokens: int
    rounds: int
    sizes: tuple[BatchSize, ...]

    def __post_init__(self) -> None:
        if any(smaller.batch_size >= larger.batch_size for smaller, larger in pairwise(self.sizes)):
            raise InvalidValueError("expected increasing batch sizes.", field="sizes")
