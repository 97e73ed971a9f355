"""The latencies of a profile at one operating point: passes of every size, and whole steps under every rule."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from treeopt.planner.certainty import Certainty
from treeopt.planner.overheads import draft_counts
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.clock import Work
from treeopt.profiler.latency.curve import PILOT_ROUNDS, LatencyCurve, Passes
from treeopt.profiler.latency.disturbance import SampleFilter
from treeopt.profiler.latency.load import CpuLoadReader, timing_threads
from treeopt.profiler.latency.passes import (
    PROBE_TREES,
    ROOM_TOKENS,
    DecodingSteps,
    ModelPasses,
    TimedPoint,
    probe_trees,
)
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.latency.steps import StepTimer, step_overheads
from treeopt.profiler.settings import MAX_SAMPLES, Settings
from treeopt.records.sampling import resolve_draft_sampling
from treeopt.records.step_latency import StepLatency
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.rules import get_rule
from treeopt.trees import chain

ROUNDS_PER_TURN = 5
COARSE_TOKENS, COARSE_WIDTH = max(tree.nodes for tree in PROBE_TREES), 16
"""The largest verification and drafting passes that are timed even after the deadline: those of the probe trees."""
COARSE_SHARE, COUNTS_SHARE = 1 / 2, 1 / 3
"""Fractions of the time left for the first times of every part, and then for finding where curves bend."""
COARSE_STEPS = 3
"""Rounds of whole steps for a first plan; after the deadline one."""
Spending = Callable[[str], AbstractContextManager[None]]
WIDTHS_BEFORE = (1, 2, 1)
"""Draft passes before a timed verification, which leave the hardware's caches as decoding does."""


@dataclass(frozen=True, slots=True)
class PointPasses:
    """The passes and plain steps that are timed at one operating point; each method allocates caches."""

    target: LanguageModel
    draft_model: LanguageModel | None
    tokens: Sequence[int]
    """The context, and ROOM_TOKENS more."""
    point: TimedPoint
    settings: Settings

    def open_verification(self) -> Passes:
        """Return the target's passes, each after some passes of the draft model, if any."""
        target, draft_works = self._passes(self.target), list[Work]()
        if self.draft_model is not None:
            drafting = self.open_drafting()
            draft_works = [drafting.work(width) for width in WIDTHS_BEFORE if width <= self.settings.max_tokens]

        def draft_levels() -> None:
            for work in draft_works:
                work()

        return Passes(partial(target.verify, sampling=self.point.sampling), between=draft_levels)

    def open_drafting(self) -> Passes:
        """Return the passes of the draft model that draft a level, by its width."""
        assert self.draft_model is not None
        settings, sampling = self.settings, self.point.sampling
        rule = get_rule(settings.rules[0], lossy=True)
        draft_sampling = resolve_draft_sampling(sampling, settings.own_draft_sampling(sampling))
        passes = self._passes(self.draft_model)
        return Passes(lambda width: passes.draft(width, draft_sampling, rule))

    def open_plain_steps(self) -> Passes:
        """Return whole steps of plain decoding, which stand for the verification of one token."""
        decoder = Decoder(
            self.target,
            None,
            sampling=self.point.sampling,
            max_sequence_tokens=len(self.tokens),
            cuda_graphs=self.settings.cuda_graphs,
        )
        steps = DecodingSteps(decoder, self.tokens[: self.point.context_tokens], self.point.batch_size)
        return Passes(lambda _: steps.step, prepare=lambda _: steps.prepare(chain(0)))

    def _passes(self, model: LanguageModel) -> ModelPasses:
        settings = self.settings
        return ModelPasses(
            model, self.tokens, self.point.batch_size, settings.max_tokens, cuda_graphs=settings.cuda_graphs
        )


class PointTimer:
    """Times the passes and steps of one pair at one operating point.

    Args:
        target, draft: the models; with None for the draft only verification is timed.
        tokens: the context, and ROOM_TOKENS more.
        point: the operating point.
        settings: how much to measure.
        recorder: times the calls.
        load: reads the load of other programs; None for no reading.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        tokens: Sequence[int],
        point: TimedPoint,
        settings: Settings,
        recorder: Recorder,
        *,
        load: CpuLoadReader | None = None,
    ) -> None:
        self._target = target
        self._context = tokens[: point.context_tokens]
        self._point = point
        self._settings = settings
        self._filter = SampleFilter(
            recorder.checkpoint,
            [point.kind(call) for call in ("verify", "draft", "step")],
            load,
            threads=timing_threads(target.device),
            enough=min(PILOT_ROUNDS, settings.most_samples),
        )
        self._recorder = replace(recorder, sample_filter=self._filter, most_samples=settings.most_samples)
        passes = PointPasses(target, draft, tokens, point, settings)
        self._verify = self._curve("verify", passes.open_verification, open_single=passes.open_plain_steps)
        self._timers: dict[str, LatencyCurve | StepTimer] = {"verify": self._verify}
        self._draft: LatencyCurve | None = None
        self._steps: StepTimer | None = None
        if draft is not None:
            self._draft = self._curve("draft", passes.open_drafting)
            self._steps = self._step_timer(draft, passes.open_plain_steps)
            self._timers |= {"draft": self._draft, "overhead": self._steps}

    @property
    def parts(self) -> tuple[str, ...]:
        """What can be refined: `verify`, and with a draft model `draft` and `overhead`."""
        return tuple(self._timers)

    def measure(self, spending: Spending = lambda _: nullcontext(), deadline: Deadline = NO_DEADLINE) -> None:
        """Time every size of every part equally often, as often as the settings ask or time permits.

        Args:
            spending: returns the context in which a part is timed, by its name.
            deadline: after which only the necessary minimum is timed.
        """
        self.coarse(spending, deadline.part(COARSE_SHARE))
        timers, most_samples = list(self._timers.values()), self._recorder.most_samples
        with spending("verify"):
            sample_in_turns(timers, most_samples, deadline)
            while (part := self.disturbed_part) is not None and not deadline.over():
                self._timers[part].repeat_disturbed(deadline)
                self._timers[part].close()
                sample_in_turns(timers, most_samples, deadline)

    def coarse(self, spending: Spending, deadline: Deadline) -> None:
        """Time enough of each part for a first plan.

        Args:
            spending: returns the context in which a part is timed, by its name.
            deadline: after which only the necessary minimum is timed.
        """
        trees = probe_trees(self._settings.max_tokens)
        with spending("verify"):
            self._verify.coarse(COARSE_TOKENS, deadline.part(0.5), {1, *(tree.nodes for tree in trees)})
            self._verify.close()
        if self._draft is None or self._steps is None:
            return
        with spending("draft"):
            self._draft.coarse(
                COARSE_WIDTH, deadline, {width for tree in trees for width in draft_counts(tree).tolist()}
            )
            self._draft.close()
        with spending("overhead"):
            self._steps.sample(COARSE_STEPS, deadline)
            self._steps.close()

    def refine(self, part: str, certainty: Certainty, deadline: Deadline, rounds: int = MAX_SAMPLES) -> None:
        """Time one part near the sizes that decide, or what was disturbed in it, until the deadline or for some rounds."""
        for name, other in self._timers.items():
            if name != part:
                other.close()
        timer = self._timers[part]
        if part == self.disturbed_part:
            timer.repeat_disturbed(deadline)
        elif isinstance(timer, StepTimer):
            timer.refine(deadline, rounds)
        else:
            timer.refine(_deciding_sizes(part, certainty), deadline, rounds)

    @property
    def disturbed_part(self) -> str | None:
        """A part with sizes that other programs disturbed, if none disturbs the calls now."""
        if not self._filter.is_quiet:
            return None
        return next((part for part, timer in self._timers.items() if timer.disturbed), None)

    def close(self) -> None:
        """Free all caches."""
        for timer in self._timers.values():
            timer.close()

    def samples(self, part: str, certainty: Certainty) -> int:
        """Return the smallest number of samples of any size that decides."""
        timer = self._timers[part]
        if isinstance(timer, StepTimer):
            return timer.samples
        sizes = _deciding_sizes(part, certainty)
        return timer.samples(sizes) if sizes or part == "verify" else MAX_SAMPLES

    def latency(self) -> StepLatency:
        """Return the latencies measured so far."""
        latency = StepLatency(
            context_tokens=self._point.context_tokens,
            batch_size=self._point.batch_size,
            verify=self._verify.table(),
            sampled=not self._point.sampling.greedy,
            limit_tokens=self._verify.limit_tokens,
            interference=self._filter.interference(),
        )
        if self._steps is None or self._draft is None:
            return latency
        draft = self._draft.table()
        steps = self._steps.timed_steps(plain_s=float(latency.verify.seconds(1)))
        overheads = step_overheads(steps, latency.verify, draft)
        return replace(
            latency,
            draft=draft,
            overhead=overheads[0].overhead,
            rule_overheads=overheads if len(overheads) > 1 else (),
            host=self._steps.host,
            steps=steps,
        )

    def _curve(
        self, call: str, open_passes: Callable[[], Passes], open_single: Callable[[], Passes] | None = None
    ) -> LatencyCurve:
        max_tokens = self._settings.max_tokens
        return LatencyCurve(self._point.kind(call), open_passes, max_tokens, self._recorder, open_single=open_single)

    def _step_timer(self, draft: LanguageModel, open_plain: Callable[[], Passes]) -> StepTimer:
        settings, sampling = self._settings, self._point.sampling
        trees = probe_trees(settings.max_tokens)

        def open_steps(rule: str) -> DecodingSteps:
            decoder = Decoder(
                self._target,
                draft,
                trees[0],
                rule=rule,
                sampling=sampling,
                draft_sampling=settings.own_draft_sampling(sampling),
                lossy=settings.lossy,
                max_sequence_tokens=len(self._context) + ROOM_TOKENS,
                max_nodes=max(tree.nodes for tree in trees),
                cuda_graphs=settings.cuda_graphs,
            )
            return DecodingSteps(decoder, self._context, self._point.batch_size)

        return StepTimer(open_steps, open_plain, self._point, settings.rules, trees, recorder=self._recorder)


def sample_in_turns(timers: Sequence[LatencyCurve | StepTimer], rounds: int, deadline: Deadline) -> None:
    """Time every size until it has `rounds` usable samples, or to the deadline, after adding counts to curves.

    Timers take turns, so that drift affects all equally.
    """
    curves = [timer for timer in timers if isinstance(timer, LatencyCurve)]
    for curve, share in deadline.part(COUNTS_SHARE).split(curves):
        curve.add_counts(share)
        curve.close()
    for turn in [*range(ROUNDS_PER_TURN, rounds, ROUNDS_PER_TURN), rounds]:
        for timer in timers:
            if deadline.over():
                return
            timer.sample(turn, deadline)
            timer.close()


def _deciding_sizes(part: str, certainty: Certainty) -> frozenset[int]:
    """Return the sizes of passes in the best trees, and of plain decoding, which the speedup is relative to."""
    return certainty.draft_widths if part == "draft" else certainty.verify_tokens | {1}
