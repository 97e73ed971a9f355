"""Warnings of plans: what they lie outside of, and what they do not know."""

from dataclasses import dataclass

from treeopt.records.warnings.caution import Caution, listed, sureness


@dataclass(frozen=True, slots=True)
class OutsideMeasured(Caution):
    """A plan for a condition beyond all that were measured."""

    context_tokens: int
    batch_size: int

    @property
    def found(self) -> str:
        """The condition."""
        return (
            f"context {self.context_tokens} tokens x batch {self.batch_size} lies outside what was measured; its "
            "times are extrapolated along straight lines."
        )

    @property
    def action(self) -> str:
        """Measure it."""
        return "Profile there before you rely on them."


@dataclass(frozen=True, slots=True)
class AcceptanceElsewhere(Caution):
    """A plan for context lengths that acceptance was not measured around."""

    what: str
    """The draft model's, as `acceptance`, or another drafter's."""
    measured: tuple[int, ...]
    """Context lengths that it was measured at, or counts for, rising."""
    planned: tuple[int, ...]
    """Those outside, rising."""

    @property
    def found(self) -> str:
        """Where it was measured, and what for it is taken."""
        at = " to ".join(map(str, dict.fromkeys((self.measured[0], self.measured[-1]))))
        only = " only" if len(self.measured) == 1 else ""
        return (
            f"{self.what} was measured for {at} tokens of context{only}, and is taken from there for "
            f"{listed(self.planned)}: it may be another."
        )

    @property
    def action(self) -> str:
        """Measure it there too."""
        return f"Profile with --context-tokens {listed(tuple(sorted({*self.measured, *self.planned})))}."


@dataclass(frozen=True, slots=True)
class LongerThanMeasured(Caution):
    """A plan for texts of more new tokens than acceptance was measured along."""

    measured_tokens: int
    """Of the longest measured text."""
    new_tokens: int
    positions: int
    """Of all measured texts, were each as long as is asked for."""

    @property
    def found(self) -> str:
        """How far texts were measured."""
        return (
            f"acceptance was measured along at most {self.measured_tokens} tokens of a text, and is taken from there for "
            f"texts of {self.new_tokens}."
        )

    @property
    def action(self) -> str:
        """Measure further."""
        return f"Profile with --positions {self.positions}."


@dataclass(frozen=True, slots=True)
class BeyondLargestPass(Caution):
    """A plan for larger passes than were timed."""

    measured_tokens: int
    asked_tokens: int

    @property
    def found(self) -> str:
        """The largest pass that was timed."""
        return (
            f"passes were measured up to {self.measured_tokens} tokens; times beyond are extrapolated along straight "
            "lines."
        )

    @property
    def action(self) -> str:
        """Time larger ones."""
        return f"Profile with --max-tokens {self.asked_tokens} before you rely on them."


@dataclass(frozen=True, slots=True)
class ImportedWithoutErrors(Caution):
    """Something imported came without errors, so that nothing is known of its own."""

    parts: tuple[str, ...]
    """In words."""

    @property
    def found(self) -> str:
        """The parts."""
        return f"imported without errors: {', '.join(self.parts)}. Intervals and certainty take them for exact:"

    @property
    def action(self) -> str:
        """Import what errors are worked out from."""
        return "import several samples of each time, and counts in place of rates."


@dataclass(frozen=True, slots=True)
class UnsureChoice(Caution):
    """A choice that may well not be the best."""

    probability: float
    """That it is within 1 % of the fastest."""
    without_weakest: float
    """The same, were the weakest source known exactly."""
    source: str
    """The weakest source, in words."""
    option: str | None
    """Of `treeopt profile`, that makes this source less uncertain; None where it was imported."""
    rule: str | None = None
    """Whose trees are spoken of, where there are others."""

    @property
    def found(self) -> str:
        """How sure it is, and what that is owed to."""
        under = "" if self.rule is None else f" under {self.rule}"
        return (
            f"that the choice is within 1 % of the fastest{under} is only {sureness(self.probability)} certain. It would be "
            f"{sureness(self.without_weakest)}, were {self.source} known exactly."
        )

    @property
    def action(self) -> str:
        """Measure or import more of the weakest."""
        return "Import more samples of it." if self.option is None else f"Profile with more {self.option}."


@dataclass(frozen=True, slots=True)
class BatchesWithoutTimes(Caution):
    """A bench at batch sizes beyond those of the profile."""

    sizes: tuple[int, ...]

    @property
    def found(self) -> str:
        """Which."""
        sizes = ", ".join(map(str, self.sizes))
        return f"nothing is predicted for {sizes} texts at a time, because the profile has no times there."

    @property
    def action(self) -> str:
        """Measure them."""
        return f"Profile with --batch-sizes {listed(tuple(sorted({1, *self.sizes})))}."


@dataclass(frozen=True, slots=True)
class BatchesWithoutSteps(Caution):
    """A profile whose times of several texts are of passes alone."""

    @property
    def found(self) -> str:
        """What is missing."""
        return "the profile was measured before batched steps were timed, so that predictions for several texts are too fast."

    @property
    def action(self) -> str:
        """Measure again."""
        return "Profile again."


@dataclass(frozen=True, slots=True)
class NamedDraft(Caution):
    """A draft model of which only a name is known, which no engine can load."""

    draft: str
    engine: str

    @property
    def found(self) -> str:
        """The name."""
        return (
            f"the draft model is given as {self.draft!r}, which is a name and no model that {self.engine} could load."
        )

    @property
    def action(self) -> str:
        """Name the model."""
        return "Name one with --draft-model."


@dataclass(frozen=True, slots=True)
class SpeculationOff(Caution):
    """An engine that is set to decode plainly."""

    engine: str
    best: str | None = None
    """The fastest draft in words; None where none was measured."""
    speedup: float | None = None
    """Its tokens per second over those of plain decoding."""

    @property
    def found(self) -> str:
        """Why, and by how much a draft would lose or win."""
        if self.best is None or self.speedup is None:
            return f"{self.engine} is set to decode plainly, as nothing is known of a draft."
        if self.speedup > 1:
            return f"{self.engine} is set to decode plainly, as asked, although a {self.best} is {self.speedup:.2f} times as fast."
        return (
            f"speculation loses: the fastest draft, a {self.best}, is {self.speedup:.2f} times as fast as plain decoding, so "
            f"{self.engine} is set to decode plainly."
        )

    @property
    def action(self) -> str:
        """Draft all the same."""
        return "Export a tree file with a chain to speculate."


@dataclass(frozen=True, slots=True)
class WithoutRecord(Caution):
    """An engine that takes dynamic trees, which cannot be planned without a draft record."""

    engine: str

    @property
    def found(self) -> str:
        """What is left out."""
        return f"{self.engine} takes dynamic trees, but without a draft record only chains can be planned."

    @property
    def action(self) -> str:
        """Record."""
        return "Run treeopt profile --record, and name it with --record."


@dataclass(frozen=True, slots=True)
class SmallBatchesUnmeasured(Caution):
    """A schedule over batch sizes of which the smallest were not measured."""

    smallest: int
    """That was measured."""

    @property
    def found(self) -> str:
        """Which ones."""
        return f"batch sizes below {self.smallest} were not measured; the schedule treats them like {self.smallest}."

    @property
    def action(self) -> str:
        """Measure them."""
        return "Profile them."


@dataclass(frozen=True, slots=True)
class WithoutProfile(Caution):
    """A setting that was made of a tree alone."""

    engine: str
    branched: bool
    """Whether the tree has branches, which the engine cannot be given."""

    @property
    def found(self) -> str:
        """What is not known."""
        length = f", and the length is the depth of the tree, whose branches {self.engine} cannot be given"
        return f"without a profile nothing is predicted{length if self.branched else ''}."

    @property
    def action(self) -> str:
        """Measure."""
        return "Run treeopt profile, or name one with --profile."
