"""Warnings of files that are of another pair, other heads or other conditions than what runs."""

from dataclasses import dataclass

from treeopt.records.warnings.caution import Caution, listed


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
class RacedElsewhere(Caution):
    """A bench of another pair, another machine or other conditions than a page's."""

    label: str
    """Of the bench."""
    differences: tuple[str, ...]

    @property
    def found(self) -> str:
        """What differs."""
        return f"{self.label} was raced with {'; '.join(self.differences)}: the verdict leaves it out."

    @property
    def action(self) -> str:
        """Bring both together."""
        return "Name the profile that it was raced beside, or race here."


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
