"""Dynamic trees: every step drafts a new tree by the draft's probabilities."""

from dataclasses import dataclass

from treeopt.arguments import whole
from treeopt.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicTree:
    """Parameters of an EAGLE-2 style tree (Li et al., 2024, section 4).

    Depth 1 has the root's `top_k` most probable children. At every further depth, the beams are the `top_k` nodes of the
    previous depth with the largest path probabilities; each gets `top_k` children. Of this pool, the `nodes` - 1 nodes with
    the largest path probabilities are verified with the root.

    Raises InvalidValueError for values below 1, and for more nodes than the pool has: `top_k + (depth - 1) top_k² + 1`.

    >>> DynamicTree(top_k=2, depth=3, nodes=8).draft_widths
    (1, 2, 2)
    """

    top_k: int
    """Beams, and children of each beam."""
    depth: int
    """Levels below the root: the most draft tokens that one step can accept."""
    nodes: int
    """Tokens that the target verifies in one pass, root included."""

    def __post_init__(self) -> None:
        for name in ("top_k", "depth", "nodes"):
            whole(name, getattr(self, name), 1)
        most = 1 + pool_nodes(self.top_k, self.depth)
        if not 2 <= self.nodes <= most:
            raise InvalidValueError(
                f"nodes: expected 2 to {most}, the root and all that top-k {self.top_k} drafts to depth {self.depth}. "
                f"Got {self.nodes}."
            )

    @property
    def children(self) -> int:
        """Children of every expanded node."""
        return self.top_k

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass."""
        return self.nodes

    @property
    def max_fed(self) -> int:
        """Most nodes that a step feeds to the draft model, root included."""
        return sum(self.draft_widths)

    @property
    def draft_widths(self) -> tuple[int, ...]:
        """Nodes that each draft pass feeds: the root, then the beams."""
        return (1, *[self.top_k] * (self.depth - 1))

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept, and most draft passes."""
        return self.depth

    @property
    def is_chain(self) -> bool:
        """Whether the tree is a chain, all of which is verified."""
        return self.top_k == 1 and self.nodes == self.depth + 1

    @classmethod
    def chain(cls, length: int) -> "DynamicTree":
        """Return a chain of `length` draft tokens."""
        return cls(top_k=1, depth=length, nodes=length + 1)


def pool_nodes(top_k: int, depth: int) -> int:
    """Return the size of the pool: drafted nodes without the root."""
    return top_k + (depth - 1) * top_k**2
