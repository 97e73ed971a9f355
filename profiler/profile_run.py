"""A whole profile: times under every condition, then acceptance under every rule and sampling."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from treeopt.errors import InvalidValueError
from treeopt.profiler.acceptance.contexts import AroundContext, BehindPrompts, LongTexts, Place, TextsAtContext, Window
from treeopt.profiler.acceptance.per_prompt import Counting, FastestTree, counted_rule
from treeopt.profiler.bench.divergence import logits_after
from treeopt.profiler.clock import Clock
from treeopt.profiler.drafters.measuring import DrafterMeasurement
from treeopt.profiler.journal import Journal
from treeopt.profiler.latency.busy import LoadReader
from treeopt.profiler.latency.grid import LatencyGrid
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.profiler.latency.prefill import MOST_ROUNDS, PrefillTimes
from treeopt.profiler.machine import describe_machine, describe_pair, now
from treeopt.profiler.processes.processes import OneProcess, Processes
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.latency import PrefillLatency
from treeopt.records.machine import Pair
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.step_latency import StepLatency
from treeopt.runtime.decoding.limits import shortest_model, trained_tokens
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.runtime.models.finite import check_logits
from treeopt.runtime.models.model import LanguageModel, length_limit
from treeopt.version import TOOL

POSITIONS = "positions"
"""The journal's entry of how many positions of each text a time budget allowed."""
LEAST_POSITIONS = 16
"""Positions of each text that are counted, however small the time budget."""
BUDGET_POSITIONS = 4096
"""Positions of each text that drafters are decoded for, however large the time budget."""


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
        self._prompts = prompts
        self._settings = settings
        self._journal = journal
        self._fastest_tree = fastest_tree
        self._text: list[int] = np.concatenate([np.asarray(prompt) for prompt in prompts]).tolist()
        self._processes = processes or OneProcess()
        self._clock, self._drafters = clock, drafters
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
        times = latencies or self._latencies(hidden)
        prefill = None if latencies else self._prefill(hidden)
        positions = self._processes.from_first(lambda: self._positions(times[0]))
        profile = Profile(
            created=now(),
            tool=TOOL,
            machine=describe_machine(self._target.device),
            pair=self._pair,
            latencies=times,
            prefill=prefill,
            acceptances=acceptances or self._acceptances(positions, hidden),
        )
        if self._on_trees and not acceptances:
            profile = replace(profile, acceptances=self._on_the_fastest_trees(profile, positions, hidden))
        return self._with_drafters(profile, positions, hidden) if self._drafters else profile

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

    def _with_drafters(self, profile: Profile, positions: int, hidden: bool | None) -> Profile:
        measurement = DrafterMeasurement(
            places=self._places(positions),
            texts=len(self._prompts),
            settings=self._settings,
            positions=positions,
            recorder=Recorder(self._clock, self._journal),
        )
        return measurement.measure(self._drafters, profile, hidden)

    def _latencies(self, hidden: bool | None) -> tuple[StepLatency, ...]:
        with tqdm(total=self._latency_grid.calls, desc="times     ", unit="call", disable=hidden) as bar:
            return self._processes.from_first(lambda: self._latency_grid.measure(bar.update))

    def _prefill(self, hidden: bool | None) -> PrefillLatency:
        settings = self._settings
        longest = max(*settings.context_tokens, *map(len, self._prompts))
        with tqdm(desc="prompts   ", unit="call", disable=hidden) as bar:
            recorder = Recorder(self._clock, self._journal, bar.update)
            times = PrefillTimes(self._target, self._draft, self._text, longest, recorder)
            bar.total = times.calls * min(settings.rounds, MOST_ROUNDS)
            return self._processes.from_first(lambda: times.measure(settings.rounds, settings.time_budget_s))

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
        return [Window.around(each, positions, trained) for each in self._settings.acceptance_contexts]

    def _long_texts(self, positions: int) -> LongTexts:
        """Return texts as long as needed: drafters are decoded with in smaller windows, which begin later."""
        longest = max(each.prompt_tokens for each in self._windows(positions))
        if self._drafters:
            longest = max(self._settings.acceptance_contexts) + 1
        return LongTexts(self._target, self._prompts, longest, self._journal)

    def _places(self, positions: int) -> list[Place]:
        """Return where drafters are measured: at every context, or once behind the prompts."""
        contexts = self._settings.acceptance_contexts
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
        )

    def _positions(self, latency: StepLatency) -> int:
        """Return how many positions of each text are counted: as asked for, or as a time budget allows."""
        settings, texts = self._settings, len(self._prompts)
        if settings.time_budget_s is None:
            return settings.text_positions(texts)
        kept = [entry.values[0] for entry in self._journal.entries(POSITIONS)]
        if not kept:
            rows = min(len(settings.asked), latency.verify.max_tokens)
            draft_s = 0.0 if latency.draft is None else float(latency.draft.seconds(rows))
            position_s = float(latency.verify.seconds(rows)) + draft_s
            own_texts = -(-texts // self._processes.count)
            text_s = settings.time_budget_s / 2 / own_texts - self._decoding_s(latency)
            allowed = int(max(0.0, text_s) / position_s / max(1, len(settings.acceptance_contexts)))
            room = _room_tokens(self._target, self._draft, self._prompts)
            kept = [max(LEAST_POSITIONS, min(allowed, room))]
            self._journal.append(POSITIONS, 0, (kept[0],))
        return int(kept[0])

    def _decoding_s(self, latency: StepLatency) -> float:
        """Return about how long it takes to decode a text plainly until it is as long as the longest context."""
        longest = max(self._settings.acceptance_contexts, default=0)
        tokens = max(0, longest - min(map(len, self._prompts)))
        return tokens * float(latency.verify.seconds(1)) * len(self._settings.samplings)


def _room_tokens(target: LanguageModel, draft: LanguageModel | None, prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens every prompt can be continued by."""
    return trained_tokens(target, draft) - max(map(len, prompts))


def longest_text(
    target: LanguageModel, draft: LanguageModel | None, prompts: Sequence[Sequence[int]], settings: Settings
) -> int:
    """Return the tokens of the longest text that is decoded; under a time budget, of the longest that may be."""
    positions = BUDGET_POSITIONS if settings.time_budget_s is not None else settings.text_positions(len(prompts))
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
    if least > room:
        raise InvalidValueError(
            f"positions: expected at most {max(0, room) * len(prompts)}, since {len(prompts)} prompts of up "
            f"to {longest} tokens are continued and {length_limit(shortest)}. "
            f"Got {settings.positions}: ask for fewer, or give more prompts.",
            field="positions",
        )
