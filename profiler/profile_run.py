"""Measuring a whole profile: latencies at every operating point, then acceptance under every rule and sampling."""

import math
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from treeopt.errors import TreeoptWarning
from treeopt.planner import PlanRequest, choice_confidence, drafter_choices
from treeopt.planner.certainty import Certainty
from treeopt.profiler.acceptance.contexts import LongSequences, PromptsAtContext, PromptSource, WholePrompts, Window
from treeopt.profiler.acceptance.incremental import IncrementalAcceptance, position_levels
from treeopt.profiler.acceptance.per_prompt import AcceptanceCounter, rule_to_count
from treeopt.profiler.bench.divergence import logits_after
from treeopt.profiler.budget import Budget, Deadline
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.clock import Clock
from treeopt.profiler.drafters.measuring import DrafterMeasurement
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.load import CpuLoadReader
from treeopt.profiler.latency.memory import freeze_existing_objects
from treeopt.profiler.latency.passes import TimedPoint
from treeopt.profiler.latency.point import PointTimer
from treeopt.profiler.latency.prefill import measure_prefill
from treeopt.profiler.latency.rounds import Recorder, Tick
from treeopt.profiler.limits import check_measurable, room_tokens
from treeopt.profiler.machine import describe_machine
from treeopt.profiler.processes.processes import Processes
from treeopt.profiler.refinement import CERTAIN, ProfileRefiner
from treeopt.profiler.settings import Settings
from treeopt.records.latency import PrefillLatency
from treeopt.records.machine import Pair, now
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.finite import check_logits
from treeopt.runtime.models.model import LanguageModel, max_sequence_tokens
from treeopt.runtime.models.pair import describe_pair
from treeopt.version import TOOL

PAIR_SHARE = 2
"""Shares of a time budget for the draft model; every other drafter has one."""
LATENCY_SHARE, PREFILL_SHARE, ACCEPTANCE_SHARE = 0.25, 0.05, 0.15
"""Fractions of the time left for the first latencies, prefill and acceptance."""
TREES_SHARE, TREES_PER_SEQUENCE = 0.25, 3
"""Fraction of the time left for `traversal` on trees, and the usual number of trees."""


class Measurement:
    """Measures one profile.

    Args:
        target: the model whose decoding is measured, on the device to be measured.
        draft: one with the same vocabulary, on the same device; None for a target alone.
        prompts: token ids that the target continues; at least two.
        settings: what to measure.
        clock: times the calls.
        load: makes a reader of the load of other programs; by default the load is not read.
        checkpoint: where every measurement is stored at once.
        processes: those that measure together; by default this one alone.
        pair: describes the models; by default what they report about themselves.
        drafters: measured in addition to the draft model, by this process alone.
        categories: one for each prompt, `""` for none; by default no prompt has one.
        budget: the time budget of the settings, if it has started already.

    Raises InvalidValueError if prompts are missing, or a context does not fit the models.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        clock: Clock,
        load: Callable[[], CpuLoadReader] | None = None,
        checkpoint: Checkpoint,
        processes: Processes | None = None,
        pair: Pair | None = None,
        drafters: Sequence[LoadedDrafter] = (),
        categories: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> None:
        check_measurable(target, draft, prompts, settings)
        self._on_trees = draft is not None and any(
            rule_to_count(rule, sampling) != rule for rule, sampling in settings.rule_samplings
        )
        self._target, self._draft = target, draft
        self._pair = pair or describe_pair(target, draft)
        self._prompts, self._categories = prompts, categories
        self._settings = settings
        self._checkpoint = checkpoint
        self._tokens: list[int] = np.concatenate([np.asarray(prompt) for prompt in prompts]).tolist()
        self._processes = processes or Processes()
        self._drafters = drafters
        self._recorder = Recorder(clock, checkpoint)
        self._contexts = settings.acceptance_contexts
        self.budget = budget or Budget(settings.time_budget_s or math.inf, checkpoint)
        self.certainty: Certainty | None = None
        """That of the least certain plan; None if nothing was planned."""
        self.choice_confidence: float | None = None
        """Probability that the choice among several drafters is within 1 % of the fastest; None if none was made."""
        self._latency_grid = LatencyGrid(target, draft, self._tokens, settings, self._recorder, load=load)

    def profile(
        self,
        *,
        latencies: tuple[StepLatency, ...] | None = None,
        acceptances: tuple[MeasuredAcceptance, ...] | None = None,
        show_progress: bool = True,
    ) -> Profile:
        """Return the profile, measuring what the checkpoint lacks; a progress bar goes to standard error.

        Args:
            latencies: measured elsewhere.
            acceptances: measured elsewhere.
            show_progress: whether the bar is drawn; never where standard error is not a terminal.

        Raises TreeoptError naming a model whose logits are not finite, usually before anything is timed.
        """
        for model, role in ((self._target, "target"), (self._draft, "draft model")):
            if model is not None:
                check_logits(model, role, logits_after(model, self._prompts[0][: model.config.max_positions]))
        with freeze_existing_objects(), self._progress(hidden=None if show_progress else True) as tick:
            return self._measure(latencies, acceptances, tick)

    def _measure(
        self,
        latencies: tuple[StepLatency, ...] | None,
        acceptances: tuple[MeasuredAcceptance, ...] | None,
        tick: Callable[..., object],
    ) -> Profile:
        """Measure the pair, with a time budget first a little of everything, then what makes the plan more certain."""
        budget = self.budget
        deadline = budget.deadline.part(PAIR_SHARE / (PAIR_SHARE + len(self._drafters)))
        timers: dict[TimedPoint, PointTimer] = {}
        prefill = None
        if not latencies:
            latencies = self._processes.run_on_first(lambda: self._measure_latencies(timers, deadline, tick))
            self._leave_out_contexts({latency.context_tokens for latency in latencies})
            with budget.spending("prefill"):
                prefill = self._processes.run_on_first(lambda: self._measure_prefill(deadline, tick))
            self._drop_long_contexts(latencies, deadline)
        counted, levels = None, self._position_levels
        if self._draft is not None and not acceptances:
            counted = self._incremental_acceptance(self._draft, levels, tick)

        def make_profile() -> Profile:
            measured = tuple(timer.latency() for timer in timers.values()) or latencies or ()
            return Profile(
                created=now(),
                tool=TOOL,
                machine=describe_machine(self._target.device),
                pair=self._pair,
                latencies=measured,
                prefill=prefill,
                acceptances=acceptances or (counted.acceptances() if counted else ()),
            )

        refines = self._refines and bool(timers)
        if counted is not None:
            with budget.spending("acceptance"):
                if refines:
                    counted.add(deadline.part(ACCEPTANCE_SHARE), 2, max(2, counted.missing))
                else:
                    counted.add(deadline, 2)
        if refines:
            refiner = ProfileRefiner(budget, timers, counted, make_profile, self._settings.samplings, tick)
            self.certainty = refiner.run(deadline.part(1 - TREES_SHARE) if self._on_trees else deadline)
        profile = make_profile()
        if self._on_trees and counted is not None:
            with budget.spending("traversal"):
                profile = replace(profile, acceptances=self._measure_on_trees(profile, counted, deadline, tick))
        if self._drafters:
            with budget.spending("drafters"):
                positions = levels[-1] if counted is None or self._contexts else counted.positions
                profile = self._measure_drafters(profile, positions, tick)
        return profile

    @contextmanager
    def _progress(self, *, hidden: bool | None) -> Iterator[Callable[..., object]]:
        """Show a bar of the time budget, or without one a count of calls and sequences; yield what moves it."""
        seconds = None if self._is_fixed else round(self.budget.seconds)
        with tqdm(total=seconds, desc="measuring ", unit="call" if self._is_fixed else "s", disable=hidden) as bar:

            def tick(probability: float | None = None) -> None:
                bar.update(1 if seconds is None else min(seconds, round(seconds - self.budget.left_s)) - bar.n)
                if probability is not None:
                    bar.set_postfix_str(f"{100 * probability:.0f} % certain")

            yield tick

    @property
    def _is_fixed(self) -> bool:
        """Whether `rounds` and `positions` end measuring, instead of a time budget."""
        return self._settings.time_budget_s is None

    @property
    def _refines(self) -> bool:
        """Whether time is left after the first latencies, and goes to those that a plan shows to decide."""
        return self._draft is not None and not self._is_fixed

    def _measure_latencies(
        self, timers: dict[TimedPoint, PointTimer], deadline: Deadline, tick: Tick
    ) -> tuple[StepLatency, ...]:
        """Time every operating point, put its timer into `timers`, and return the latencies."""
        share = LATENCY_SHARE if self._refines else 2 * LATENCY_SHARE
        shares = deadline.part(share).split(self._latency_grid.points())

        def measure(timer: PointTimer) -> None:
            _, part = next(shares)
            (timer.coarse if self._refines else timer.measure)(self.budget.spending, part)

        timers |= self._latency_grid.time_points(measure, tick)
        return tuple(timer.latency() for timer in timers.values())

    def _leave_out_contexts(self, timed: Collection[int]) -> None:
        """Leave the contexts out that were not timed, because memory ran out; their acceptance would be of no use."""
        missing = [context for context in self._contexts if context not in timed]
        if missing:
            self._contexts = tuple(context for context in self._contexts if context in timed)
            self._prompts = [prompt[: max(self._contexts) + 1] for prompt in self._prompts]
            warnings.warn(
                f"times: memory ran out at {', '.join(map(str, missing))} tokens of context, which are left out. Use a smaller "
                "--context-tokens, or --offload.",
                TreeoptWarning,
                stacklevel=2,
            )

    def _drop_long_contexts(self, latencies: Sequence[StepLatency], deadline: Deadline) -> None:
        """Count acceptance only after the prompts if decoding two sequences up to the contexts takes half the time."""
        kinds = self._checkpoint.kinds()
        if not self._contexts or any(kind.startswith("acceptance at ") for kind in kinds):
            return
        tokens = sum(sorted(max(0, max(self._contexts) - len(prompt)) for prompt in self._prompts)[:2])
        step_s = float(latencies[0].verify.seconds(1))
        if tokens * step_s * len(self._settings.samplings) > deadline.left_s / 2:
            # with contexts, prompts may be longer than the models support
            self._prompts = [prompt[: max(self._contexts)] for prompt in self._prompts]
            self._contexts = ()
            warnings.warn(
                f"acceptance: decoding two sequences up to {max(self._settings.context_tokens)} tokens takes more than half of the "
                "time, so acceptance is counted after the prompts alone. Give longer --prompts, or a larger --time-budget.",
                TreeoptWarning,
                stacklevel=2,
            )

    def _incremental_acceptance(self, draft: LanguageModel, levels: Sequence[int], tick: Tick) -> IncrementalAcceptance:
        """Return what counts acceptance; contexts limit the positions of windows."""
        counters = []
        for source in self._prompt_sources(levels[0]):
            counter = AcceptanceCounter(
                self._target,
                draft,
                source,
                self._settings,
                checkpoint=self._checkpoint,
                processes=self._processes,
                categories=self._categories,
            )
            counters.append((counter, tuple(map(source.positions, levels))))
        return IncrementalAcceptance(counters, len(self._prompts), self._processes, tick)

    def _measure_on_trees(
        self, profile: Profile, counted: IncrementalAcceptance, deadline: Deadline, tick: Tick
    ) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance with `traversal` measured on trees, along as many sequences as time permits."""
        acceptances: list[MeasuredAcceptance] = []
        for counter, (positions, *_) in counted.counters:
            step_s = float(profile.latencies[0].verify.seconds(1))
            points = len(self._settings.samplings) * len(counted.counters)
            sequence_s = TREES_PER_SEQUENCE * positions * step_s * points
            sequences = min(len(counted.numbers), deadline.left_s / sequence_s)
            numbers = counted.numbers[: max(2, int(sequences))]
            acceptances += counter.measure_on_trees(profile, numbers, positions, tick)
        return tuple(acceptances)

    def _measure_drafters(self, profile: Profile, positions: int, tick: Tick) -> Profile:
        measurement = DrafterMeasurement(
            drafters=self._drafters,
            profile=profile,
            sources=self._prompt_sources(positions),
            tokens=self._tokens,
            settings=self._settings,
            positions=positions,
            recorder=replace(self._recorder, tick=tick),
            deadline=self.budget.deadline,
            categories=self._categories,
        )
        return measurement.measure(None if self._is_fixed else self._is_choice_certain)

    def _is_choice_certain(self, profile: Profile) -> bool:
        """Return whether the choice among drafters is certain at every temperature, and set `choice_confidence`."""
        requests = [PlanRequest(temperature=sampling.temperature) for sampling in self._settings.samplings]
        self.choice_confidence = min(choice_confidence(drafter_choices(profile, request)) for request in requests)
        return self.choice_confidence >= CERTAIN

    def _measure_prefill(self, deadline: Deadline, tick: Tick) -> PrefillLatency:
        contexts = self._contexts or self._settings.context_tokens
        longest = max(*contexts, *map(len, self._prompts))
        recorder = replace(self._recorder, tick=tick, most_samples=self._settings.most_samples)
        return measure_prefill(self._target, self._draft, self._tokens, longest, recorder, deadline.part(PREFILL_SHARE))

    def _prompt_sources(self, positions: int) -> list[PromptSource]:
        if not self._contexts:
            return [WholePrompts(self._prompts)]
        max_tokens = max_sequence_tokens(self._target, self._draft)
        if self._drafters:  # they may use smaller windows, which start later
            longest = max(self._contexts) + 1
        else:
            longest = max(Window.around(context, positions, max_tokens).prompt_tokens for context in self._contexts)
        sequences = LongSequences(self._target, self._prompts, longest, self._checkpoint)
        return [
            PromptsAtContext(sequences=sequences, context_tokens=context, max_tokens=max_tokens)
            for context in self._contexts
        ]

    @property
    def _position_levels(self) -> tuple[int, ...]:
        """The positions of a sequence in each pass over the prompts."""
        if self._is_fixed:
            return (self._settings.positions_per_prompt(len(self._prompts)),)
        if self._contexts:  # windows do not grow, and are limited by the contexts
            return position_levels(max_sequence_tokens(self._target, self._draft))[:1]
        return position_levels(room_tokens(self._target, self._draft, self._prompts))
