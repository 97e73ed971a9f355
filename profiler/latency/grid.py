"""Times over token count, context length and batch size: one condition after the other."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from treeopt.errors import TreeoptError
from treeopt.profiler.clock import Clock
from treeopt.profiler.journal import Journal
from treeopt.profiler.latency.busy import LoadReader
from treeopt.profiler.latency.condition import EXTRA_POINTS, Times
from treeopt.profiler.latency.curve import LIMIT
from treeopt.profiler.latency.memory import give_back_memory, out_of_memory
from treeopt.profiler.latency.passes import PROBE_TREES, ROOM_TOKENS
from treeopt.profiler.latency.rounds import Step, first_points
from treeopt.profiler.latency.timed_condition import TimedCondition
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.step_latency import StepLatency
from treeopt.runtime.models.memory import check_texts, decoder_bytes
from treeopt.runtime.models.model import LanguageModel


class LatencyGrid:
    """The times of a pair under every condition asked for.

    Args:
        target, draft: the models; None for a target alone.
        text: token ids that contexts are made of.
        settings: the conditions, and how much to measure.
        clock: what times the calls.
        journal: where every sample is kept at once.
        load: makes a reader that tells what other programs use from then on; None where nobody looks.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        text: Sequence[int],
        settings: Settings,
        *,
        clock: Clock,
        journal: Journal,
        load: Callable[[], LoadReader] | None = None,
    ) -> None:
        self._target, self._draft = target, draft
        self._text = np.asarray(text)
        self._settings = settings
        self._clock, self._journal = clock, journal
        self._load = load

    @property
    def calls(self) -> int | None:
        """How many calls are timed in all; None where a time budget says when to stop."""
        settings, conditions = self._settings, self._conditions()
        if settings.time_budget_s is not None:
            return None
        passes = (1 if self._draft is None else 2) * min(
            settings.max_tokens, len(first_points(settings.max_tokens)) + EXTRA_POINTS
        )
        probes = sum(tree.nodes <= settings.max_tokens for tree in PROBE_TREES)
        rules = sum(1 if each.sampling.greedy else len(settings.rules) for each in conditions)
        return settings.rounds * (len(conditions) * passes + rules * probes)

    @property
    def conditions(self) -> int:
        """How many conditions are not known to be beyond memory."""
        return len(self._conditions())

    def measure(self, step: Step) -> tuple[StepLatency, ...]:
        """Return the times under every condition that fits the memory, measuring what the journal does not hold.

        Raises OutOfMemoryError, naming the most that fit, before anything is timed where the caches of the largest batch do
        not fit behind the shortest context, and TreeoptError where not even one text fits.
        """
        return tuple(each.latency() for each in self.each_fitting(Times.measure, step).values())

    def each_fitting(self, measure: Callable[[Times], object], step: Step) -> dict[TimedCondition, Times]:
        """Return what times each condition that fits the memory, after measuring with it; raises as `measure` does."""
        self._check_batches()
        fitting: dict[TimedCondition, Times] = {}
        for condition in self._conditions():
            if condition.batch_size > 1 and not any(_fewer_texts(each, condition) for each in fitting):
                continue  # fewer texts did not fit, so more do not
            times = self._times(condition, step)
            if self._fits(condition, partial(measure, times)):
                fitting[condition] = times
            del times
            give_back_memory()
        if not fitting:
            raise TreeoptError(
                "times: memory ran out before a single token was timed. Use a smaller --context-tokens, or --offload."
            )
        return fitting

    def _fits(self, condition: TimedCondition, measure: Callable[[], object]) -> bool:
        """Return whether a condition could be measured; the exception is gone before memory is given back."""
        try:
            measure()
        except Exception as error:
            if not out_of_memory(error):
                raise
            self._journal.append(LIMIT + condition.kind("verify"), 1, ())
            return False
        return True

    def _check_batches(self) -> None:
        settings = self._settings
        each = decoder_bytes(
            self._target,
            self._draft,
            None,
            text_tokens=min(settings.context_tokens) + ROOM_TOKENS,
            max_nodes=settings.max_tokens,
            sampling=settings.samplings[0],
        )
        if max(settings.batch_sizes) > 1:
            check_texts(each, max(settings.batch_sizes), there=0)

    def _times(self, condition: TimedCondition, step: Step) -> Times:
        settings = self._settings
        text: list[int] = np.resize(self._text, condition.context_tokens + ROOM_TOKENS).tolist()
        return Times(
            self._target,
            self._draft,
            text,
            condition,
            settings,
            Recorder(self._clock, self._journal, step),
            load=None if self._load is None else self._load(),
        )

    def _conditions(self) -> list[TimedCondition]:
        """Return the conditions not known to be beyond memory, fewer texts before more."""
        settings = self._settings
        ways = {each.greedy: each for each in reversed(settings.samplings)}  # the first sampling of either kind
        all_of_them = [
            TimedCondition(context_tokens=context, batch_size=batch, sampling=sampling)
            for sampling in dict.fromkeys(ways[each.greedy] for each in settings.samplings)
            for context in settings.context_tokens
            for batch in sorted(settings.batch_sizes)
        ]
        return [each for each in all_of_them if not self._beyond_memory(each)]

    def _beyond_memory(self, condition: TimedCondition) -> bool:
        return any(entry.key == 1 for entry in self._journal.entries(LIMIT + condition.kind("verify")))


def _fewer_texts(fitting: TimedCondition, condition: TimedCondition) -> bool:
    return fitting.batch_size < condition.batch_size and condition == replace(fitting, batch_size=condition.batch_size)
