"""What a method of the solver leaves behind, and why no tree is better than those in it."""

from dataclasses import dataclass
from typing import Protocol

from treeopt.arrays import Float64, Int32

MAX_CELLS = 60_000_000
"""Values of the largest problem: 480 MB, and on the best-first path some times as much while it is solved."""
BEST_FIRST, DYNAMIC_PROGRAM = "best-first", "dynamic-program"
STATEMENTS = {
    BEST_FIRST: "no row rises, so no node outside a tree weighs more than the lightest one inside",
    DYNAMIC_PROGRAM: "every split of nodes among children was compared, or ruled out by its concave envelope",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Why no tree is better: which method ran, and what it weighed and ruled out; see docs/solver.md."""

    method: str
    """`best-first` or `dynamic-program`."""
    compared: int
    """Nodes weighed (best-first) or splits compared (dynamic program)."""
    ruled_out: int = 0
    """Splits that a proven bound excluded; together with those compared they are all there are."""

    @property
    def statement(self) -> str:
        """The reason in one sentence."""
        return STATEMENTS[self.method]


class Trees(Protocol):
    """What every method leaves behind: values, and trees on demand."""

    @property
    def expected_tokens(self) -> Float64:
        """float64 (D + 1, N + 1)."""
        ...

    def parents(self, nodes: int, depth: int) -> list[int]:
        """Return the parents of one tree, each before its children, siblings in rank order."""
        ...

    def draft_widths(self, depth: int) -> Int32:
        """Return int32 (N + 1, D), the internal nodes at each depth of the trees of one depth limit."""
        ...
