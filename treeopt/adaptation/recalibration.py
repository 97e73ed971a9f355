"""Re-calibration: a plan is compared with what decoding shows, and changed where another would be faster.

What it changes is how tokens are drafted, never what the text's distribution is.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from math import hypot, log, log1p
from time import perf_counter

from treeopt.adaptation.candidates import Candidates, Choice, measured_request
from treeopt.adaptation.change import Change
from treeopt.adaptation.counts import AgedOutcomes, Outcomes, Visits, told_acceptance
from treeopt.adaptation.estimate import Learnt, surprise
from treeopt.adaptation.learnt_profile import (
    learnt_acceptance,
    learnt_latency,
    learnt_profile,
    nearest_acceptance,
    nearest_latency,
)
from treeopt.adaptation.lookups import Lookups, measured_lookups
from treeopt.adaptation.missed import MissedSteps
from treeopt.adaptation.times import ExpectedSeconds, StepTimes
from treeopt.adaptation.ways import Way, shape_of, take
from treeopt.arguments import whole
from treeopt.arrays import Float64
from treeopt.errors import InvalidValueError
from treeopt.planner.planning import check_profile
from treeopt.planner.request import PlanRequest
from treeopt.records.profile import Machine, Profile
from treeopt.runtime.decoding.observer import DecodedStep, Steered, StepSeconds
from treeopt.runtime.drafters.prompt_lookup import PromptLookupSetting
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.trees import TokenTree

HALF_LIFE_STEPS = 384
"""After so many further steps one counts half."""
RECENT_STEPS = 32
"""The half-life of the outcomes that tell whether something changed."""
LOOK_STEPS, PLAIN_LOOK_STEPS = 16, 32
"""Steps between two looks at what was counted, and where nothing is drafted."""
FIRST_SOLVE_STEPS, SOLVE_STEPS = 64, 512
"""Steps after which is compared anew in any case: first after something changed, then twice as many each time, and at most."""
SURPRISE = 3.5
"""Standard errors by which recent outcomes are off where something changed."""
TIMES_CHANGED = 0.12
"""Change of a quotient of times, as a logarithm, that matters."""
SURE = 2.0
"""Standard errors by which another tree must be faster."""
LEAST_GAIN = 0.02
"""And at least by so much; twice that for the tree that was left last."""
TIME_NOISE = 0.01
"""Standard error of a predicted quotient of step times, as a logarithm."""
OWN_SHARE = 0.0025
"""Of the time that decoding takes, after what share solving has to wait, and after twice of it looking."""
HEAD_START_S = 0.03
"""And so much besides: what noticing the first change takes."""
READING_SHARE = 0.005
"""Likewise, while nothing is drafted, what having the draft model read the text may take."""
REPLAY_SHARE, REPLAY_START_S = 0.002, 0.01
"""Likewise, with a head start of its own, what walking prompt lookup along the text may take."""
LEAST_READING = 16
"""Tokens that are worth a reading."""
DEARER_READING = 1.25
"""By which factor a reading may be dearer than the one before: more is an interruption, and says nothing of the next."""
HINT, HINTED_PAUSE = 2.0, 0.25
"""After a reading that is so many standard errors off the next one comes soon: after such a share of the usual pause."""
MOST_MISSED, MOST_MISSED_NUMBERS = 24, 2**24
"""Tokens that it tells of at most, and numbers of distributions that are remembered for it."""
CONTEXT_CHANGED = 1.25
"""Change of the context, as a quotient, after which costs may be others."""
KEPT_CHANGES = 1000
KEPT_SAMPLES, KEPT_TREES = 64, 16
"""Times of steps that are kept of each of so many trees."""
ROOM_NODES = 64
"""Nodes that a decoder is to have room for, so that trees larger than the first can be changed to."""


class Recalibration:
    """An observer of decoding that keeps what drafts the fastest: `Decoder(…, on_step=Recalibration(profile))`.

    The decoder begins with the tree that it was made with, and changes to trees of at most its `max_nodes`, and to settings
    of prompt lookup that the profile measured for single texts.

    Args:
        profile: what was measured before.
        request: what the plan was made for: rule and temperature, by default the decoder's where they were measured, context
            and batch size.  Costs follow the context that decoding comes to.
        begin_with: setting of prompt lookup that drafts at first in place of the decoder's tree.
        half_life_steps: after so many further steps one counts half; of prompt lookup, after so many tokens.
        on_change: told of every change, a moment after it.
        now_s: the clock for what re-calibration itself takes.

    Raises InvalidValueError for what is no profile; on `attach` InvalidValueError for a decoder whose drafter brings trees
    of its own, InfeasibleError for a tree, a setting or conditions beyond what was measured.
    """

    def __init__(
        self,
        profile: Profile,
        request: PlanRequest | None = None,
        *,
        begin_with: PromptLookupSetting | None = None,
        half_life_steps: int = HALF_LIFE_STEPS,
        on_change: Callable[[Change], object] = lambda _: None,
        now_s: Callable[[], float] = perf_counter,
    ) -> None:
        check_profile(profile)
        self.profile = profile
        self._request = request or PlanRequest()
        self._begin_with = begin_with
        self._half_life_steps = whole("half_life_steps", half_life_steps, 1)
        self._on_change, self._now_s = on_change, now_s
        self._decoder: Steered | None = None
        self.changes: list[Change] = []
        """The latest, oldest first."""
        self.steps = self.texts = 0
        """Decoded so far."""
        self._text: int | None = None
        self._changed = False
        """Whether the next step is the first behind a change."""
        self._switch_s = 0.0
        """What the last change took."""
        self._samples: dict[Way, deque[StepSeconds]] = {}
        self.decoding_s = self.own_s = self.replay_s = self.reading_s = 0.0
        """Seconds of all steps; of looking, solving and changing; of that, of walking prompt lookup along the text; and of
        the draft model's reading while it drafted nothing."""

    def room_nodes(self, tree: TokenTree) -> int:
        """Return the nodes of the largest tree that is changed to, in a decoder that begins with a tree."""
        measured = max(each.verify.max_tokens for each in self.profile.step_latencies)
        first = 1 if self._begin_with is None else self._begin_with.max_nodes
        return max(tree.nodes, first, min(ROOM_NODES, measured))

    @property
    def shape(self) -> str:
        """The way in use, in words."""
        return shape_of(self.way)

    def attach(self, decoder: Steered) -> None:
        """Take a decoder; another one goes on with what drafts, and all that was learnt, at the last."""
        if not decoder.takes_trees:
            raise InvalidValueError(
                "on_step: expected a decoder whose draft model fills static trees. Got a drafter that brings its own: "
                "re-calibrate the draft model, with begin_with=… for prompt lookup, or leave Recalibration out."
            )
        first = self._decoder is None
        self._decoder = decoder
        most = min(MOST_MISSED, max(LEAST_READING, MOST_MISSED_NUMBERS // decoder.target.config.vocabulary))
        self._missed = MissedSteps(decoder, most)
        if first:
            self._begin(decoder)
        else:
            take(decoder, self.way)

    def __call__(self, step: DecodedStep) -> None:
        """Count a step, and now and then look at what was counted."""
        visits, told = self._visits, step.step
        self._lookups.note(step.text, step.tokens, told.tokens)
        if visits is not None:
            if step.proposal.tree is not visits.tree and step.proposal.tree != visits.tree:
                return  # of a text that was drafted before the tree changed, or has nothing to draft from yet
            if not told.cut:
                counts = visits.counts
                for node in told.path:
                    counts[node] += 1
        if not self._drafts:
            for node, token in zip(told.path, told.tokens, strict=True):
                self._missed.note(step.text, step.tokens, token, told.logits[node : node + 1])
        seconds = step.seconds
        if seconds is None:
            return
        if self._changed:
            self._changed = False
            self._switch_s += max(0.0, sum(seconds) - self._expected.step)  # what was missed is read in the first step
            self.decoding_s += sum(seconds)
            return
        if visits is None:  # looking up is part of what was measured beside the target's pass
            seconds = StepSeconds(0.0, seconds.verify, seconds.rest + seconds.draft)
        self.steps += 1
        self._since_look += 1
        self._context += len(step.tokens)
        self._times.note(seconds, self._expected)
        self._taken.append(seconds)
        if step.text != self._text:
            self._text = step.text
            self.texts += 1
        self.decoding_s += seconds.draft + seconds.verify + seconds.rest
        if self._since_look >= self._pause_steps and self._may_look():
            self._look()

    def learnt(self, *, created: str, tool: str, machine: Machine) -> Profile:
        """Return what was learnt as a profile: what was counted and timed, and for the rest what was measured before.

        Args:
            created: date and time, ISO 8601.
            tool: program and version.
            machine: where it was decoded.

        Raises TreeoptError where hardly any step drafted.
        """
        self._gather()
        candidates = self._candidates
        context, batch_size = candidates.costs.rounded(self._context_tokens), candidates.costs.batch_size
        before = nearest_acceptance(self.profile, candidates.rule, candidates.temperature, context)
        acceptance = learnt_acceptance(self._lasting.outcomes, before, texts=self.texts)
        number = nearest_latency(self.profile, candidates.temperature, batch_size, context)
        samples = {way: taken for way, taken in self._samples.items() if isinstance(way, TokenTree)}
        latency = learnt_latency(self.profile.latencies[number], samples, before.rule)
        found = learnt_profile(self.profile, acceptance, before, {number: latency})
        return replace(found, created=created, tool=tool, machine=machine)

    def _begin(self, decoder: Steered) -> None:
        self._candidates = candidates = Candidates(
            self.profile, measured_request(self.profile, self._request, decoder), decoder.tree, decoder.max_nodes
        )
        shape = candidates.depths, candidates.ranks
        self._recent, self._lasting = AgedOutcomes(RECENT_STEPS, *shape), AgedOutcomes(self._half_life_steps, *shape)
        self._times = StepTimes(RECENT_STEPS)
        self._since_look = self._since_solved = self._context = 0
        self._context_tokens: int | None = None
        self._solved_context = candidates.costs.rounded(None)
        self._solved_drafting = 1.0
        measured = measured_lookups(self.profile, candidates.costs, candidates.sampling, decoder.max_nodes)
        self._lookups = Lookups(measured, candidates.costs, self._half_life_steps)
        self._left: Way | None = None
        self._solve_steps = SOLVE_STEPS
        self._last_reading_s = self._reading_pause_s = 0.0
        self._take(self._first(decoder))
        self._usual_reading_s = self._expected.step  # at first: the draft model reads faster than the target decodes
        self._expect(self._known)
        self._speed, faster = self._faster(Learnt(self._lasting.outcomes, self._known))
        next(faster, None)

    def _first(self, decoder: Steered) -> Way:
        """Return what drafts at first, and have the decoder draft so; raises InfeasibleError for what was not measured."""
        if self._begin_with is None:
            return decoder.tree
        self._lookups.check(self._begin_with)
        take(decoder, self._begin_with)
        return self._begin_with

    def _faster(self, learnt: Learnt, *, solve_anew: bool = True) -> tuple[float, Iterator[Choice]]:
        """Return the tokens per second of the way in use and the faster ones; see `Candidates.faster`."""
        rates = self._lookups.rates(self._context_tokens)
        lookups = [each for each in rates if each.way == self.way or self._lookups.known(each.way)]
        return self._candidates.faster(
            learnt, self._times, self.way, self._context_tokens, lookups=lookups, solve_anew=solve_anew
        )

    def _take(self, way: Way) -> None:
        """Count the steps that are drafted in a way from now on."""
        self.way = way
        """What drafts now."""
        self._taken = self._samples.pop(way, deque(maxlen=KEPT_SAMPLES))
        self._samples[way] = self._taken
        while len(self._samples) > KEPT_TREES:
            self._samples.pop(next(iter(self._samples)))
        tree = way if isinstance(way, TokenTree) else ROOT_ALONE  # as far as the draft model's work goes
        shape = self._candidates.depths, self._candidates.ranks
        self._visits = Visits(tree, *shape) if way is tree else None
        self._known = self._candidates.known(tree)
        self._drafts = tree.nodes > 1
        self._pause_steps = PLAIN_LOOK_STEPS if way == ROOT_ALONE else LOOK_STEPS
        self._expected: ExpectedSeconds = self._expected_of(way)

    def _expected_of(self, way: Way) -> ExpectedSeconds:
        """Return what a step is expected to take at the context that decoding has come to."""
        if isinstance(way, TokenTree):
            return self._candidates.costs.expected(way, self._context_tokens)
        return self._lookups.expected(way, self._context_tokens)

    def _expect(self, expected: Float64) -> None:
        """Note what was solved with, to notice what differs from it."""
        self._solved_with = expected
        self._since_solved = 0
        self._solved_context = self._candidates.costs.rounded(self._context_tokens)
        self._solved_drafting = self._times.drafting
        self._lookups.solved(self._context_tokens)

    def _may_look(self) -> bool:
        return self.own_s - self.replay_s <= 2 * (HEAD_START_S + OWN_SHARE * self.decoding_s)

    def _look(self) -> None:
        """Add what was counted to what is known, and solve anew where it does not fit what was solved with."""
        start_s, read_s = self._now_s(), self.reading_s
        self._replay()
        self._gather()
        why = self._reason()
        if why is not None:
            self._solve(why)
        self.own_s += self._now_s() - start_s - (self.reading_s - read_s)

    def _gather(self) -> None:
        """Add what was counted since the last look, and follow the context."""
        steps, self._since_look = self._since_look, 0
        if steps == 0:
            return
        self._since_solved += steps
        found = self._visits.take() if self._visits is not None and self._drafts else self._read()
        self._recent.add(found if self._drafts else found.at_most(RECENT_STEPS), steps)
        self._lasting.add(found, steps)
        self._times.take(self.way, steps, self._expected)
        self._context_tokens, self._context = self._context // steps, 0
        self._expected = self._expected_of(self.way)

    def _replay(self) -> None:
        """Walk prompt lookup along the text that is new, where there is enough of it and it is time to."""
        start_s = self._now_s()
        if self._lookups.waiting and self.replay_s <= REPLAY_START_S + REPLAY_SHARE * self.decoding_s:
            self._lookups.walk()
            self.replay_s += self._now_s() - start_s

    def _read(self) -> Outcomes:
        """Return what the draft model would have been worth, where it is time to have it read the text."""
        shape = self._candidates.depths, self._candidates.ranks
        if self.decoding_s - self._last_reading_s < self._reading_pause_s or len(self._missed) < LEAST_READING:
            return Outcomes.none(*shape)
        start_s = self._now_s()
        found = self._missed.outcomes(*shape)
        took_s = self._now_s() - start_s
        self.reading_s += took_s
        self._usual_reading_s = min(took_s, DEARER_READING * self._usual_reading_s)
        share = HINTED_PAUSE if surprise(found, self._solved_with) > HINT else 1.0
        self._last_reading_s, self._reading_pause_s = self.decoding_s, share * self._usual_reading_s / READING_SHARE
        return found

    def _reason(self) -> str | None:
        """Return what was counted that does not fit what was solved with, None where all does."""
        if surprise(self._recent.outcomes, self._solved_with) > SURPRISE:
            self._lasting.outcomes = self._recent.outcomes  # what was before the change says nothing now
            self._solve_steps = FIRST_SOLVE_STEPS
            return f"acceptance: {told_acceptance(self._recent.outcomes, self._solved_with)}"
        if abs(log(self._times.drafting / self._solved_drafting)) > TIMES_CHANGED:
            return f"times: drafting takes {self._times.drafting:.2f} times as long beside the target as in the profile"
        context = self._candidates.costs.rounded(self._context_tokens)
        if not 1 / CONTEXT_CHANGED <= (context + 1) / (self._solved_context + 1) <= CONTEXT_CHANGED:
            return f"context: {context} tokens, solved for {self._solved_context}"
        moved = self._lookups.moved(self._context_tokens, self._speed)
        if moved is not None:
            self._solve_steps = FIRST_SOLVE_STEPS
            return moved
        if self._since_solved >= self._solve_steps:
            return f"{self._since_solved} steps since it was solved last"
        return None

    def _solve(self, why: str) -> None:
        """Solve with what is known now, and change what drafts where that pays."""
        learnt = Learnt(self._lasting.outcomes, self._known)
        spent_s = self.own_s - self.replay_s
        anew = self._solve_steps < SOLVE_STEPS and spent_s <= HEAD_START_S + OWN_SHARE * self.decoding_s
        self._speed, faster = self._faster(learnt, solve_anew=anew)
        # While nothing is drafted, a tree that is surely faster tells more than waiting for the fastest to be sure.
        choice = next(filter(self._pays, islice(faster, 1 if self._drafts else None)), None)
        self._solve_steps = min(SOLVE_STEPS, 2 * self._solve_steps)
        if choice is not None:
            self._speed = choice.speed
            self._change(choice, why)
            learnt = Learnt(self._lasting.outcomes, self._known)
        self._expect(learnt.expected)

    def _pays(self, choice: Choice) -> bool:
        """Return whether a way is faster by more than noise, the change to it paid for."""
        least = LEAST_GAIN * (2 if choice.way == self._left else 1)
        saved_s = choice.gain / (1 + choice.gain) * self._half_life_steps * self._expected.step
        sure = log1p(choice.gain) > SURE * hypot(choice.noise, TIME_NOISE)
        return choice.gain > least and sure and saved_s > self._switch_s

    def _change(self, choice: Choice, why: str) -> None:
        assert self._decoder is not None  # steps come from one
        before, start_s = self.way, self._now_s()
        take(self._decoder, choice.way)
        self._switch_s = self._now_s() - start_s
        self._changed = True
        self._left = before
        self._solve_steps = FIRST_SOLVE_STEPS
        self._recent.outcomes = Outcomes.none(self._candidates.depths, self._candidates.ranks)
        self._take(choice.way)
        self._last_reading_s, self._reading_pause_s = self.decoding_s, 0.0
        self._missed.forget()
        change = Change(
            step=self.steps,
            why=why,
            before=before,
            after=choice.way,
            gain=choice.gain,
            noise=hypot(choice.noise, TIME_NOISE),
            tokens_per_step=choice.tokens_per_step,
            step_s=choice.step_s,
            switch_s=self._switch_s,
        )
        self.changes.append(change)
        del self.changes[:-KEPT_CHANGES]
        self._on_change(change)
