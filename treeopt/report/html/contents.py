"""What a page is made from: a profile with its plan, trees, and benches, each under a label."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from treeopt.planner.planned import Planned
from treeopt.records.batch_bench import BatchBench
from treeopt.records.bench_heading import BenchHeading
from treeopt.records.identity import Identity
from treeopt.records.results import EngineBench, Row
from treeopt.report.grid_bench import GridReport
from treeopt.report.tree_bench import TreeBenchReport
from treeopt.trees import TreeFile

if TYPE_CHECKING:
    from treeopt.report.bench_file import Bench, Methods

B_co = TypeVar("B_co", covariant=True)


@dataclass(frozen=True, slots=True)
class LabelledTree:
    """A tree under a label."""

    label: str
    content: TreeFile


@dataclass(frozen=True, slots=True)
class LabelledBench(Generic[B_co]):
    """A bench under a label, and what its file says that it is of."""

    label: str
    bench: B_co
    heading: BenchHeading


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a page shows."""

    planned: Planned | None = None
    trees: tuple[LabelledTree, ...] = ()
    benches: "tuple[LabelledBench[Bench], ...]" = ()

    @property
    def tree_benches(self) -> tuple[LabelledBench[TreeBenchReport], ...]:
        """Those of single trees."""
        return self._benches_of(TreeBenchReport)

    @property
    def grids(self) -> tuple[LabelledBench[GridReport], ...]:
        """Those of many trees."""
        return self._benches_of(GridReport)

    @property
    def engines(self) -> tuple[LabelledBench[EngineBench], ...]:
        """Those of engines."""
        return self._benches_of(EngineBench)

    @property
    def methods(self) -> "tuple[LabelledBench[Methods], ...]":
        """Those of all ways of speculating that have a row at all."""
        found: tuple[LabelledBench[Methods], ...] = self._benches_of(tuple)
        return tuple(each for each in found if any(isinstance(row, Row) for row in each.bench))

    @property
    def batches(self) -> tuple[LabelledBench[BatchBench], ...]:
        """Those of several texts at a time."""
        return self._benches_of(BatchBench)

    @property
    def identity(self) -> Identity:
        """The pair and the machine of the profile, or else of the first tree, as far as they are said."""
        if self.planned is not None:
            return Identity.of(self.planned.profile.pair, self.planned.profile.machine)
        return Identity.planned_for(self.trees[0].content.provenance) if self.trees else Identity()

    @property
    def raced_here(self) -> "Contents":
        """The same without the benches of another pair, another machine or other conditions."""
        here = self.identity
        fitting = (
            each
            for each in self.benches
            if here.same_pair(raced := each.heading.identity) and not here.differences(raced)
        )
        return replace(self, benches=tuple(fitting))

    @property
    def sorted_benches(self) -> "list[LabelledBench[Bench]]":
        """All of them by label: in whatever order files were named, the page is the same."""
        return sorted(self.benches, key=lambda each: each.label)

    def _benches_of(self, kind: type[B_co]) -> tuple[LabelledBench[B_co], ...]:
        return tuple(
            LabelledBench(each.label, found, each.heading)
            for each in self.benches
            if isinstance(found := each.bench, kind)
        )
