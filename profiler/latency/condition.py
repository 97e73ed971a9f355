"""The times of a profile under one condition: passes of every size, and whole steps under every rule."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from treeopt.planner.certainty import Certainty
from treeopt.profiler.budget import Slice
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.busy import LoadReader, threads_on
from treeopt.profiler.latency.curve import LEAST_ERROR, MOST_SAMPLES, PILOT_ROUNDS, Curve, Passes
from treeopt.profiler.latency.passes import (
    PROBE_TREES,
    ROOM_TOKENS,
    ChangeTree,
    PassTimer,
    probe_trees,
    step_timer,
)
from treeopt.profiler.latency.rounds import Step
from treeopt.profiler.latency.steps import Steps
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.profiler.latency.watch import Watch, Watched
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.latency import LatencyTable
from treeopt.records.sampling import draft_sampling_of
from treeopt.records.steadiness import FEWEST_SAMPLES
from treeopt.records.step_latency import StepLatency
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.rules import rule_named
from treeopt.trees import TokenTree, chain

ROUNDS_PER_BLOCK = 5
EXTRA_POINTS = 8
"""Token counts added to a curve where it bends, where no time budget says how many."""
COARSE_TOKENS, COARSE_WIDTH = max(tree.nodes for tree in PROBE_TREES), 16
"""The largest verification and drafting passes that are timed however little time there is: those of the probe trees."""
BENDS_SHARE = 1 / 3
"""Of the time for a curve, what finding its bends may take."""
COARSE_STEPS = 2
"""Rounds of whole steps for a first plan."""
Spending = Callable[[str], AbstractContextManager[None]]
WIDTHS_BEFORE = (1, 2, 1)
"""Draft passes between a verification and the next, which leave the hardware's caches as decoding finds them."""


@dataclass(frozen=True, slots=True)
class ConditionPasses:
    """The passes and plain steps that are timed under one condition; each call allocates caches."""

    target: LanguageModel
    draft_model: LanguageModel | None
    text: Sequence[int]
    """The context, and ROOM_TOKENS behind it."""
    condition: TimedCondition
    settings: Settings

    def verify(self) -> Passes:
        """Return the target's passes, each after some of the draft model's where there is one."""
        target, drafted = self._timer(self.target), list[Work]()
        if self.draft_model is not None:
            draft_work = self.draft(self.draft_model)
            drafted = [draft_work(width) for width in WIDTHS_BEFORE if width <= self.settings.max_tokens]

        def draft_some(_: int) -> None:
            for work in drafted:
                work()

        return Passes(partial(target.verify, sampling=self.condition.sampling), between=draft_some)

    def draft(self, model: LanguageModel) -> Callable[[int], Work]:
        """Return what makes the work of drafting a level of some width."""
        settings, sampling = self.settings, self.condition.sampling
        rule = rule_named(settings.rules[0], lossy=True)
        drawn_by = draft_sampling_of(sampling, settings.own_draft_sampling(sampling))
        draft = self._timer(model)
        return cache(lambda width: draft.draft(width, drawn_by, rule))

    def plain(self) -> Passes:
        """Return whole steps of plain decoding, which the first count of the curve is timed by."""
        context = self.text[: self.condition.context_tokens]
        decoder = Decoder(
            self.target,
            None,
            chain(0),
            sampling=self.condition.sampling,
            max_text_tokens=len(context) + ROOM_TOKENS,
            cuda_graphs=self.settings.cuda_graphs,
        )
        steps = step_timer(decoder, context, self.condition.batch_size)
        return Passes(lambda _: steps.step, prepare=lambda _: steps.prepare(chain(0)))

    def _timer(self, model: LanguageModel) -> PassTimer:
        settings, texts = self.settings, self.condition.batch_size
        return PassTimer(model, self.text, texts, settings.max_tokens, cuda_graphs=settings.cuda_graphs)


class Times:
    """Times the passes and steps of one pair under one condition.

    Args:
        target, draft: the models; None for a target alone, of which only verification is timed.
        text: the context, and ROOM_TOKENS behind it.
        condition: see `TimedCondition`.
        settings: how much to measure.
        recorder: what times the calls, and where samples go.
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
        load: LoadReader | None = None,
    ) -> None:
        self._target, self._draft = target, draft
        self._context = text[: condition.context_tokens]
        passes = ConditionPasses(target, draft, text, condition, settings)
        self._condition = condition
        self._settings = settings
        self._journal = recorder.journal
        self._kinds = [condition.kind(what) for what in ("verify", "draft", "step")]
        self._watch = None if load is None else Watch(self._journal, self._kinds, load)
        self._watched = Watched(
            self._journal, threads=threads_on(target.device), enough=min(FEWEST_SAMPLES, settings.rounds)
        )
        self._recorder = replace(recorder, tick=partial(self._after_call, recorder.tick), watched=self._watched)
        self._verify = self._curve("verify", passes.verify, open_single=passes.plain)
        self._drafted = None if draft is None else self._curve("draft", lambda: Passes(passes.draft(draft)))
        self._steps = None if draft is None else self._timed_steps(draft)
        self._part: str | None = None  # whose caches refining left open

    def measure(self) -> StepLatency:
        """Time all that the journal does not hold yet, as many rounds as the settings have."""
        rounds, timed = self._settings.rounds, self._timed
        for curve in self._curves:
            curve.pilot(rounds)
            while curve.added < EXTRA_POINTS and curve.bend(rounds):
                pass
            curve.close()
        for block in [*range(ROUNDS_PER_BLOCK, rounds, ROUNDS_PER_BLOCK), rounds]:
            for each in timed:  # they take turns, so that drift hits all alike
                each.sample(block)
                each.close()
        self._time_again(timed, rounds)
        return self.latency()

    def coarse(self, spending: Spending, time: Slice) -> None:
        """Time enough of each part for a first plan.

        Args:
            spending: returns the context in which one part is timed, by its name.
            time: after which nothing is timed that a plan can do without.
        """
        first = time.part(0.5)
        with spending("verify"):
            self._verify.coarse(COARSE_TOKENS, first)
            self._verify.close()
        if self._drafted is not None:
            with spending("draft"):
                self._drafted.coarse(COARSE_WIDTH, time)
                self._drafted.close()
        if self._steps is not None:
            with spending("overhead"):
                self._steps.coarse(COARSE_STEPS, time)
                self._steps.close()

    def sample(self, time: Slice) -> None:
        """Time every part as often as there is time for, after adding counts where curves bend."""
        for number, each in enumerate(self._timed):
            share = time.part(1 / (len(self._timed) - number))
            if isinstance(each, Curve):
                bends = share.part(BENDS_SHARE)
                while not bends.over() and each.bend(PILOT_ROUNDS, least_error=LEAST_ERROR):
                    pass
            each.sample(MOST_SAMPLES, share.over)
            each.close()

    def refine(self, part: str, certainty: Certainty, time: Slice, rounds: int = MOST_SAMPLES) -> None:
        """Time one part, `verify`, `draft` or `overhead`, near the sizes that decide, until a time or some rounds are over."""
        if part != self._part:
            self.close()
        self._part = part
        if part == "overhead" and self._steps is not None:
            self._steps.refine(time, rounds)
        elif part == "draft" and self._drafted is not None:
            self._drafted.refine(certainty.draft_widths, time, rounds)
        elif part == "verify":
            self._verify.refine(certainty.verify_tokens, time, rounds)

    def close(self) -> None:
        """Free the caches of the part that was timed last."""
        for each in self._timed:
            each.close()

    def samples(self, part: str, certainty: Certainty) -> int:
        """Return how many samples that time of a part has that has the fewest, of those that decide."""
        if part == "overhead" and self._steps is not None:
            return self._steps.samples
        if part == "draft" and self._drafted is not None:
            return self._drafted.samples(certainty.draft_widths) if certainty.draft_widths else MOST_SAMPLES
        return self._verify.samples(certainty.verify_tokens)

    @property
    def parts(self) -> tuple[str, ...]:
        """What can be refined."""
        return ("verify",) if self._draft is None else ("verify", "draft", "overhead")

    @property
    def _curves(self) -> list[Curve]:
        return [self._verify, *([] if self._drafted is None else [self._drafted])]

    @property
    def _timed(self) -> list[Curve | Steps]:
        return [*self._curves, *([] if self._steps is None else [self._steps])]

    def latency(self) -> StepLatency:
        """Return the times as measured so far."""
        latency = StepLatency(
            context_tokens=self._condition.context_tokens,
            batch_size=self._condition.batch_size,
            verify=self._verify.table(),
            sampled=not self._condition.sampling.greedy,
            limit_tokens=self._verify.limit_tokens,
            disturbance=self._watched.disturbance(self._kinds),
        )
        if self._steps is None or self._drafted is None:
            return latency
        draft = self._drafted.table()
        overheads = self._steps.overheads(lambda tree: passes_s(latency.verify, draft, tree))
        return replace(
            latency,
            draft=draft,
            overhead=overheads[0].overhead,
            rule_overheads=overheads if len(overheads) > 1 else (),
            host=self._steps.host,
            steps=self._steps.timed(),
        )

    def _time_again(self, timed: Sequence[Curve | Steps], rounds: int) -> None:
        """Time again what other programs disturbed, as long as there are quiet moments to do so."""
        known = 0
        for had in range(0, rounds, ROUNDS_PER_BLOCK):
            quiet, fewest = self._watched.quiet_calls(self._kinds), min(each.fewest_undisturbed for each in timed)
            if quiet == known or fewest >= rounds:
                return
            known = quiet
            for each in timed:
                each.sample_again(min(fewest + ROUNDS_PER_BLOCK, fewest + rounds - had, rounds))
                each.close()

    def _after_call(self, step: Step) -> None:
        if self._watch is not None:
            self._watch.look()
        step()

    def _curve(
        self, what: str, open_passes: Callable[[], Passes], open_single: Callable[[], Passes] | None = None
    ) -> Curve:
        most = self._settings.max_tokens
        return Curve(self._condition.kind(what), open_passes, most, self._recorder, open_single=open_single)

    def _timed_steps(self, draft: LanguageModel) -> Steps:
        settings, sampling = self._settings, self._condition.sampling
        trees = probe_trees(settings.max_tokens)

        def open_decoder(rule: str) -> tuple[Decoder, ChangeTree]:
            decoder = Decoder(
                self._target,
                draft,
                trees[0],
                rule=rule,
                sampling=sampling,
                draft_sampling=settings.own_draft_sampling(sampling),
                lossy=settings.lossy,
                max_text_tokens=len(self._context) + ROOM_TOKENS,
                max_nodes=max(tree.nodes for tree in trees),
                cuda_graphs=settings.cuda_graphs,
            )
            return decoder, decoder.change_tree

        return Steps(open_decoder, self._context, self._condition, settings.rules, trees, recorder=self._recorder)


def passes_s(verify: LatencyTable, draft: LatencyTable, tree: TokenTree, *, per_block: bool = False) -> float:
    """Return the seconds of the passes in a step: verification, and drafting level by level or in one pass."""
    drafted = np.array([tree.max_depth]) if per_block else tree.draft_widths
    return float(verify.seconds(tree.nodes)) + float(draft.seconds(drafted).sum())
