"""Warnings of measured times that something disturbed."""

from dataclasses import dataclass

from treeopt.records.warnings.caution import Caution


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
