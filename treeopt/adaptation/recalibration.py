"""Re-calibration: a plan is compared with what decoding shows, and changed where another would be faster.

What it changes is how tokens are drafted, never what the text's distribution is.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from time import perf_counter

from treeopt.adaptation.candidates import Candidates, Choice, measured_as, measured_request, measured_tree
from treeopt.adaptation.change import Change
from treeopt.adaptation.comparison import LEAST_GAIN, LEAST_TEXT_GAIN, Comparison
from treeopt.adaptation.counts import AgedOutcomes, Visits, told_acceptance
from treeopt.adaptation.learnt_profile import learnt_profile
from treeopt.adaptation.looks import Looks
from treeopt.adaptation.lookups import Lookups, lookups_of_each_length, measured_lookups
from treeopt.adaptation.own_time import OwnTime
from treeopt.adaptation.readings import READING_SHARE, SPARING_SHARE, Readings
from treeopt.adaptation.texts import LEAST_TRIED, TextOutcomes
from treeopt.adaptation.times import ExpectedSeconds, StepSamples, StepTimes
from treeopt.adaptation.variation import Variation
from treeopt.adaptation.ways import Way, take
from treeopt.arguments import whole
from treeopt.errors import InvalidValueError
from treeopt.planner.planning import check_profile
from treeopt.planner.request import PlanRequest, Where
from treeopt.records.machine import Machine
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.observer import DecodedStep, Steered, StepSeconds
from treeopt.runtime.drafters.recurring import ROOT_ALONE
from treeopt.trees import TokenTree
from treeopt.trees.own_trees import PromptLookupSetting

HALF_LIFE_STEPS = 384
"""After so many further steps one counts half."""
TIMES_STEPS = 32
"""The half-life of what steps took."""
STRETCH_STEPS = 256
"""So much of a long text counts as a text."""
ODD, ODD_AWAY = 2.0, 1.0
"""Standard errors by which a text is off what was expected of it, where ways are compared for it, and where it is drafted
in another than the usual way."""
SURER = 2.0
"""Where something may be faster and was not sure, ways are compared again when so many times as much was counted."""
KEPT_CHANGES = 1000
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
        half_life_steps: after so many further steps one counts half.
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
        self._sampling: Sampling | None = None
        """The decoder's, when it was attached."""
        self.changes: list[Change] = []
        """The latest, oldest first."""
        self.texts = self._steps = 0
        self._text: int | None = None
        self._changed = False
        """Whether the next step is the first behind a change."""
        self._taken: list[StepSeconds] = []
        """Of the steps since the last look, all in the way in use."""
        self.time = OwnTime(now_s)

    def room_nodes(self, tree: TokenTree) -> int:
        """Return the nodes of the largest tree that is changed to, in a decoder that begins with a tree."""
        measured = max(each.verify.max_tokens for each in self.profile.step_latencies)
        first = 1 if self._begin_with is None else self._begin_with.max_nodes
        return max(tree.nodes, first, min(ROOM_NODES, measured))

    @property
    def steps(self) -> int:
        """Decoded so far."""
        return self._steps + len(self._taken)

    @property
    def reading_s(self) -> float:
        """Seconds that the draft model read while it drafted nothing."""
        return 0.0 if self._decoder is None else self._readings.taken_s

    @property
    def way(self) -> Way:
        """What drafts now."""
        return self._ways.way

    def attach(self, decoder: Steered) -> None:
        """Take a decoder; another one goes on with what drafts, and all that was learnt, at the last."""
        if not decoder.takes_trees:
            raise InvalidValueError(
                "on_step: expected a decoder whose draft model fills static trees. Got a drafter that brings its own: "
                "re-calibrate the draft model, with begin_with=… for prompt lookup, or leave Recalibration out."
            )
        before, self._decoder = self._decoder, decoder
        sampled_before, self._sampling = self._sampling, decoder.sampling
        if before is None:
            self._begin(decoder, self._request, self._begin_with)
            if not measured_as(self._candidates.measured, decoder):
                self._forget()
        else:
            self._begin_text(None)  # its texts are others, whatever their numbers
            take(decoder, self.way)
            self._readings.attach(decoder)
            if decoder.sampling != sampled_before:
                self._sample_otherwise(decoder)
            elif decoder.draft_model is not before.draft_model:
                self._forget()

    def __call__(self, step: DecodedStep) -> None:
        """Count a step, and now and then look at what was counted."""
        seconds, told = step.seconds, step.step
        if seconds is not None and step.text != self._text:
            self._begin_text(step.text)
        visits = self._visits
        self._lookups.note(step.text, step.tokens, told.tokens)
        if visits is not None:
            if step.proposal.tree is not visits.tree and step.proposal.tree != visits.tree:
                return  # of a text that was drafted before the tree changed, or has nothing to draft from yet
            if self._drafts and not told.cut:
                visits.paths.append(told.path)
        if not self._drafts:
            for node, token in zip(told.path, told.tokens, strict=True):
                self._readings.note(step.text, step.tokens, token, told.logits, node)
        if seconds is None:
            return
        self.time.decoding_s += seconds.draft + seconds.verify + seconds.rest
        if self._changed:
            self._changed = False
            self._ways.switch_s += max(0.0, sum(seconds) - self._expected.step)  # in which what was missed is read
            return
        if visits is None:  # looking up is part of what was measured beside the target's pass
            seconds = StepSeconds(0.0, seconds.verify, seconds.rest + seconds.draft)
        self._taken.append(seconds)
        self._context += len(step.tokens)
        if len(self._taken) >= self._looks.pause_steps and self.time.may_look:
            with self._own_time():
                self._look()

    def learnt(self, *, created: str, tool: str, machine: Machine) -> Profile:
        """Return what was learnt as a profile: what was counted and timed, and for the rest what was measured before.

        Args:
            created: date and time, ISO 8601.
            tool: program and version.
            machine: where it was decoded.

        Raises TreeoptError where hardly any step drafted.
        """
        assert self._decoder is not None  # steps come from one
        self._gather()
        costs = self._candidates.costs
        found = learnt_profile(
            self.profile,
            self._decoder,
            self._counted.outcomes,
            self._samples.of_trees(),
            rule=self._candidates.rule,
            texts=self.texts - self._texts_before,
            where=Where(context_tokens=costs.rounded(self._ways.context_tokens), batch_size=costs.batch_size),
        )
        return replace(found, created=created, tool=tool, machine=machine)

    def _begin(self, decoder: Steered, request: PlanRequest, begin_with: PromptLookupSetting | None) -> None:
        """Begin with what was measured, and with a decoder's tree or a setting of prompt lookup."""
        self._candidates = candidates = Candidates(
            self.profile, measured_request(self.profile, request, decoder), decoder.tree, decoder.max_nodes
        )
        candidates.prepare()
        shape = candidates.depths, candidates.ranks
        self._counted = AgedOutcomes(self._half_life_steps, *shape)
        self._texts = TextOutcomes(Variation.of(candidates.accepted_ranks), *shape)
        self._times, self._samples, self._texts_before = StepTimes(TIMES_STEPS), StepSamples(), self.texts
        self._since_stretch = self._context = 0
        self._looks = Looks()
        measured = measured_lookups(self.profile, candidates.costs, candidates.sampling, decoder.max_nodes)
        settings = lookups_of_each_length(measured, candidates.max_nodes, begin_with)
        self._lookups = Lookups(settings, candidates.costs)
        if begin_with is not None:
            self._lookups.check(begin_with)
            take(decoder, begin_with)
        self._ways = Comparison(
            candidates, self._texts, self._times, self._lookups, begin_with or decoder.tree, self._half_life_steps
        )
        self._take()
        self._readings = Readings(self._expected.step, self._now_s)  # the draft reads faster than the target decodes
        self._readings.attach(decoder)
        self._expected_of_text = self._ways.known
        self._compared_tried = 0.0
        """Outcomes of this text when ways were compared for it last."""

    def _sample_otherwise(self, decoder: Steered) -> None:
        """Go on with the plan for a decoder's sampling, where it was measured; else what was counted says nothing of it."""
        measured = [each for each in self.profile.acceptances if measured_as(each, decoder)]
        if not measured:
            self._forget()
            return
        found = next((each for each in measured if each.rule == self._candidates.rule), measured[0])
        take(decoder, measured_tree(self.way, found))
        self._begin(decoder, replace(self._request, rule=found.rule, temperature=found.temperature), None)
        if (choice := self._ways.planned()) is not None:
            self._change(choice, f"sampling: temperature {found.temperature:g}, which was measured too")

    def _forget(self) -> None:
        """Have what was measured and counted be where knowledge begins, and little of it certain."""
        self._samples, self._texts_before = StepSamples(), self.texts
        self._texts.forget()
        self._counted.outcomes = self._texts.of_text
        self._lookups.forget()
        self._expect_text()
        self._looks.changed()
        self.time.changed()
        self._next_text()
        self._readings.sooner()

    def _take(self) -> None:
        """Count the steps that are drafted in the way in use from now on."""
        way = self.way
        shape = self._candidates.depths, self._candidates.ranks
        self._visits = Visits(way, *shape) if isinstance(way, TokenTree) else None
        self._drafts = isinstance(way, TokenTree) and way.nodes > 1
        self._looks.soon(drafts=self._drafts)
        self._expected: ExpectedSeconds = self._ways.expected()

    def _begin_text(self, text: int | None) -> None:
        """Count the text that ended among all, and be ready for one that is unlike it; None where none begins yet."""
        if self._text is not None:
            with self._own_time():
                self._end_text()
        self._text = text
        self.texts += text is not None

    def _next_text(self) -> None:
        if self._looks.next_text() or self._ways.away:
            self._looks.soon(drafts=self._drafts)

    def _end_text(self) -> None:
        self._replay()
        self._gather()
        why = self._end_stretch()
        self._texts.end_text()
        self._lookups.end_text()
        self._compared_tried = 0.0
        if why is not None and self.time.may_look:
            self._solve(why)
        self._next_text()
        if self._ways.away:
            self._readings.sooner()

    def _own_time(self) -> AbstractContextManager[None]:
        """Count what is done meanwhile as re-calibration's own time."""
        return self.time.counted(lambda: self._readings.taken_s)

    def _look(self) -> None:
        """Add what was counted to what is known, and compare ways anew where it does not fit what was expected."""
        self._replay()
        self._gather()
        why, long = self._ways.reason(), self._since_stretch >= STRETCH_STEPS
        if long:
            why = self._end_stretch() or why
        if why is not None:
            self._solve(why)
        if long:
            self._compare(f"this text: {STRETCH_STEPS} steps of it", LEAST_GAIN, anew=True)
        else:
            self._follow_text()

    def _gather(self) -> None:
        """Add what was counted since the last look, and follow the context."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        steps = len(taken)
        self._steps += steps
        self._since_stretch += steps
        self._looks.looked()
        if self._visits is not None and self._drafts:
            found = self._visits.take()
        else:
            share = READING_SHARE if self.way == ROOT_ALONE else SPARING_SHARE
            found = self._readings.read(self._expected_of_text, self.time.decoding_s, share)
        self._texts.add(found, steps, self._expected_of_text)
        self._counted.add(found, steps)
        self._times.add(self.way, taken, self._expected)
        self._samples.add(self.way, taken)
        self._ways.context_tokens, self._context = self._context // steps, 0
        self._expected = self._ways.expected()

    def _replay(self) -> None:
        """Walk prompt lookup along the text that is new, where there is enough of it and it is time to."""
        if self._lookups.waiting and self.time.may_replay:
            with self.time.replay():
                self._lookups.walk()

    def _end_stretch(self) -> str | None:
        """Count a text, or so much of a long one, among all; return why ways are to be compared anew, None where not."""
        self._since_stretch = 0
        due = self._looks.end_stretch()
        changed, of_lookups = self._texts.end_stretch(self._ways.known), self._lookups.end_stretch()
        if changed is None and of_lookups is None:
            return due
        self._looks.changed()
        self.time.changed()
        if changed is None:
            return f"texts: {of_lookups}"
        self._counted.outcomes = self._texts.of_text
        return f"acceptance: {changed}"

    def _solve(self, why: str) -> None:
        """Solve for what all texts are like."""
        self._looks.solved()
        choice = self._ways.for_all(anew=self.time.may_solve)
        if choice is not None:
            self._change(choice, why)
            self._expect_text()

    def _follow_text(self) -> None:
        """Have this text drafted in a way of its own where it is unlike the others, and in the usual one where it is not."""
        seen, moved = self._texts.of_text, self._ways.moved()
        tried = float(seen.tried[:, 0].sum())
        odd = self._texts.odd(seen, self._expected_of_text) if tried >= LEAST_TRIED else 0.0
        surer = self._ways.uncertain and tried >= max(LEAST_TRIED, SURER * self._compared_tried)
        if moved is not None or odd > ODD or surer:
            self._compared_tried = tried
            self._compare(moved or self._told_text(), LEAST_TEXT_GAIN, anew=False)
        elif odd > ODD_AWAY and (choice := self._ways.back()) is not None:
            self._change(choice, self._told_text())
            self._expect_text()

    def _compare(self, why: str, least_gain: float, *, anew: bool) -> None:
        """Compare ways for this text."""
        choices = [self._ways.back(), self._ways.for_text(least_gain, anew=anew) if self.time.may_solve else None]
        choice = max((each for each in choices if each is not None), key=lambda each: each.gain, default=None)
        if choice is not None:
            self._change(choice, why)
        self._expect_text()

    def _expect_text(self) -> None:
        """Note what is known of this text, to notice what differs from it."""
        self._expected_of_text = self._texts.this_text(self._ways.known).expected

    def _told_text(self) -> str:
        return f"this text: {told_acceptance(self._texts.of_text, self._expected_of_text)}"

    def _change(self, choice: Choice, why: str) -> None:
        assert self._decoder is not None  # steps come from one
        before, start_s = self.way, self._now_s()
        take(self._decoder, choice.way)
        self._ways.way, self._ways.switch_s = choice.way, self._now_s() - start_s
        self._changed = True
        self._take()
        self._readings.begin(self.time.decoding_s)
        change = Change(
            step=self.steps,
            why=why,
            before=before,
            after=choice.way,
            gain=choice.gain,
            noise=choice.noise,
            tokens_per_step=choice.tokens_per_step,
            step_s=choice.step_s,
            switch_s=self._ways.switch_s,
        )
        self.changes.append(change)
        del self.changes[:-KEPT_CHANGES]
        self._on_change(change)
