"""What benchmarks measured, of one tree, of one method, of an engine's draft lengths, and what was predicted."""

from dataclasses import dataclass, field

from treeopt.errors import InvalidValueError
from treeopt.files.record_form import in_file
from treeopt.records.latency import Estimate

MOST = 1e12
"""Of ratios and seconds in files: no machine comes near it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Median seconds of reference passes between the runs of a benchmark, over those of the profile at the same counts."""

    plain: float = field(metadata=in_file(most=MOST))
    """Of the target over one token; of several sequences, of a plain step."""
    verify: float = field(metadata=in_file(most=MOST))
    """Of the target over `verify_tokens` tokens."""
    verify_tokens: int
    draft: float | None = field(default=None, metadata=in_file(most=MOST))
    """Of drafting a level of `draft_width` nodes; None without a draft model."""
    draft_width: int | None = None
    samples: int
    """Times that each pass was timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedPrediction:
    """What a profile predicts if every pass takes as long as the reference passes did."""

    step_s: float = field(metadata=in_file(most=MOST))
    speedup: float = field(metadata=in_file(most=MOST))
    """Tokens per second over those of plain decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePrediction:
    """What a profile, or a tree file, predicts of one tree; None where it predicts nothing."""

    tokens_per_step: float | None
    step_s: float | None
    speedup: float | None
    interval: tuple[float, ...] = ()
    """Ends of the 95 % interval of the speedup; empty for a prediction of a tree file."""
    at_pace: PacedPrediction | None = None

    def __post_init__(self) -> None:
        if self.interval and not (len(self.interval) == 2 and 0 <= self.interval[0] <= self.interval[1]):
            raise InvalidValueError("expected two numbers of at least 0 that rise.", field="interval")

    @property
    def estimate(self) -> Estimate | float | None:
        """The speedup, with its interval where there is one."""
        if self.speedup is None or not self.interval:
            return self.speedup
        low, high = self.interval
        return Estimate(self.speedup, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place where a text differs from plain decoding's."""

    prompt: int = field(metadata=in_file(least=0))
    """Number of the prompt."""
    place: int = field(metadata=in_file(least=0))
    """Tokens after the prompt that are the same."""
    gap: float
    """How far the lower of the two tokens' logits is from the largest of all."""
    near_tie: bool
    """Whether rounding explains it: both logits are within a few rounding steps of the largest."""


NEAR_TIE, FAULT, UNCHECKED = "near-tie", "fault", "not checked"
VERDICTS = (NEAR_TIE, FAULT, UNCHECKED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDivergence:
    """The first place where an engine's text differs from its plain decoding's."""

    prompt: int = field(metadata=in_file(least=0))
    """Number of the prompt."""
    place: int = field(metadata=in_file(least=0))
    """Characters after the prompt that are the same."""
    plain: str
    """How plain decoding goes on, shortened and printable."""
    other: str
    """How the other text goes on."""
    gap: float | None
    """How far the lower of the two tokens' log-probabilities is from the largest of all; None where it is not known."""
    at_least: bool
    """Whether the gap may be larger, because the engine did not tell of the other token."""
    verdict: str
    """One of `VERDICTS`: whether rounding explains it."""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidValueError(
                f"expected one of {', '.join(VERDICTS)}. Got {self.verdict!r:.40}.", field="verdict"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """How an engine's texts were compared with its plain decoding's."""

    prompts: int
    near_tie_nats: float
    """Largest gap of a near-tie."""
    unchecked: str | None
    """Why divergences were not checked; None where nothing was in the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What decoding with a tree really did, beside plain decoding by the same runtime."""

    speedup: Estimate
    """Tokens per second over those of plain decoding; the interval is a bootstrap over prompts."""
    tokens_per_step: float
    step_s: float
    plain_step_s: float
    """Seconds of a plain step, one token."""
    divergences: tuple[Divergence, ...] | None = field(metadata=in_file(may_be_empty=True))
    """Where texts differ from plain decoding's; None above temperature 0, where they differ by chance."""
    tokens: int = field(metadata=in_file(least=0))
    """Tokens decoded with the tree in one pass over the prompts, the last step of each text to its end."""
    prompts: int
    """Prompts decoded; fewer than asked for after an interruption."""
    rounds: int
    """The same, repeats included."""
    pace: Pace | None = None
    """That of the machine meanwhile; None without reference passes."""

    @property
    def identical(self) -> bool | None:
        """Whether every token equals plain decoding's; None above temperature 0."""
        return None if self.divergences is None else not self.divergences


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one method came to, beside what was predicted."""

    method: str
    rule: str
    temperature: float
    setting: str
    tokens_per_step: float
    step_s: float
    draft_s: float
    """Of a step, on average; this and the next two are from a run of their own, which waits after every part."""
    verify_s: float
    overhead_s: float = field(metadata=in_file(least=-MOST))
    tokens_per_s: float
    speedup: float
    """Tokens per second over those of `plain` on the same prompts."""
    predicted_speedup: float
    lossless: bool
    evidence: str
    """What the test of losslessness said."""
    assumed: tuple[str, ...] = ()
    """What the prediction rests on beside measurements; nothing else in a row does."""
    predicted_at_pace: PacedPrediction | None = None
    """None where passes were not timed apart from the rest of a step."""
    pace: Pace | None = None
    """That of the machine while all methods of the temperature were decoded with."""
    rounds: int
    """Prompts decoded, repeats included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRun:
    """A method that cannot run on a pair or a profile, which is no reason not to run the others."""

    method: str
    """Its name."""
    temperature: float
    reason: str
    """Why not, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    """One draft length of an engine, as predicted and as measured there; predictions are None beyond what was probed."""

    length: int = field(metadata=in_file(least=0))
    """Draft tokens; 0 is plain decoding."""
    chosen: bool
    """Whether the plan takes it."""
    tokens_per_step: float
    predicted_tokens_per_step: float | None
    tokens_per_s: float
    predicted_tokens_per_s: float | None
    speedup: float
    """Tokens per second over those of plain decoding in the same engine."""
    predicted_speedup: float | None
    spread: float
    """How far repeats of the same prompts lie apart, relative."""
    identical: bool | None
    """Whether every text is plain decoding's; None above temperature 0."""
    divergences: tuple[TextDivergence, ...] = ()
    """Texts that are not; of plain decoding, repeats that differ from its first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBench:
    """Draft lengths compared in an engine."""

    engine: str
    version: str
    rows: tuple[EngineRow, ...]
    regret: float = field(metadata=in_file(least=-1.0))
    """How much faster the fastest measured length is than the chosen one, relative."""
    losslessness: Losslessness | None = None
    """None above temperature 0."""

    def __post_init__(self) -> None:
        if not any(row.chosen for row in self.rows):
            raise InvalidValueError("expected one that is chosen.", field="rows")

    @property
    def chosen(self) -> EngineRow:
        return next(row for row in self.rows if row.chosen)
