"""The result of every method of the solver, and why its trees are optimal."""

from dataclasses import dataclass

from treeopt.solver.best_first import NestedTrees
from treeopt.solver.dynamic_program import ValueTrees

Trees = NestedTrees | ValueTrees
"""Values of all trees, and trees on demand; both have the same methods."""
MAX_CELLS = 60_000_000
"""Most values of a problem: 480 MB, and several times as much during best-first growth."""
BEST_FIRST, DYNAMIC_PROGRAM = "best-first", "dynamic-program"
STATEMENTS = {
    BEST_FIRST: "all rows are non-increasing, so no node outside a tree has a larger value than a node inside",
    DYNAMIC_PROGRAM: "every split of nodes among children was compared, or ruled out by its concave envelope",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Why no tree is better: the method, and the work it did (docs/explanation/solver.md)."""

    method: str
    """`best-first` or `dynamic-program`."""
    compared: int
    """Nodes evaluated (best-first) or splits compared (dynamic program)."""
    ruled_out: int = 0
    """Splits excluded by a bound; `compared` and `ruled_out` add up to all splits."""

    @property
    def statement(self) -> str:
        """The reason in one sentence."""
        return STATEMENTS[self.method]
