"""Which way is the fastest over all texts, the usual way, and which one in this text, with what is known of both."""

from collections.abc import Callable, Iterator
from math import log, log1p

from treeopt.adaptation.candidates import Candidates, Choice, Worth
from treeopt.adaptation.estimate import Learnt
from treeopt.adaptation.lookups import Lookups
from treeopt.adaptation.texts import TEXT_STEPS, TextOutcomes
from treeopt.adaptation.times import ExpectedSeconds, StepTimes
from treeopt.adaptation.ways import Rated, Way
from treeopt.arrays import Float64
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.trees import TokenTree, chain

SURE = 2.0
"""Standard errors by which another way must be faster."""
LEAST_GAIN, LEAST_TEXT_GAIN = 0.03, 0.1
"""And at least by so much, twice that for the usual way that was left last; for one text, at whose end it is over."""
TIMES_CHANGED = 0.12
"""Change of a quotient of times, as a logarithm, that matters."""
CONTEXT_CHANGED = 0.1
"""Change of a chain's step beside one without drafts, as a logarithm, after which another way may be the fastest."""
CHAIN_LENGTH = 4
"""Of that chain."""
Rates = Callable[[int | None], list[Rated]]
"""Of a context, what the settings of prompt lookup come to."""


class Comparison:
    """The ways, compared with the one in use and with the usual one.

    Args:
        candidates: all trees.
        texts: what was accepted.
        times: what steps took.
        lookups: settings of prompt lookup.
        way: what drafts at first; it is the usual way, too.
        half_life_steps: for how long the usual way is changed.
    """

    def __init__(
        self,
        candidates: Candidates,
        texts: TextOutcomes,
        times: StepTimes,
        lookups: Lookups,
        way: Way,
        half_life_steps: int,
    ) -> None:
        self._candidates, self._texts, self._times, self._lookups = candidates, texts, times, lookups
        self._half_life_steps = half_life_steps
        self.way = self.usual = way
        """What drafts, and what is the fastest over all texts as far as is known."""
        self.context_tokens: int | None = None
        """That decoding has come to."""
        self.switch_s = 0.0
        """What the last change took."""
        self.uncertain = False
        """Whether something may be faster in this text, and was not sure when it was compared last."""
        self._left: Way | None = None
        self._chain = chain(min(CHAIN_LENGTH, candidates.max_nodes - 1))
        self._fastest()
        self.solved()

    @property
    def known(self) -> Float64:
        """(D, K): what the profile has of steps as they are drafted now."""
        return self._candidates.known(self.way if isinstance(self.way, TokenTree) else ROOT_ALONE)

    @property
    def away(self) -> bool:
        """Whether this text is drafted in another than the usual way."""
        return self.way != self.usual

    def expected(self) -> ExpectedSeconds:
        """Return what a step is expected to take now."""
        if isinstance(self.way, TokenTree):
            return self._candidates.costs.expected(self.way, self.context_tokens)
        return self._lookups.expected(self.way, self.context_tokens)

    def reason(self) -> str | None:
        """Return in words which times are not what the usual way was solved with, None where none."""
        if abs(log(self._times.drafting / self._solved_drafting)) > TIMES_CHANGED:
            return f"times: drafting takes {self._times.drafting:.2f} times as long beside the target as in the profile"
        if abs(self._chain_cost() - self._solved_chain_cost) > CONTEXT_CHANGED:
            return f"context: {self._candidates.costs.rounded(self.context_tokens)} tokens"
        return None

    def moved(self) -> str | None:
        """Return in words how prompt lookup differs from when ways were compared last; see `Lookups.moved`."""
        return self._lookups.moved(self.context_tokens, self._speed if isinstance(self.way, TokenTree) else 0.0)

    def for_all(self, *, anew: bool) -> Choice | None:
        """Take what is the fastest over all texts for the usual way where that pays, and return what to change to now.

        Args:
            anew: whether there is time to solve; see `Candidates.faster`.
        """
        usual = self.usual
        learnt, rates = self._texts.all_texts(self.known), self._lookups.in_all_texts
        faster = self._faster(learnt, rates, usual, lambda _, gain: gain > LEAST_GAIN, anew=anew)
        choice = next(filter(self._pays, faster), None)
        if choice is not None:
            self._left, self.usual = usual, choice.way
            if self.way != usual:  # this text is drafted in a way of its own
                choice = self.back()
        self.solved()
        return choice

    def for_text(self, least_gain: float, *, anew: bool) -> Choice | None:
        """Return the fastest way in this text where it gains so much, by more than noise, the change to it paid for."""
        learnt, rates = self._texts.this_text(self.known), self._lookups.in_this_text
        faster = list(self._faster(learnt, rates, self.way, lambda _, gain: gain > least_gain, anew=anew))
        choice = next((each for each in faster if _sure(each) and self._saves(each, TEXT_STEPS)), None)
        self.uncertain = bool(faster) and choice is not faster[0]
        self._lookups.solved(self.context_tokens)
        return choice

    def back(self) -> Choice | None:
        """Return the usual way where it is likelier than not faster in this text: all others speak for it."""
        if not self.away:
            return None
        learnt = self._texts.this_text(self.known)
        rates = self._fitting(self._lookups.in_this_text)
        choice = self._candidates.gain(learnt, self._times, self.way, self.usual, self.context_tokens, lookups=rates)
        return choice if choice.gain > 0 else None

    def planned(self) -> Choice | None:
        """Take the plan for what was measured for the usual way, however sure; return it where it is not in use."""
        choice = self._fastest()
        if choice is not None:
            self.usual = choice.way
        return choice

    def solved(self) -> None:
        """Note what was solved with, to notice what differs from it."""
        self._texts.solved()
        self._solved_drafting, self._solved_chain_cost = self._times.drafting, self._chain_cost()
        self._lookups.solved(self.context_tokens)

    def _faster(self, learnt: Learnt, rates: Rates, current: Way, worth: Worth, *, anew: bool) -> Iterator[Choice]:
        self._speed, faster = self._candidates.faster(
            learnt, self._times, current, self.context_tokens, worth, lookups=self._fitting(rates), solve_anew=anew
        )
        return faster

    def _fastest(self) -> Choice | None:
        learnt, rates = self._texts.all_texts(self.known), self._lookups.in_all_texts
        return next(self._faster(learnt, rates, self.way, lambda *_: True, anew=True), None)

    def _fitting(self, rates: Rates) -> list[Rated]:
        """Return what the settings of prompt lookup come to that may be changed to."""
        found = rates(self.context_tokens)
        return [each for each in found if each.way in (self.way, self.usual) or self._lookups.known(each.way)]

    def _chain_cost(self) -> float:
        """Return the logarithm of the step with a chain beside one without drafts, at this context."""
        expected = self._candidates.costs.expected
        return log(expected(self._chain, self.context_tokens).step / expected(ROOT_ALONE, self.context_tokens).step)

    def _pays(self, choice: Choice) -> bool:
        """Return whether a way is faster over all texts by more than noise, the change to it paid for."""
        least = LEAST_GAIN * (2 if choice.way == self._left else 1)
        return choice.gain > least and _sure(choice) and self._saves(choice, self._half_life_steps)

    def _saves(self, choice: Choice, steps: int) -> bool:
        """Return whether a way saves more over so many steps than the last change took."""
        return choice.gain / (1 + choice.gain) * steps * self.expected().step > self.switch_s


def _sure(choice: Choice) -> bool:
    return log1p(choice.gain) > SURE * choice.noise
