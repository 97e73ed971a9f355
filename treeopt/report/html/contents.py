"""What a page is made from: a profile with its plan, trees, and benches, each under a label."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeopt.planner.planned import Planned
from treeopt.records.batch_bench import BatchBench
from treeopt.records.drift import DriftStreams
from treeopt.records.results import EngineBench, Row
from treeopt.report.grid_bench import GridReport
from treeopt.report.tree_bench import TreeBenchReport
from treeopt.trees import TreeFile

if TYPE_CHECKING:
    from treeopt.report.bench_file import Bench, Methods


@dataclass(frozen=True, slots=True)
class LabelledTree:
    """A tree under a label."""

    label: str
    content: TreeFile


@dataclass(frozen=True, slots=True)
class LabelledBench:
    """A bench under a label."""

    label: str
    bench: "Bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All that a page shows."""

    planned: Planned | None = None
    trees: tuple[LabelledTree, ...] = ()
    benches: tuple[LabelledBench, ...] = ()

    @property
    def tree_benches(self) -> tuple[tuple[str, TreeBenchReport], ...]:
        """Those of single trees."""
        return tuple((each.label, each.bench) for each in self.benches if isinstance(each.bench, TreeBenchReport))

    @property
    def grids(self) -> tuple[tuple[str, GridReport], ...]:
        """Those of many trees."""
        return tuple((each.label, each.bench) for each in self.benches if isinstance(each.bench, GridReport))

    @property
    def engines(self) -> tuple[tuple[str, EngineBench], ...]:
        """Those of engines."""
        return tuple((each.label, each.bench) for each in self.benches if isinstance(each.bench, EngineBench))

    @property
    def methods(self) -> "tuple[tuple[str, Methods], ...]":
        """Those of all ways of speculating that have a row at all."""
        found = ((each.label, each.bench) for each in self.benches if isinstance(each.bench, tuple))
        return tuple((label, rows) for label, rows in found if any(isinstance(row, Row) for row in rows))

    @property
    def batches(self) -> tuple[tuple[str, BatchBench], ...]:
        """Those of several texts at a time."""
        return tuple((each.label, each.bench) for each in self.benches if isinstance(each.bench, BatchBench))

    @property
    def streams(self) -> tuple[tuple[str, DriftStreams], ...]:
        """Those of streams that change."""
        return tuple((each.label, each.bench) for each in self.benches if isinstance(each.bench, DriftStreams))
