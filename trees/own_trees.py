"""Parameters of drafters with their own trees, and the settings to try."""

from dataclasses import dataclass
from math import inf

from treeopt.arguments import whole
from treeopt.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class PromptLookupSetting:
    """Parameters of prompt lookup.

    Raises InvalidValueError for values below 1.
    """

    ngram: int
    """Most tokens at the end of the sequence that are looked up."""
    length: int
    """Tokens drafted."""

    def __post_init__(self) -> None:
        whole("ngram", self.ngram, 1)
        whole("length", self.length, 1)

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass: the root and the drafted tokens."""
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
    """W: columns, proposals of one level."""
    ngram: int
    """N: tokens of an n-gram; the window has N - 1 levels."""
    candidates: int
    """G: most n-grams that are verified in a step."""

    def __post_init__(self) -> None:
        whole("window", self.window, 1)
        whole("ngram", self.ngram, 2)
        whole("candidates", self.candidates, 1)

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass, (W + G)(N - 1): the root is the first of the window."""
        return (self.window + self.candidates) * (self.ngram - 1)

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept."""
        return self.ngram - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RedrafterSetting:
    """Parameters of a recurrent head's beam search (Zhang et al., 2024).

    Raises InvalidValueError for values below 1.
    """

    width: int
    """Beams."""
    length: int
    """Tokens of each beam: the most draft tokens that one step can accept."""

    def __post_init__(self) -> None:
        whole("width", self.width, 1)
        whole("length", self.length, 1)

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass: the root and beams that share no token."""
        return 1 + self.width * self.length

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept."""
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
        for name, least in {"budget": 2, "branching": 1, "batch": 1, "max_passes": 1}.items():
            whole(name, getattr(self, name), least)
        if not self.least_log_prob <= 0:
            raise InvalidValueError(f"least_log_prob: expected a number of at most 0. Got {self.least_log_prob}.")

    @property
    def children(self) -> int:
        """Children of every expanded node."""
        return self.branching

    @property
    def max_nodes(self) -> int:
        """Most tokens of the target's pass."""
        return self.budget

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept, and most draft passes: each pass adds at most one level."""
        return min(self.max_passes, self.budget - 1)

    @property
    def max_fed(self) -> int:
        """Most nodes that a step feeds to the draft model, root included."""
        return 1 + (self.longest_draft - 1) * min(self.batch, self.budget - 1)


PROMPT_LOOKUP_SETTINGS = tuple(PromptLookupSetting(ngram, length) for ngram in (2, 4, 8) for length in (2, 4, 8, 16))
"""Settings to try on a small machine."""
LOOKAHEAD_SETTINGS = tuple(
    LookaheadSetting(window, ngram, candidates)
    for ngram in (3, 5, 7)
    for window, candidates in ((1, 1), (1, 2), (1, 4), (4, 4), (8, 8), (16, 16))
)
"""Settings to try on a small machine."""
REDRAFTER_SETTINGS = tuple(
    RedrafterSetting(width=width, length=length)
    for width, length in ((1, 2), (1, 3), (1, 4), (1, 6), (2, 3), (2, 5), (4, 3), (4, 5), (8, 4), (8, 6), (16, 6))
)
"""Settings to try, from a cheap chain to many nodes."""
