"""The content of a page: a profile with its plan, trees and benches, each under a label."""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from treeopt.planner.profile_plan import ProfilePlan
from treeopt.records.bench_file import Bench, BenchHeading
from treeopt.records.identity import Identity
from treeopt.trees import TreeFile

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class LabelledBench(Generic[T_co]):
    """A bench under a label, with the heading of its file."""

    label: str
    content: T_co
    heading: BenchHeading


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Everything that a page shows."""

    planned: ProfilePlan | None = None
    profile_name: str = "profile.yaml"
    """File of the profile, for printed commands."""
    trees: tuple[tuple[str, TreeFile], ...] = ()
    """Each after its label."""
    benches: tuple[LabelledBench[Bench], ...] = ()
    """In any order; the page sorts them by label."""

    @property
    def identity(self) -> Identity:
        """Pair and machine of the profile, else of the first tree, as far as they are known."""
        if self.planned is not None:
            return Identity.of(self.planned.profile.pair, self.planned.profile.machine)
        return Identity.from_provenance(self.trees[0][1].provenance) if self.trees else Identity()

    @property
    def measured_here(self) -> "Contents":
        """The same without the benches of another pair, another machine or other conditions."""
        identity = self.identity
        benches = [
            bench
            for bench in self.benches
            if identity.same_pair(other := bench.heading.identity) and not identity.differences(other)
        ]
        return replace(self, benches=tuple(benches))

    @property
    def sorted_benches(self) -> list[LabelledBench[Bench]]:
        return sorted(self.benches, key=lambda bench: bench.label)

    def benches_of(self, kind: type[T_co]) -> list[LabelledBench[T_co]]:
        """Return the benches of one subcommand, by label."""
        return [
            LabelledBench(bench.label, content, bench.heading)
            for bench in self.sorted_benches
            if isinstance(content := bench.content, kind)
        ]
