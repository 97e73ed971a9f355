"""A whole profile: times under every condition, then acceptance under every rule and sampling."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from treeopt.errors import InvalidValueError, TreeoptWarning
from treeopt.planner import PlanRequest, choice_confidence, drafter_choices
from treeopt.planner.certainty import Certainty
from treeopt.profiler.acceptance.contexts import AroundContext, BehindPrompts, LongTexts, Place, TextsAtContext, Window
from treeopt.profiler.acceptance.in_slices import SlicedAcceptance, position_levels
from treeopt.profiler.acceptance.per_prompt import Counting, FastestTree, counted_rule
from treeopt.profiler.bench.divergence import logits_after
from treeopt.profiler.budget import UNLIMITED, Budget, Slice
from treeopt.profiler.clock import Clock
from treeopt.profiler.drafters.measuring import DrafterMeasurement
from treeopt.profiler.journal import Journal
from treeopt.profiler.latency.busy import LoadReader
from treeopt.profiler.latency.condition import Times
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.memory import fast_collection
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.profiler.latency.prefill import MOST_ROUNDS, PrefillTimes
from treeopt.profiler.latency.rounds import Step
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.profiler.machine import describe_machine, describe_pair, now
from treeopt.profiler.processes.processes import OneProcess, Processes
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import Settings
from treeopt.profiler.until_certain import CERTAIN, CertaintyOf, UntilCertain
from treeopt.records.latency import PrefillLatency
from treeopt.records.machine import Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.runtime.models.finite import check_logits
from treeopt.runtime.models.model import LanguageModel, length_limit, shortest_model, trained_tokens
from treeopt.version import TOOL

LEAST_POSITIONS = 16
"""Positions of each text that are counted, however small the time budget."""
DRAFTER_POSITIONS = 64
"""Positions of each text that other drafters are measured on under a time budget."""
PAIR_SHARE = 2
"""Shares of a time budget that the draft model has, where every other drafter has one."""
TIMES_SHARE, PREFILL_SHARE, ACCEPTANCE_SHARE = 0.25, 0.05, 0.15
"""Of the time left, what the first times, prefill and acceptance may take."""
TREES_SHARE, TURNS = 0.25, 3
"""Of the time left, what `traversal` on trees may take, and how many trees that mostly is."""


class Measurement:
    """One profile in the making.

    Args:
        target: the model whose text it is, on the device to be measured.
        draft: one with the same vocabulary, on the same device; None for a target alone.
        prompts: token ids that the target continues; at least two.
        settings: what to measure.
        clock: what times the calls.
        load: makes a reader that tells what other programs use from then on; by default nobody looks.
        journal: where every measurement is kept at once.
        fastest_tree: what the rule `traversal` is measured on; other rules do not need it.
        processes: those that measure together; by default this one alone.
        pair: what the models are and were loaded from; by default what they tell of themselves.
        drafters: what is measured beside the draft model, by this process alone.
        categories: one for each prompt, `""` for none; by default no prompt has one.
        certainty: plans what was measured so far, under a time budget; without it measuring ends after a first round.
        budget: the time budget of the settings, where it began before this.

    Raises InvalidValueError when prompts are missing, a context does not fit the models, or `fastest_tree` is missing.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        clock: Clock,
        load: Callable[[], LoadReader] | None = None,
        journal: Journal,
        fastest_tree: FastestTree | None = None,
        processes: Processes | None = None,
        pair: Pair | None = None,
        drafters: Sequence[LoadedDrafter] = (),
        categories: Sequence[str] = (),
        certainty: CertaintyOf | None = None,
        budget: Budget | None = None,
    ) -> None:
        check_measurable(target, draft, prompts, settings)
        self._on_trees = draft is not None and any(
            counted_rule(rule, sampling) != rule for rule, sampling in settings.asked
        )
        if self._on_trees and fastest_tree is None:
            raise InvalidValueError(
                "fastest_tree: expected a planner, since `traversal` is measured on trees. Got None."
            )
        self._target, self._draft = target, draft
        self._pair = pair or describe_pair(target, draft)
        self._prompts, self._categories = prompts, categories
        self._settings = settings
        self._journal = journal
        self._fastest_tree = fastest_tree
        self._text: list[int] = np.concatenate([np.asarray(prompt) for prompt in prompts]).tolist()
        self._processes = processes or OneProcess()
        self._clock, self._drafters = clock, drafters
        self._contexts = settings.acceptance_contexts
        self.budget = budget
        """What is left of the time; None where a fixed amount is measured."""
        if budget is None and settings.time_budget_s is not None:
            self.budget = Budget(settings.time_budget_s, journal)
        self._certainty = certainty
        self.certainty: Certainty | None = None
        """The least certain plan of what was measured; None before, and where nothing was planned."""
        self.choice_confidence: float | None = None
        """Probability that the choice among several drafters is within 1 % of the fastest; None where none was made."""
        self._latency_grid = LatencyGrid(target, draft, self._text, settings, clock=clock, journal=journal, load=load)

    def profile(
        self,
        *,
        latencies: tuple[StepLatency, ...] | None = None,
        acceptances: tuple[MeasuredAcceptance, ...] | None = None,
        show_progress: bool = True,
    ) -> Profile:
        """Measure everything that is neither given nor in the journal yet; bars go to standard error.

        Args:
            latencies: times that were measured elsewhere.
            acceptances: acceptance that was measured elsewhere.
            show_progress: whether bars are drawn.

        Raises TreeoptError naming a model whose logits are not finite, before anything is timed where they never are.
        """
        for model, role in ((self._target, "target"), (self._draft, "draft model")):
            if model is not None:
                check_logits(model, role, logits_after(model, self._prompts[0]))
        hidden = None if show_progress else True  # None: hidden where standard error is not a terminal
        with fast_collection():
            if self.budget is not None:
                return self._until_certain(self.budget, latencies, acceptances, hidden)
            return self._fixed_amount(latencies, acceptances, hidden)

    def _fixed_amount(
        self,
        latencies: tuple[StepLatency, ...] | None,
        acceptances: tuple[MeasuredAcceptance, ...] | None,
        hidden: bool | None,
    ) -> Profile:
        """Measure as many rounds and positions as the settings have."""
        times = latencies or self._latencies(hidden)
        prefill = None if latencies else self._prefill(hidden)
        positions = self._settings.text_positions(len(self._prompts))
        profile = self._profile(times, prefill, acceptances or self._acceptances(positions, hidden))
        if self._on_trees and not acceptances:
            profile = replace(profile, acceptances=self._on_the_fastest_trees(profile, positions, hidden))
        return self._with_drafters(profile, positions, hidden) if self._drafters else profile

    def _profile(
        self,
        latencies: tuple[StepLatency, ...],
        prefill: PrefillLatency | None,
        acceptances: tuple[MeasuredAcceptance, ...],
    ) -> Profile:
        return Profile(
            created=now(),
            tool=TOOL,
            machine=describe_machine(self._target.device),
            pair=self._pair,
            latencies=latencies,
            prefill=prefill,
            acceptances=acceptances,
        )

    def _until_certain(
        self,
        budget: Budget,
        latencies: tuple[StepLatency, ...] | None,
        acceptances: tuple[MeasuredAcceptance, ...] | None,
        hidden: bool | None,
    ) -> Profile:
        """Measure a little of everything, then what makes the plan more certain, then other drafters."""
        seconds = round(budget.seconds)
        with tqdm(total=seconds, desc="measuring ", unit="s", disable=hidden) as bar:

            def tick(probability: float | None = None) -> None:
                bar.update(min(seconds, round(budget.seconds - budget.left_s)) - bar.n)
                if probability is not None:
                    bar.set_postfix_str(f"{probability:.0%} certain")

            time = budget.whole.part(PAIR_SHARE / (PAIR_SHARE + len(self._drafters)))
            times = {} if latencies else self._coarse_times(budget, time, tick)
            prefill = None if latencies else self._coarse_prefill(budget, time, tick)
            self._leave_out_long_contexts(times, time)
            counted = None if acceptances or self._draft is None else self._sliced_acceptance()

            def so_far() -> Profile:
                measured = latencies or tuple(each.latency() for each in times.values())
                return self._profile(measured, prefill, acceptances or (counted.measured() if counted else ()))

            if counted is not None:
                with budget.spending("acceptance"):
                    if times:
                        counted.add(time.part(ACCEPTANCE_SHARE), 2, max(2, counted.missing))
                    else:
                        counted.add(time, 2)
            if self._draft is None or not times:
                self._refine_all(budget, times, time)
            elif self._certainty is not None:
                trees = time.part(1 - TREES_SHARE) if self._on_trees else time
                until = UntilCertain(budget, times, counted, so_far, self._certainty, self._settings.samplings, tick)
                self.certainty = until.run(trees)
            profile = so_far()
            if self._on_trees and counted is not None:
                with budget.spending("traversal"):
                    profile = replace(profile, acceptances=self._on_few_trees(profile, counted, time))
            if self._drafters:
                with budget.spending("drafters"):
                    positions = min(DRAFTER_POSITIONS, self._room)
                    profile = self._with_drafters(profile, positions, hidden, budget.whole)
            return profile

    def _coarse_times(self, budget: Budget, time: Slice, tick: Step) -> dict[TimedCondition, Times]:
        share, left = time.part(TIMES_SHARE), self._latency_grid.conditions

        def coarse(times: Times) -> None:
            nonlocal left
            times.coarse(budget.spending, share.part(1 / max(1, left)))
            left -= 1

        return self._latency_grid.each_fitting(coarse, tick)

    def _coarse_prefill(self, budget: Budget, time: Slice, tick: Step) -> PrefillLatency:
        with budget.spending("prefill"):
            return self._prefill_times(tick).measure(MOST_ROUNDS, time.part(PREFILL_SHARE))

    def _leave_out_long_contexts(self, times: Mapping[TimedCondition, Times], time: Slice) -> None:
        """Count acceptance after the prompts alone where two texts cannot be decoded up to the contexts in half the time."""
        kinds = self._journal.kinds()
        if not times or not self._contexts or any(kind.startswith("acceptance at ") for kind in kinds):
            return
        tokens = sum(sorted(max(0, max(self._contexts) - len(prompt)) for prompt in self._prompts)[:2])
        step_s = float(next(iter(times.values())).latency().verify.seconds(1))
        if tokens * step_s * len(self._settings.samplings) > time.left_s / 2:
            self._contexts = ()
            warnings.warn(
                f"acceptance: decoding two texts up to {max(self._settings.context_tokens)} tokens takes more than half of the "
                "time, so acceptance is counted after the prompts alone. Give longer --prompts, or a larger --time-budget.",
                TreeoptWarning,
                stacklevel=2,
            )

    def _refine_all(self, budget: Budget, times: Mapping[TimedCondition, Times], time: Slice) -> None:
        """Time verification without a plan that tells what matters: every count alike."""
        for number, each in enumerate(times.values()):
            with budget.spending("verify"):
                each.sample(time.part(TIMES_SHARE / (len(times) - number)))

    def _sliced_acceptance(self) -> SlicedAcceptance:
        levels = position_levels(self._room)
        windows = self._countings(levels[0])
        countings = [(counting, levels if not self._contexts else (count,)) for counting, count in windows]
        return SlicedAcceptance(countings, len(self._prompts))

    def _on_few_trees(self, profile: Profile, counted: SlicedAcceptance, time: Slice) -> tuple[MeasuredAcceptance, ...]:
        """Measure `traversal` on as many texts as there is time for, two at least."""
        assert self._fastest_tree is not None
        step_s = float(profile.latencies[0].verify.seconds(1))
        levels = position_levels(self._room)
        found: list[MeasuredAcceptance] = []
        for counting, count in self._countings(levels[0]):
            turn_s = TURNS * count * step_s * len(self._settings.samplings) * max(1, len(self._contexts))
            counting.numbers = counted.numbers[: max(2, int(time.left_s / turn_s))]
            found += counting.on_trees(profile, count, self._fastest_tree, lambda: None)
        return tuple(found)

    @property
    def _room(self) -> int:
        """How many tokens every prompt can be continued by."""
        return _room_tokens(self._target, self._draft, self._prompts)

    def _on_the_fastest_trees(
        self, profile: Profile, positions: int, hidden: bool | None
    ) -> tuple[MeasuredAcceptance, ...]:
        assert self._fastest_tree is not None
        with tqdm(desc="traversal ", unit="text", disable=hidden) as bar:
            return tuple(
                found
                for counting, count in self._countings(positions)
                for found in counting.on_trees(profile, count, self._fastest_tree, bar.update)
            )

    def _with_drafters(self, profile: Profile, positions: int, hidden: bool | None, time: Slice = UNLIMITED) -> Profile:
        measurement = DrafterMeasurement(
            places=self._places(positions),
            texts=len(self._prompts),
            text=self._text,
            settings=self._settings,
            positions=positions,
            recorder=Recorder(self._clock, self._journal),
            time=time,
            categories=self._categories,
        )
        certain = self._certain_choice if time is not UNLIMITED else None
        return measurement.measure(self._drafters, profile, hidden, certain=certain)

    def _certain_choice(self, profile: Profile) -> bool:
        """Return whether the choice among drafters is certain at every temperature, and keep how certain it is."""
        requests = [PlanRequest(temperature=each.temperature) for each in self._settings.samplings]
        self.choice_confidence = min(choice_confidence(drafter_choices(profile, request)) for request in requests)
        return self.choice_confidence >= CERTAIN

    def _latencies(self, hidden: bool | None) -> tuple[StepLatency, ...]:
        with tqdm(total=self._latency_grid.calls, desc="times     ", unit="call", disable=hidden) as bar:
            return self._processes.from_first(lambda: self._latency_grid.measure(bar.update))

    def _prefill(self, hidden: bool | None) -> PrefillLatency:
        rounds = self._settings.rounds
        with tqdm(desc="prompts   ", unit="call", disable=hidden) as bar:
            times = self._prefill_times(bar.update)
            bar.total = times.calls * min(rounds, MOST_ROUNDS)
            return self._processes.from_first(lambda: times.measure(rounds))

    def _prefill_times(self, step: Step) -> PrefillTimes:
        longest = max(*self._settings.context_tokens, *map(len, self._prompts))
        return PrefillTimes(self._target, self._draft, self._text, longest, Recorder(self._clock, self._journal, step))

    def _acceptances(self, positions: int, hidden: bool | None) -> tuple[MeasuredAcceptance, ...]:
        """Return the acceptance of the draft model, under every rule, sampling and context; none without one."""
        if self._draft is None:
            return ()
        countings = self._countings(positions)
        with tqdm(total=len(countings) * len(self._prompts), desc="acceptance", unit="text", disable=hidden) as bar:
            return tuple(found for counting, count in countings for found in counting.measure(count, bar.update))

    def _countings(self, positions: int) -> list[tuple[Counting, int]]:
        """Return what counts, and on how many positions of each text: at every context, or once behind the prompts."""
        windows = self._windows(positions)
        if not windows:
            return [(self._counting(None), positions)]
        texts = self._long_texts(positions)
        return [(self._counting(TextsAtContext(texts, each)), each.positions) for each in windows]

    def _windows(self, positions: int) -> list[Window]:
        """Return the positions of every context length that acceptance is counted at; none behind the prompts."""
        trained = trained_tokens(self._target, self._draft)
        return [Window.around(each, positions, trained) for each in self._contexts]

    def _long_texts(self, positions: int) -> LongTexts:
        """Return texts as long as needed: drafters are decoded with in smaller windows, which begin later."""
        longest = max(each.prompt_tokens for each in self._windows(positions))
        if self._drafters:
            longest = max(self._contexts) + 1
        return LongTexts(self._target, self._prompts, longest, self._journal)

    def _places(self, positions: int) -> list[Place]:
        """Return where drafters are measured: at every context, or once behind the prompts."""
        contexts = self._contexts
        if not contexts:
            return [BehindPrompts(self._prompts)]
        texts, trained = self._long_texts(positions), trained_tokens(self._target, self._draft)
        return [AroundContext(texts=texts, context_tokens=each, trained=trained) for each in contexts]

    def _counting(self, texts: TextsAtContext | None) -> Counting:
        assert self._draft is not None  # whose acceptance is counted
        return Counting(
            self._target,
            self._draft,
            self._prompts,
            self._settings,
            journal=self._journal,
            processes=self._processes,
            texts=texts,
            categories=self._categories,
        )


def _room_tokens(target: LanguageModel, draft: LanguageModel | None, prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens every prompt can be continued by."""
    return trained_tokens(target, draft) - max(map(len, prompts))


def longest_text(
    target: LanguageModel, draft: LanguageModel | None, prompts: Sequence[Sequence[int]], settings: Settings
) -> int:
    """Return the tokens of the longest text that is decoded; under a time budget, of the longest that may be."""
    positions = DRAFTER_POSITIONS if settings.time_budget_s is not None else settings.text_positions(len(prompts))
    trained = trained_tokens(target, draft)
    windows = [Window.around(each, positions, trained) for each in settings.acceptance_contexts]
    if windows:
        return min(trained, max(each.prompt_tokens + each.positions for each in windows))
    return min(trained, max(map(len, prompts)) + positions)


def check_measurable(
    target: LanguageModel, draft: LanguageModel | None, prompts: Sequence[Sequence[int]], settings: Settings
) -> None:
    """Raise InvalidValueError where prompts are missing, or a context or the positions do not fit the models."""
    shortest = shortest_model(target, draft)
    trained = shortest.config.max_positions
    if len(prompts) < 2 or min(map(len, prompts)) == 0:
        raise InvalidValueError(f"prompts: expected at least two, none empty. Got {len(prompts)}.", field="prompts")
    if trained <= ROOM_TOKENS:
        raise InvalidValueError(
            f"context_tokens: expected models that take more than {ROOM_TOKENS} tokens, which the timed steps need. "
            f"{length_limit(shortest)}: use another model.",
            field="context_tokens",
        )
    if max(settings.context_tokens) + ROOM_TOKENS > trained:
        raise InvalidValueError(
            f"context_tokens: expected at most {trained - ROOM_TOKENS}, because {length_limit(shortest)}, and the timed "
            f"steps need {ROOM_TOKENS}. Got {max(settings.context_tokens)}.",
            field="context_tokens",
        )
    longest, room = max(map(len, prompts)), _room_tokens(target, draft, prompts)
    least = LEAST_POSITIONS if settings.time_budget_s is not None else settings.text_positions(len(prompts))
    if settings.acceptance_contexts:
        least = 0  # a prompt is cut where it is too long for a context
    if least > 0 >= room:
        raise InvalidValueError(
            f"prompts: expected at most {trained - 1} tokens before a new one, because {length_limit(shortest)}. Got "
            f"{longest}: give shorter prompts.",
            field="prompts",
        )
    if least > room:
        raise InvalidValueError(
            f"positions: expected at most {room * len(prompts)}, since {len(prompts)} prompts of up "
            f"to {longest} tokens are continued and {length_limit(shortest)}. "
            f"Got {settings.positions}: ask for fewer, or give more prompts.",
            field="positions",
        )
