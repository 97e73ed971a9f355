"""Tokens of a step over the text that was walked along, older text counting for less.

Text repeats itself in stretches, so that steps are no independent outcomes: the standard error is that of a ratio of sums
over the stretches that were walked along at a time (Cochran, 1977, section 6.3), and no less than that of independent
steps.  Where two stretches in a row are off what was expected in the same direction, the text changed, and what was
before says nothing of what comes.
"""

from math import copysign, hypot, inf, sqrt

from treeopt.adaptation.replay import Walked

PRIOR_TOKENS = 32.0
"""It begins as if so many tokens had been walked along, at the rate that the profile has."""
LEAST_VARIATION = 0.5
"""Standard deviation of a step's tokens over their mean, at least."""
SURPRISE = 3.5
"""Standard deviations by which a stretch is off where the text may have changed."""
KNOWN_STRETCHES = 1.5
"""Stretches after which it is known how they vary."""


class AgedRate:
    """Tokens per step, a token counting half after so many further ones.

    Args:
        half_life_tokens: so many.
        known: tokens per step as measured.
    """

    def __init__(self, half_life_tokens: int, known: float) -> None:
        self._half_life_tokens = half_life_tokens
        self.tokens, self.steps, self.drafted = PRIOR_TOKENS, PRIOR_TOKENS / known, PRIOR_TOKENS / known
        self.walked = 0
        """Tokens walked along since the text changed."""
        self._squares = 0.0, 0.0, 0.0
        """Sums over stretches of tokens * tokens, tokens * steps and steps * steps."""
        self._stretches = 0.0
        self._odd: Walked | None = None

    def add(self, found: Walked) -> None:
        """Add a stretch of one step or more."""
        self.walked += found.tokens
        off = self._off(found)
        if abs(off) <= SURPRISE:
            self._add_odd()
            self._add(found)
            return
        if self._odd is None or copysign(1, off) != copysign(1, self._off(self._odd)):
            self._add_odd()
            self._odd = found
            return
        both, self._odd = (self._odd, found), None
        self.tokens = self.steps = self.drafted = self._stretches = 0.0
        self._squares = 0.0, 0.0, 0.0
        self.walked = sum(each.tokens for each in both)
        for each in both:
            self._add(each)

    @property
    def tokens_per_step(self) -> float:
        """As is to be expected of the next steps."""
        return self.tokens / self.steps

    @property
    def noise(self) -> float:
        """Standard error of its logarithm; infinite before anything was walked along."""
        if self._stretches == 0:
            return inf
        return max(sqrt(self._squared_off) / self.tokens, LEAST_VARIATION / sqrt(self.steps))

    def _off(self, found: Walked) -> float:
        """Return by how many standard deviations a stretch has more tokens than its steps let expect."""
        if self._stretches < KNOWN_STRETCHES:
            return 0.0
        rate = self.tokens_per_step
        least = LEAST_VARIATION * sqrt(rate * found.tokens)
        return (found.tokens - rate * found.steps) / hypot(sqrt(self._squared_off / self._stretches), least)

    @property
    def _squared_off(self) -> float:
        """Sum over stretches of the square of the tokens by which each is off."""
        rate, (tokens, both, steps) = self.tokens_per_step, self._squares
        return max(0.0, tokens - 2 * rate * both + rate * rate * steps)

    def _add_odd(self) -> None:
        """Add the stretch that was off, as no other was off like it."""
        if self._odd is not None:
            self._add(self._odd)
            self._odd = None

    def _add(self, found: Walked) -> None:
        keep = 0.5 ** (found.tokens / self._half_life_tokens)
        before = self.tokens, self.steps, self.drafted
        self.tokens, self.steps, self.drafted = (keep * old + new for old, new in zip(before, found, strict=True))
        tokens, both, steps = (keep**2 * old for old in self._squares)
        self._squares = tokens + found.tokens**2, both + found.tokens * found.steps, steps + found.steps**2
        self._stretches = keep**2 * self._stretches + 1
