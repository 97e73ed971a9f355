"""Everything that users are warned of: each warning knows what was found, and what to do about it.

Whoever finds something doubtful makes one of these; only the command line turns them into lines.
"""

import math
from dataclasses import dataclass


class Caution:
    """A warning, whose text is what was found, followed by what to do."""

    __slots__ = ()

    @property
    def found(self) -> str:
        """What is doubtful, and why."""
        raise NotImplementedError

    @property
    def action(self) -> str:
        """What to do about it."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.found} {self.action}"


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
        if self.what != "acceptance":
            return f"Profile with --context-tokens {self.planned[0]} before you rely on it."
        return f"Profile with --context-tokens {listed(tuple(sorted({*self.measured, *self.planned})))}."


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
class OtherPair(Caution):
    """A promise that is of other models than those that are there."""

    said: str
    """What was promised, up to a preposition, such as `tree.json was planned for`."""
    promised: str | None
    here: str | None
    remedy: str
    """How the promised pair is loaded."""

    @property
    def found(self) -> str:
        """Both pairs."""
        this = f"this is {self.here}" if self.here != self.promised else "these files of that name hold something else"
        return f"{self.said} {self.promised}, and {this}: what was promised does not hold."

    @property
    def action(self) -> str:
        """Load the other pair."""
        return f"For the promised pair {self.remedy}."


@dataclass(frozen=True, slots=True)
class OtherHeads(Caution):
    """A tree that is drafted by other heads than those it was planned for."""

    path: str
    """Of the tree."""
    drafter: str
    folder: str | None
    """Where the heads that are there lie; None for those that ship."""

    @property
    def found(self) -> str:
        """Where the other heads lie."""
        here = "those that ship" if self.folder is None else f"those in {self.folder}"
        return f"{self.path} was planned for other {self.drafter} heads than {here}: what was promised does not hold."

    @property
    def action(self) -> str:
        """Find them, or plan for these."""
        return f"Name the folder of the planned ones with --drafter {self.drafter}=DIR, or profile and solve again."


@dataclass(frozen=True, slots=True)
class OtherLayers(Caution):
    """A tree whose EAGLE head is told to read other states than it was planned with."""

    path: str
    """Of the tree."""
    planned: tuple[int, ...]
    """Boundaries; empty for those of the head's configuration."""
    read: tuple[int, ...]

    @property
    def found(self) -> str:
        """Both."""
        planned = f"boundaries {listed(self.planned)}" if self.planned else "those of the head's config.json"
        return (
            f"{self.path} was planned with {planned}, and boundaries {listed(self.read)} are read: what was promised need "
            "not hold."
        )

    @property
    def action(self) -> str:
        """Read the planned ones, or plan for these."""
        return "Leave out --eagle-layers, or profile with it and solve again."


@dataclass(frozen=True, slots=True)
class OtherConditions(Caution):
    """A promise that is of another machine, number format or number of threads."""

    said: str
    """As for `OtherPair`."""
    differences: tuple[str, ...]
    effect: str = "times differ"

    @property
    def found(self) -> str:
        """What differs."""
        return f"{self.said} {'; '.join(self.differences)}: {self.effect}."

    @property
    def action(self) -> str:
        """Bring both together."""
        return "Give the same options, or profile again here."


@dataclass(frozen=True, slots=True)
class OtherPrograms(Caution):
    """Programs that use the processors while times are to be taken."""

    sight: str
    """What they use, in words."""
    device_type: str
    otherwise: str
    """What to do beside closing them."""

    @property
    def found(self) -> str:
        """What they use, and what follows."""
        late = self.device_type != "cpu"
        consequence = (
            "The host may start the device's work too late" if late else "Times taken beside them are too long"
        )
        return f"other programs use {self.sight}. {consequence}:"

    @property
    def action(self) -> str:
        """Make the machine quiet."""
        return f"close them, or {self.otherwise}."


@dataclass(frozen=True, slots=True)
class DisturbedTimes(Caution):
    """Samples that had to be kept although other programs made them too long."""

    condition: str
    processors: float
    """Share of the processors that others used, and of the calls and of the samples while they did."""
    calls: float
    samples: float

    @property
    def found(self) -> str:
        """How much was disturbed."""
        return (
            f"{self.condition}: other programs used {self.processors:.0%} of the processors during {self.calls:.0%} of "
            f"the timed calls: {self.samples:.0%} of the samples are from then, and too long."
        )

    @property
    def action(self) -> str:
        """Measure in quiet."""
        return "Close them, or wait for quiet with --wait 10m, and profile again without --resume."


@dataclass(frozen=True, slots=True)
class SpeedChanged(Caution):
    """A machine that became slower or faster while it was timed."""

    condition: str
    change: float
    """Relative; above 0 it became slower."""

    @property
    def found(self) -> str:
        """By how much."""
        slower = "slower" if self.change > 0 else "faster"
        return (
            f"{self.condition}: the machine became {abs(self.change):.0%} {slower} while it was timed. It may be "
            "throttling, or shared:"
        )

    @property
    def action(self) -> str:
        """Measure again."""
        return "let it cool, close other programs, and profile again without --resume."


@dataclass(frozen=True, slots=True)
class ScatteredTimes(Caution):
    """Single calls that vary so much that many are needed."""

    condition: str
    spread: float

    @property
    def found(self) -> str:
        """By how much."""
        return f"{self.condition}: single calls vary by {self.spread:.0%}."

    @property
    def action(self) -> str:
        """Make the machine quiet, or measure more."""
        return "Close other programs, set --threads to the cores that are free, or ask for more --rounds."


@dataclass(frozen=True, slots=True)
class PlainSpeedChanged(Caution):
    """Plain decoding is not as fast as it was when it was profiled."""

    @property
    def found(self) -> str:
        """That it is so."""
        return "the machine's speed is not what it was when it was profiled:"

    @property
    def action(self) -> str:
        """Profile again."""
        return "profile again right before this, or trust speedups more than times"


@dataclass(frozen=True, slots=True)
class TextsDiffer(Caution):
    """Trees whose greedy text is not plain decoding's, which is a fault of the program."""

    trees: int
    """How many of those that were decoded with."""

    @property
    def found(self) -> str:
        """Whose."""
        return f"the text of {self.trees} trees DIFFERS from plain decoding's."

    @property
    def action(self) -> str:
        """Look at them."""
        return "Look with treeopt bench TREE"


@dataclass(frozen=True, slots=True)
class BatchesWithoutTimes(Caution):
    """A bench at batch sizes beyond those of the profile."""

    sizes: tuple[int, ...]

    @property
    def found(self) -> str:
        """Which."""
        listed = ", ".join(map(str, self.sizes))
        return f"nothing is predicted for {listed} texts at a time, because the profile has no times there."

    @property
    def action(self) -> str:
        """Measure them."""
        listed = ",".join(map(str, self.sizes))
        return f"Profile with --batch-sizes 1,{listed}."


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
class TextsOfBatchDiffer(Caution):
    """Texts of a batch that are not those decoded alone, which is a fault of the program."""

    texts: int

    @property
    def found(self) -> str:
        """How many."""
        return f"{self.texts} texts DIFFER from those decoded alone, not at near-ties."

    @property
    def action(self) -> str:
        """Report it."""
        return "Report it, with --output"


@dataclass(frozen=True, slots=True)
class TextDiffers(Caution):
    """A tree whose greedy text is not plain decoding's, which is a fault of the program."""

    @property
    def found(self) -> str:
        """That it is so."""
        return "the text DIFFERS from plain decoding's."

    @property
    def action(self) -> str:
        """Report it."""
        return "Report it, with --output"


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


@dataclass(frozen=True, slots=True)
class TorchMissing(Caution):
    """torch cannot be imported, without which nothing is measured or run."""

    reason: str

    @property
    def found(self) -> str:
        """Why."""
        return f"torch cannot be imported ({self.reason}): only solve, show, compare, export and import work."

    @property
    def action(self) -> str:
        """Install it."""
        return "Install it with pip install torch; its CPU build is enough."


@dataclass(frozen=True, slots=True)
class MissingPackages(Caution):
    """Packages that treeopt needs and that are not installed."""

    names: tuple[str, ...]

    @property
    def found(self) -> str:
        """Which."""
        return f"treeopt needs {', '.join(self.names)}, which {'is' if len(self.names) == 1 else 'are'} not installed."

    @property
    def action(self) -> str:
        """Install them."""
        return f"Run pip install {' '.join(self.names)}."


@dataclass(frozen=True, slots=True)
class DeviceUnseen(Caution):
    """An NVIDIA GPU that torch cannot use."""

    torch: str
    """Its version."""

    @property
    def found(self) -> str:
        """That it is so."""
        return f"NVIDIA's driver is here, but torch {self.torch} sees no GPU."

    @property
    def action(self) -> str:
        """Install another build, or ask for the GPU."""
        return "Install a torch that is built for CUDA, and look whether CUDA_VISIBLE_DEVICES hides the GPU."


@dataclass(frozen=True, slots=True)
class SlowGovernor(Caution):
    """Processors whose frequency follows the load."""

    governor: str

    @property
    def found(self) -> str:
        """Who sets it."""
        return f"the processors' frequency is set by the governor {self.governor}, so that short passes run slower than long ones."

    @property
    def action(self) -> str:
        """Set another."""
        return "Run sudo cpupower frequency-set --governor performance before you profile."


@dataclass(frozen=True, slots=True)
class OnBattery(Caution):
    """A computer that runs on its battery."""

    @property
    def found(self) -> str:
        """That it is so."""
        return "the computer runs on its battery and saves power:"

    @property
    def action(self) -> str:
        """Plug it in."""
        return "plug it in before you profile."


@dataclass(frozen=True, slots=True)
class MemoryTaken(Caution):
    """A GPU that others use too."""

    device: str
    share: float
    """Of its memory that is taken."""

    @property
    def found(self) -> str:
        """How much."""
        return (
            f"{self.share:.0%} of the memory of {self.device} is taken by other programs, which may compute there too."
        )

    @property
    def action(self) -> str:
        """Make it quiet."""
        return "Close them (nvidia-smi lists them), or choose another with --device."


@dataclass(frozen=True, slots=True)
class ProcessorQuota(Caution):
    """A container that may use less time than its threads need."""

    processors: float
    threads: int

    @property
    def found(self) -> str:
        """Both."""
        return (
            f"this container may use {self.processors:g} processors' worth of time and torch computes with {self.threads} "
            "threads, which are stopped in turn."
        )

    @property
    def action(self) -> str:
        """Fewer threads."""
        return f"Give --threads {max(1, math.floor(self.processors))}, or raise the container's limit."


@dataclass(frozen=True, slots=True)
class SharedCores(Caution):
    """More threads than cores."""

    threads: int
    cores: int

    @property
    def found(self) -> str:
        """Both."""
        return f"torch computes with {self.threads} threads on {_counted_cores(self.cores)}, so that some share one."

    @property
    def action(self) -> str:
        """Fewer threads."""
        return f"Give --threads {self.cores} and look which is faster."


@dataclass(frozen=True, slots=True)
class FewThreads(Caution):
    """Fewer threads than cores."""

    threads: int
    cores: int
    variable: str | None
    """OMP_NUM_THREADS, where it is set."""

    @property
    def found(self) -> str:
        """Both, and why."""
        why = "" if self.variable is None else f" because OMP_NUM_THREADS is {self.variable}"
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        return f"torch computes with {threads} on {_counted_cores(self.cores)}{why}."

    @property
    def action(self) -> str:
        """More threads."""
        return f"Give --threads {self.cores}, unless the others are for something else."


def _counted_cores(cores: int) -> str:
    return f"{cores} core{'s' * (cores != 1)}"


@dataclass(frozen=True, slots=True)
class UpdateDropped(Caution):
    """An update of a draft that learns while it drafts, whose gradient is NaN or infinite."""

    draft: str

    @property
    def found(self) -> str:
        """Whose."""
        return f"{self.draft}: an update of the draft was dropped, because its gradient is NaN or infinite; the text goes on as it was."

    @property
    def action(self) -> str:
        """Learn more slowly, or from numbers that are finite."""
        return "If it happens again, lower --learning-rate, or do without --learn."


@dataclass(frozen=True, slots=True)
class FormatCaution(Caution):
    """What one engine, or one program's format of trees, cannot take or needs; it alone knows the words."""

    text: str
    """Of two sentences or more; the last is what to do."""

    @property
    def found(self) -> str:
        """All but the last sentence."""
        return self.text[: -len(self.action) - 1]

    @property
    def action(self) -> str:
        """The last sentence."""
        return self.text.rpartition(". ")[2]


def listed(numbers: tuple[int, ...]) -> str:
    """Return numbers with commas between, as options take them."""
    return ",".join(map(str, numbers))


def sureness(probability: float) -> str:
    """Return a probability, worked out by draws, in whole percent, never rounded up.

    >>> sureness(0.899), sureness(1.0)
    ('89 %', 'more than 99 %')
    """
    return "more than 99 %" if probability > 0.99 else f"{math.floor(100 * probability + 1e-9)} %"
