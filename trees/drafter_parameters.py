"""Parameters of drafters that build their own trees, and the values that a profile tries."""

from dataclasses import dataclass
from math import inf

from treeopt.arguments import check_integer
from treeopt.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class PromptLookupSetting:
    """Parameters of prompt lookup, all at least 1."""

    ngram: int
    """Most tokens at the end of the sequence that are looked up."""
    length: int
    """Draft tokens."""

    def __post_init__(self) -> None:
        _check_integers(self, ngram=1, length=1)

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass, root included."""
        return 1 + self.length

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept."""
        return self.length


@dataclass(frozen=True, slots=True)
class LookaheadSetting:
    """Parameters of lookahead decoding (Fu et al., 2024, section 3).

    Raises InvalidValueError for a window or candidates below 1, or n-grams below 2.
    """

    window: int
    """W: columns, the proposals of one level."""
    ngram: int
    """N: tokens of an n-gram; the window has N - 1 levels."""
    candidates: int
    """G: most n-grams that a step verifies."""

    def __post_init__(self) -> None:
        _check_integers(self, window=1, ngram=2, candidates=1)

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass, (W + G)(N - 1): the root is the first of the window."""
        return (self.window + self.candidates) * (self.ngram - 1)

    @property
    def longest_draft(self) -> int:
        return self.ngram - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrafterSetting:
    """Parameters of a recurrent head's beam search (Zhang et al., 2024), all at least 1."""

    width: int
    """Beams."""
    length: int
    """Tokens of each beam: the most draft tokens that a step can accept."""

    def __post_init__(self) -> None:
        _check_integers(self, width=1, length=1)

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass: the root, and beams that share no token."""
        return 1 + self.width * self.length

    @property
    def longest_draft(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecExecSetting:
    """Parameters of SpecExec's trees (Svirschevski et al., 2024, section 4).

    A step verifies the root and the `budget` - 1 most probable paths under the draft. The first pass of the draft model
    feeds the root, every later one the `batch` best nodes that were not fed and could still lead to a better path.

    Raises InvalidValueError for a value out of range.

    >>> SpecExecSetting(budget=64, branching=8, batch=16, max_passes=5).max_fed
    65
    """

    budget: int
    """Most tokens that the target verifies in one pass, root included."""
    branching: int
    """Most children of a node, the most probable ones."""
    batch: int
    """Most nodes that a draft pass feeds."""
    max_passes: int
    """Most draft passes, the root's included; none finds a better path beyond `budget` - 1 of them."""
    least_log_prob: float = -inf
    """Smallest log-probability of a path, under the draft, that is followed or verified."""

    def __post_init__(self) -> None:
        _check_integers(self, budget=2, branching=1, batch=1, max_passes=1)
        if not self.least_log_prob <= 0:
            raise InvalidValueError(f"least_log_prob: expected a number of at most 0. Got {self.least_log_prob}.")

    @property
    def children(self) -> int:
        """Children of every expanded node."""
        return self.branching

    @property
    def max_nodes(self) -> int:
        return self.budget

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept, and most draft passes: each pass adds at most one level."""
        return min(self.max_passes, self.budget - 1)

    @property
    def max_fed(self) -> int:
        """Most nodes that a step feeds to the draft model, root included."""
        return 1 + (self.longest_draft - 1) * min(self.batch, self.budget - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DDTreeSetting:
    """The parameter of trees from one block's marginals (DDTree, arXiv 2604.12989).

    Raises InvalidValueError for a budget below 2.
    """

    budget: int
    """Most tokens that the target verifies in one pass, root included."""

    def __post_init__(self) -> None:
        _check_integers(self, budget=2)

    @property
    def max_nodes(self) -> int:
        return self.budget

    @property
    def max_children(self) -> int:
        """Most children of a node."""
        return self.budget - 1

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept, if the head's block is as long."""
        return self.budget - 1


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
    """Levels below the root: the most draft tokens that a step can accept."""
    nodes: int
    """Tokens that the target verifies in one pass, root included."""

    def __post_init__(self) -> None:
        _check_integers(self, top_k=1, depth=1, nodes=1)
        most = 1 + pool_nodes(self.top_k, self.depth)
        if not 2 <= self.nodes <= most:
            raise InvalidValueError(
                f"nodes: expected 2 to {most}, the root and all that top-k {self.top_k} drafts to depth {self.depth}. "
                f"Got {self.nodes}."
            )

    @classmethod
    def chain(cls, length: int) -> "DynamicTree":
        """Return a chain of `length` draft tokens."""
        return cls(top_k=1, depth=length, nodes=length + 1)

    @property
    def is_chain(self) -> bool:
        """Whether the tree is a chain, all of which is verified."""
        return self.top_k == 1 and self.nodes == self.depth + 1

    @property
    def children(self) -> int:
        """Children of every expanded node."""
        return self.top_k

    @property
    def max_nodes(self) -> int:
        return self.nodes

    @property
    def draft_widths(self) -> tuple[int, ...]:
        """Nodes that each draft pass feeds: the root, then the beams."""
        return (1, *[self.top_k] * (self.depth - 1))

    @property
    def max_fed(self) -> int:
        """Most nodes that a step feeds to the draft model, root included."""
        return sum(self.draft_widths)

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept, and most draft passes."""
        return self.depth


def _check_integers(setting: object, **least: int) -> None:
    """Raise InvalidValueError for a parameter that is not a whole number of at least the given one."""
    for name, smallest in least.items():
        check_integer(name, getattr(setting, name), smallest)


def pool_nodes(top_k: int, depth: int) -> int:
    """Return the size of the pool of an EAGLE-2 style tree: drafted nodes without the root."""
    return top_k + (depth - 1) * top_k**2


PROMPT_LOOKUP_SETTINGS = tuple(PromptLookupSetting(ngram, length) for ngram in (2, 4, 8) for length in (2, 4, 8, 16))
LOOKAHEAD_SETTINGS = tuple(
    LookaheadSetting(window, ngram, candidates)
    for ngram in (3, 5, 7)
    for window, candidates in ((1, 1), (1, 2), (1, 4), (4, 4), (8, 8), (16, 16))
)
REDRAFTER_SETTINGS = tuple(
    RedrafterSetting(width=width, length=length)
    for width, length in ((1, 2), (1, 3), (1, 4), (1, 6), (2, 3), (2, 5), (4, 3), (4, 5), (8, 4), (8, 6), (16, 6))
)
