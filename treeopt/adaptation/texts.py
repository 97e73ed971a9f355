"""What was accepted in this text, and in all of them: one text differs from the next by more than chance.

    log odds(h of a text) = log odds(h of all texts) + d,   d ~ N(0, sd^2)

so that n outcomes of one text tell of all texts what n' independent ones would, 1 / n' = alike / n + sd^2 h (1 - h):
however long a text is, it is one text (a random effect; Gelman and Hill, 2007, section 12.5).  `sd` and `alike` are those
of the texts that the profile was measured on.
"""

from math import sqrt

from treeopt.adaptation.counts import AgedOutcomes, Outcomes, told_acceptance
from treeopt.adaptation.estimate import SHIFT_SD, Learnt, shifted, signed_surprise, surprise
from treeopt.adaptation.variation import TextVariation, Variation
from treeopt.arrays import Float64

TEXT_STEPS = 64
"""Within a text a step counts half after so many further ones: passages differ too."""
ANOTHER_PASSAGE = 4.5
"""Standard errors by which a few steps are off where another passage begins: those before say nothing of it."""
STRETCHES = 8
"""After so many further texts, or stretches of a long one, one counts half."""
CHANGED, ALLOWED, MOST_OFF = 2.0, 0.75, 2.75
"""Something changed for good where the standard errors by which texts are off in one direction, each beyond those allowed,
come to so many; of one text, however unlike it is, no more than the most count."""
UNCHANGED_SD = 0.5
"""Of the first rank's shift, in log odds, as long as nothing did."""
LEAST_TRIED = 8.0
"""Outcomes that are worth a stretch."""


class OneSided:
    """The sum of what texts are off in one direction, begun anew where it falls to 0 (Page, 1954).

    Args:
        none: outcomes of no step.
    """

    def __init__(self, none: Outcomes) -> None:
        self._none = self._since = none
        self._sum = 0.0

    def changed(self, found: Outcomes, off: float) -> Outcomes | None:
        """Add a text that is off by so many standard errors; return what was counted since something changed, if it did."""
        self._sum = max(0.0, self._sum + min(off, MOST_OFF) - ALLOWED)
        self._since = self._since.plus(found) if self._sum else self._none
        return self._since if self._sum > CHANGED else None


class TextOutcomes:
    """Outcomes of this text and of all.

    Args:
        variation: between and within texts, as it was measured.
        depths: D.
        ranks: K.
    """

    def __init__(self, variation: Variation, depths: int, ranks: int) -> None:
        self._variation = TextVariation(variation)
        self._none = Outcomes.none(depths, ranks)
        self._text = AgedOutcomes(TEXT_STEPS, depths, ranks)
        self._stretch = self._all = self._none
        self._more, self._less = OneSided(self._none), OneSided(self._none)
        self._shift: Float64 = self._none.tried
        """Of all texts."""
        self._solved_shift = self._shift
        self._shift_sd = UNCHANGED_SD

    @property
    def variation(self) -> Variation:
        """Between and within texts, as far as is known now."""
        return self._variation.now

    @property
    def of_text(self) -> Outcomes:
        """What was counted in this text, older steps counting for less."""
        return self._text.outcomes

    def odd(self, found: Outcomes, expected: Float64) -> float:
        """Return by how many standard errors outcomes of one text are off what was expected of it, (D, K)."""
        return surprise(found, expected) / sqrt(self.variation.alike)

    def add(self, found: Outcomes, steps: int, expected: Float64) -> None:
        """Count the outcomes of so many steps of this text, of which (D, K) was expected."""
        if self.odd(found, expected) > ANOTHER_PASSAGE:
            self._text.outcomes = self._none
        self._text.add(found, steps)
        self._stretch = self._stretch.plus(found)

    def end_text(self) -> None:
        """Have the next step be of another text."""
        self._text.outcomes = self._none

    def end_stretch(self, known: Float64) -> str | None:
        """Count this text, or so much of it, among all, and return in words what changed for good, None where nothing did.

        Args:
            known: (D, K), what the profile has of steps as those that are decoded.
        """
        if self._stretch.tried[:, 0].sum() < LEAST_TRIED:
            return None
        self._variation.add(self._stretch, known)
        found = self.variation.independent(self._stretch, self.expected(known))
        self._stretch = self._none
        self._all = self._all.plus(found, 0.5 ** (1 / STRETCHES))
        solved_with = shifted(known, self._solved_shift)
        off = signed_surprise(found, solved_with)
        sides = self._more.changed(found, off), self._less.changed(found, -off)
        changed = next((each for each in sides if each is not None), None)
        if changed is not None:  # what was before says nothing now
            self._begin_anew(changed)
        self._shift = self.all_texts(known).shift
        return None if changed is None else told_acceptance(changed, solved_with)

    def forget(self) -> None:
        """Have what was counted before say nothing of what comes."""
        self._text.outcomes = self._stretch = self._none
        self._variation.forget()
        self._begin_anew(self._none)
        self._shift = self._none.tried

    def _begin_anew(self, found: Outcomes) -> None:
        self._all, self._shift_sd = found, SHIFT_SD
        self._more, self._less = OneSided(self._none), OneSided(self._none)

    def solved(self) -> None:
        """Have what is known of all texts be what changes are noticed beside."""
        self._solved_shift = self._shift

    def all_texts(self, known: Float64) -> Learnt:
        """Return what is known of all texts.

        Args:
            known: (D, K), what the profile has of steps as those that are decoded.
        """
        return Learnt(self._all, known, sd=self._shift_sd)

    def this_text(self, known: Float64) -> Learnt:
        """Return what is known of this text: that of all texts, and what was counted in it."""
        return Learnt(self.of_text, known, before=self._shift, sd=self.variation.sd, alike=self.variation.alike)

    def expected(self, known: Float64) -> Float64:
        """Return (D, K): how often each rank is accepted once tried in a text of which nothing is known yet."""
        return shifted(known, self._shift)
