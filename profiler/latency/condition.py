"""The times of a profile under one condition: passes of every size, and whole steps under every rule."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from treeopt.profiler.clock import Work
from treeopt.profiler.latency.busy import LoadReader, threads_on
from treeopt.profiler.latency.curve import Curve, Passes
from treeopt.profiler.latency.effort import ROUNDS_PER_BLOCK, Effort, FixedEffort, TimeBudget
from treeopt.profiler.latency.passes import ROOM_TOKENS, PassTimer, graphs_of, step_timer
from treeopt.profiler.latency.rounds import Step
from treeopt.profiler.latency.steps import Steps
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.profiler.latency.watch import Watch, Watched
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.sampling import draft_sampling_of
from treeopt.records.steadiness import FEWEST_SAMPLES
from treeopt.records.step_latency import StepLatency
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.rules import rule_named
from treeopt.trees import chain

WIDTHS_BEFORE = (1, 2, 1)
"""Draft passes between a verification and the next, which leave the hardware's caches as decoding finds them."""


class Times:
    """Times the passes and steps of one pair under one condition.

    Args:
        target, draft: the models; None for a target alone, of which only verification is timed.
        text: the context, and ROOM_TOKENS behind it.
        condition: see `TimedCondition`.
        settings: how much to measure.
        recorder: what times the calls, and where samples go.
        budget_s: seconds to measure for, or None for the rounds of the settings.
        load: tells what other programs use meanwhile; None where nobody looks.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        text: Sequence[int],
        condition: TimedCondition,
        settings: Settings,
        recorder: Recorder,
        *,
        budget_s: float | None,
        load: LoadReader | None = None,
    ) -> None:
        self._target, self._draft = target, draft
        self._text = text
        self._context = text[: condition.context_tokens]
        self._condition = condition
        self._settings = settings
        self._clock, self._journal = recorder.clock, recorder.journal
        self._kinds = [condition.kind(what) for what in ("verify", "draft", "step")]
        self._watch = None if load is None else Watch(self._journal, self._kinds, load)
        self._watched = Watched(
            self._journal, threads=threads_on(target.device), enough=min(FEWEST_SAMPLES, settings.rounds)
        )
        self._recorder = replace(recorder, tick=partial(self._after_call, recorder.tick), watched=self._watched)
        self._effort: Effort = FixedEffort(settings.rounds) if budget_s is None else TimeBudget(budget_s, self._spent_s)

    def measure(self) -> StepLatency:
        """Time all that the journal does not hold yet."""
        verify, steps = self._verify_curve(), None
        timed: list[Curve | Steps] = [verify]
        if self._draft is not None:
            drafted, steps = self._draft_curve(self._draft), self._steps(self._draft)
            timed += [drafted, steps]
        self._pilot([each for each in timed if isinstance(each, Curve)])
        rounds = 0
        while (more := self._effort.next_rounds(rounds)) is not None:
            rounds = more  # verify, draft and steps take turns, so that drift hits all alike
            for each in timed:
                if isinstance(each, Curve) and self._effort.adds_points:
                    each.bend(rounds, least_error=self._effort.least_error)
                each.sample(rounds)
                if isinstance(each, Curve):
                    each.close()
        self._time_again(timed, rounds)
        latency = StepLatency(
            context_tokens=self._condition.context_tokens,
            batch_size=self._condition.batch_size,
            verify=verify.table(),
            sampled=not self._condition.sampling.greedy,
            limit_tokens=verify.limit_tokens,
            disturbance=self._watched.disturbance(self._kinds),
        )
        if steps is None:
            return latency
        draft = drafted.table()
        overheads = steps.overheads(latency.verify, draft)
        return replace(
            latency,
            draft=draft,
            overhead=overheads[0].overhead,
            rule_overheads=overheads if len(overheads) > 1 else (),
            steps=steps.timed(),
        )

    def _pilot(self, curves: Sequence[Curve]) -> None:
        """Find out roughly how the curves run, and add counts where they bend."""
        for number, curve in enumerate(curves, start=1):
            curve.pilot(self._settings.rounds)
            share = number / len(curves)
            while self._effort.wants_point(curve.added, share):
                if not curve.bend(self._settings.rounds, least_error=self._effort.least_error):
                    break
            curve.close()

    def _time_again(self, timed: Sequence[Curve | Steps], rounds: int) -> None:
        """Time again what other programs disturbed, as long as there are quiet moments to do so."""
        extra_rounds, known = self._effort.extra_rounds, 0
        for had in range(0, extra_rounds, ROUNDS_PER_BLOCK):
            quiet, fewest = self._watched.quiet_calls(self._kinds), min(each.fewest_undisturbed for each in timed)
            if quiet == known or fewest >= rounds:
                return
            known = quiet
            for each in timed:
                each.sample_again(min(fewest + ROUNDS_PER_BLOCK, fewest + extra_rounds - had, rounds))
                if isinstance(each, Curve):
                    each.close()

    def _after_call(self, step: Step) -> None:
        if self._watch is not None:
            self._watch.look()
        step()

    def _verify_curve(self) -> Curve:
        return self._curve("verify", self._verify_passes, open_single=self._plain_steps)

    def _draft_curve(self, draft: LanguageModel) -> Curve:
        return self._curve("draft", lambda: Passes(self._draft_work(draft)))

    def _curve(
        self, what: str, open_passes: Callable[[], Passes], open_single: Callable[[], Passes] | None = None
    ) -> Curve:
        most = self._settings.max_tokens
        return Curve(self._condition.kind(what), open_passes, most, self._recorder, open_single=open_single)

    def _pass_timer(self, model: LanguageModel) -> PassTimer:
        settings, condition = self._settings, self._condition
        return PassTimer(model, self._text, condition.batch_size, settings.max_tokens, cuda_graphs=settings.cuda_graphs)

    def _verify_passes(self) -> Passes:
        """Return the target's passes, each after some of the draft model's where there is one."""
        target, drafted = self._pass_timer(self._target), list[Work]()
        if self._draft is not None:
            draft_work = self._draft_work(self._draft)
            drafted = [draft_work(width) for width in WIDTHS_BEFORE if width <= self._settings.max_tokens]

        def draft_some(_: int) -> None:
            for work in drafted:
                work()

        return Passes(partial(target.verify, sampling=self._condition.sampling), between=draft_some)

    def _draft_work(self, model: LanguageModel) -> Callable[[int], Work]:
        """Return what makes the work of drafting a level of some width."""
        settings, sampling = self._settings, self._condition.sampling
        rule = rule_named(settings.rules[0], lossy=True)
        drawn_by = draft_sampling_of(sampling, settings.own_draft_sampling(sampling))
        draft = self._pass_timer(model)
        return cache(lambda width: draft.draft(width, drawn_by, rule))

    def _plain_steps(self) -> Passes:
        """Return whole steps of plain decoding, which the first count of the curve is timed by."""
        decoder = Decoder(
            self._target,
            None,
            chain(0),
            sampling=self._condition.sampling,
            max_text_tokens=len(self._context) + ROOM_TOKENS,
            cuda_graphs=graphs_of(self._condition.batch_size, self._settings.cuda_graphs),
        )
        plain = step_timer(decoder, self._context, self._condition.batch_size)
        return Passes(lambda _: plain.step, prepare=lambda _: plain.prepare(chain(0)))

    def _steps(self, draft: LanguageModel) -> Steps:
        return Steps(
            self._target,
            draft,
            self._context,
            self._condition,
            self._settings,
            recorder=self._recorder,
        )

    def _spent_s(self) -> float:
        """Return the seconds that the timed calls of this condition took, and the untimed ones before them."""
        lead_calls = self._clock.warm_up.lead_calls
        first_calls = 1 + self._clock.warm_up.first_calls  # one to see how long it takes, and those that warm up
        verify, draft, steps = (
            self._journal.samples(self._condition.kind(what)) for what in ("verify", "draft", "step")
        )
        between_s = sum(float(np.median(draft[width])) for width in WIDTHS_BEFORE if width in draft)
        drafted_s = between_s * sum(lead_calls(each) * len(each) for tokens, each in verify.items() if tokens > 1)
        times = [samples for kind in (verify, draft, steps) for samples in kind.values()]
        timed_s = sum((1 + lead_calls(each)) * sum(each) + first_calls * float(np.median(each)) for each in times)
        return timed_s + drafted_s
