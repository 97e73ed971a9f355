"""What a page is made from: a profile with its plan, trees, and benches, each under a label."""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from treeopt.planner.planned import Planned
from treeopt.records.bench_file import Bench
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.identity import Identity
from treeopt.trees import TreeFile

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class LabelledTree:
    """A tree under a label."""

    label: str
    content: TreeFile


@dataclass(frozen=True, slots=True)
class LabelledBench(Generic[T_co]):
    """A bench under a label, with the heading of its file."""

    label: str
    content: T_co
    heading: BenchHeading


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a page shows."""

    planned: Planned | None = None
    profile_name: str = "profile.yaml"
    """The file of the profile, for commands."""
    trees: tuple[LabelledTree, ...] = ()
    benches: tuple[LabelledBench[Bench], ...] = ()
    """In any order: the page has them by label."""

    @property
    def identity(self) -> Identity:
        """The pair and the machine of the profile, or else of the first tree, as far as they are known."""
        if self.planned is not None:
            return Identity.of(self.planned.profile.pair, self.planned.profile.machine)
        return Identity.planned_for(self.trees[0].content.provenance) if self.trees else Identity()

    @property
    def measured_here(self) -> "Contents":
        """The same without the benches of another pair, another machine or other conditions."""
        here = self.identity
        fitting = [
            each
            for each in self.benches
            if here.same_pair(other := each.heading.identity) and not here.differences(other)
        ]
        return replace(self, benches=tuple(fitting))

    @property
    def sorted_benches(self) -> list[LabelledBench[Bench]]:
        return sorted(self.benches, key=lambda each: each.label)

    def benches_of(self, kind: type[T_co]) -> list[LabelledBench[T_co]]:
        """Return the benches of one subcommand, by label."""
        return [
            LabelledBench(each.label, content, each.heading)
            for each in self.sorted_benches
            if isinstance(content := each.content, kind)
        ]
