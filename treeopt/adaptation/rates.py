"""Tokens per step of a setting of prompt lookup: in this text, and over all, for texts repeat themselves to unlike degrees.

    log(tokens per step of a text) = log(those of all texts) + d,   d ~ N(0, sd^2)

so that what is known of this text is the mean of what was walked along in it and of all texts, each weighted with its
precision (a random effect; Gelman and Hill, 2007, section 12.5), and all texts count alike, however long they are.

Within a text steps are no independent outcomes, because it repeats itself in stretches: the standard error is that of a
ratio of sums over the stretches that were walked along at a time (Cochran, 1977, section 6.3), and no less than that of
independent steps.  Where two stretches in a row are off what was expected in the same direction, another passage begins,
and what was before says nothing of what comes.
"""

from math import copysign, exp, hypot, inf, log, sqrt
from typing import NamedTuple

from treeopt.adaptation.texts import STRETCHES
from treeopt.runtime.drafters.lookup_replay import Walked

HALF_LIFE_TOKENS = 192
"""Within a text a token counts half after so many further ones."""
BEGINNING_TOKENS = 64
"""Of a text, which say little of what comes in it: there is not much to look up yet."""
TEXTS_SD = 0.4
"""Of the logarithm of texts' tokens per step around those of all."""
KNOWN_SD, CHANGED_SD = 0.2, 1.5
"""Of the logarithm of what the profile has around those of all texts: at first, and where something changed for good."""
CHANGED = 3.0
"""Standard errors by which a text is off where something did."""
LEAST_TOKENS = 32
"""Walked along in a text that is counted among all."""
LEAST_VARIATION = 0.5
"""Standard deviation of a step's tokens over their mean, at least."""
SURPRISE = 3.5
"""Standard deviations by which a stretch is off where another passage may begin."""
KNOWN_STRETCHES = 1.5
"""Stretches after which it is known how they vary."""


class Rate(NamedTuple):
    """What steps come to."""

    tokens_per_step: float
    drafted: float
    """Share of the steps in which there is something to draft."""
    noise: float
    """Standard error of the logarithm of `tokens_per_step`."""


class Sums:
    """Stretches of one text."""

    def __init__(self) -> None:
        self.tokens = self.steps = self.drafted = self.stretches = 0.0
        self._squares = 0.0, 0.0, 0.0
        """Sums over stretches of tokens * tokens, tokens * steps and steps * steps."""

    def add(self, found: Walked, keep: float = 1.0) -> None:
        """Add a stretch to a share of those before."""
        before = self.tokens, self.steps, self.drafted
        self.tokens, self.steps, self.drafted = (keep * old + new for old, new in zip(before, found, strict=True))
        tokens, both, steps = (keep**2 * old for old in self._squares)
        self._squares = tokens + found.tokens**2, both + found.tokens * found.steps, steps + found.steps**2
        self.stretches = keep**2 * self.stretches + 1

    @property
    def rate(self) -> Rate:
        """What steps come to by these alone; without any nothing is known."""
        if not self.steps:
            return Rate(1.0, 1.0, inf)
        noise = max(sqrt(self._squared_off) / self.tokens, LEAST_VARIATION / sqrt(self.steps))
        return Rate(self.tokens / self.steps, self.drafted / self.steps, noise)

    def off(self, found: Walked) -> float:
        """Return by how many standard deviations a stretch has more tokens than its steps let expect."""
        if self.stretches < KNOWN_STRETCHES:
            return 0.0
        rate = self.tokens / self.steps
        least = LEAST_VARIATION * sqrt(rate * found.tokens)
        return (found.tokens - rate * found.steps) / hypot(sqrt(self._squared_off / self.stretches), least)

    @property
    def _squared_off(self) -> float:
        """Sum over stretches of the square of the tokens by which each is off."""
        rate, (tokens, both, steps) = self.tokens / self.steps, self._squares
        return max(0.0, tokens - 2 * rate * both + rate * rate * steps)


class SettingRate:
    """What one setting comes to.

    Args:
        known: tokens per step as measured.
    """

    def __init__(self, known: float) -> None:
        self.walked = self._walked_in_text = 0
        """Tokens walked along."""
        self._known, self._known_sd = known, KNOWN_SD
        self._text, self._stretch = Sums(), Sums()
        self._odd: Walked | None = None
        self._texts = self._steps_per_token = self._drafted = self._precision = 0.0
        """Of all texts: how many, the sums of what steps come to in each, and of what each tells."""
        self.all_texts = self._all_texts()
        """What is to be expected of a text of which nothing is known yet, on average."""

    def add(self, found: Walked) -> None:
        """Add a stretch of one step or more."""
        self.walked += found.tokens
        self._walked_in_text += found.tokens
        self._stretch.add(found)
        if self._walked_in_text <= BEGINNING_TOKENS:
            return
        off = self._text.off(found)
        if abs(off) <= SURPRISE:
            self._add_odd()
            self._add(found)
        elif self._odd is None or copysign(1, off) != copysign(1, self._text.off(self._odd)):
            self._add_odd()
            self._odd = found
        else:
            both, self._odd = (self._odd, found), None
            self._text = Sums()
            for each in both:
                self._add(each)

    def end_text(self) -> None:
        """Have the next stretch be of another text."""
        self._text, self._odd, self._walked_in_text = Sums(), None, 0

    def end_stretch(self) -> float:
        """Count this text, or so much of it, among all, and return by how many standard errors it was off; 0 where too little."""
        found, tokens = self._stretch.rate, self._stretch.tokens
        if tokens < LEAST_TOKENS:
            return 0.0
        self._stretch = Sums()
        all_texts, sd = self.all_texts, hypot(found.noise, TEXTS_SD)
        off = log(found.tokens_per_step / all_texts.tokens_per_step) / hypot(sd, all_texts.noise)
        if abs(off) > CHANGED:
            self._forget_texts()
        keep = 0.5 ** (1 / STRETCHES)
        self._texts = keep * self._texts + 1
        self._steps_per_token = keep * self._steps_per_token + 1 / found.tokens_per_step
        self._drafted = keep * self._drafted + found.drafted
        self._precision = keep * self._precision + 1 / sd**2
        self.all_texts = self._all_texts()
        return off

    def forget(self) -> None:
        """Have what was walked along before say nothing of what comes."""
        self._forget_texts()
        self._stretch = Sums()
        self.all_texts = self._all_texts()
        self.end_text()

    def _forget_texts(self) -> None:
        self._known_sd = CHANGED_SD
        self._texts = self._steps_per_token = self._drafted = self._precision = 0.0

    def _all_texts(self) -> Rate:
        texts = Rate(1.0, 1.0, inf)
        if self._texts:
            mean = self._texts / self._steps_per_token
            texts = Rate(mean, self._drafted / self._texts, self._precision**-0.5)
        return combined(Rate(self._known, texts.drafted, self._known_sd), texts)

    @property
    def this_text(self) -> Rate:
        """What is to be expected of what comes in this text."""
        before = self.all_texts
        return combined(before._replace(noise=hypot(before.noise, TEXTS_SD)), self._text.rate)

    def _add_odd(self) -> None:
        """Add the stretch that was off, as no other was off like it."""
        if self._odd is not None:
            self._add(self._odd)
            self._odd = None

    def _add(self, found: Walked) -> None:
        self._text.add(found, 0.5 ** (found.tokens / HALF_LIFE_TOKENS))


def combined(known: Rate, found: Rate) -> Rate:
    """Return what two independent sources say together.

    >>> found = combined(Rate(2.0, 1.0, 0.1), Rate(8.0, 0.0, 0.1))
    >>> round(found.tokens_per_step, 6), round(found.drafted, 6), round(found.noise**2, 6)
    (4.0, 0.5, 0.005)
    """
    share = known.noise**2 / (known.noise**2 + found.noise**2)  # that counts of what was found
    return Rate(
        exp((1 - share) * log(known.tokens_per_step) + share * log(found.tokens_per_step)),
        (1 - share) * known.drafted + share * found.drafted,
        known.noise * sqrt(1 - share),
    )
