"""Measuring all requested drafters at every temperature, after the rest of the profile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from treeopt.profiler.acceptance.contexts import DecodingPoint, PromptSource
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.drafters.acceptance import measure_trees
from treeopt.profiler.drafters.candidates import REPLAYED
from treeopt.profiler.drafters.decoded_settings import Candidates, SettingsMeasurement
from treeopt.profiler.drafters.plain_sequences import PlainSequences, generate_sequences, limit_positions
from treeopt.profiler.drafters.times import DrafterTimer
from treeopt.profiler.latency.memory import release_memory
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.measured_drafter import DrafterLatency, MeasuredDrafter, MeasuredSettings, MeasuredTrees
from treeopt.records.profile import Profile
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees.drafter_setting import STATIC_TREE_DRAFTERS

LATENCY_SHARE = 1 / 2
"""Fraction of the time for a drafter of static trees that its passes and steps may take; counting acceptance has the rest."""
FIRST_PROMPTS = 8
"""Prompts that are decoded before the first check whether the choice among drafters is certain."""
GENERATION_SHARE = 1 / 4
"""Fraction of the time that generating the sequences may take along which drafters are counted."""
TRIAL_SHARE = 1 / 3
"""Fraction of the time for a drafter with trees of its own that finding its fastest settings may take."""
COUNTED_ALONG_SEQUENCES = (*STATIC_TREE_DRAFTERS, *REPLAYED)
"""Drafters whose tokens per step need no decoding of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterMeasurement:
    """Measures drafters on the same prompts."""

    drafters: Sequence[LoadedDrafter]
    profile: Profile
    """What was measured without them."""
    sources: Sequence[PromptSource]
    """The whole prompts, or one source for each context length."""
    tokens: Sequence[int]
    """Token ids that the contexts of timed steps are made of."""
    settings: Settings
    positions: int
    """New tokens of each sequence."""
    recorder: Recorder
    deadline: Deadline = NO_DEADLINE
    """Of all drafters together."""
    categories: Sequence[str] = ()
    """One for each prompt, `""` for none."""

    def measure(self, is_certain: Callable[[Profile], bool] | None = None) -> Profile:
        """Return the profile with the drafters in it; what the checkpoint contains is not measured again.

        Args:
            is_certain: whether a profile makes the choice among them certain.  It is called after a few prompts, and again
                after twice as many, until the choice is certain or the time is over.  By default all prompts are decoded.
        """
        all_prompts = len(self.sources[0])
        prompts = all_prompts if is_certain is None else min(FIRST_PROMPTS, all_prompts)
        counted = [drafter for drafter in self.drafters if drafter.name in COUNTED_ALONG_SEQUENCES]
        generated = self._generate(counted[0].target) if counted else {}
        latencies = self._time_drafters()
        selected = self._select_settings(generated)
        while True:
            measured = self._measure_on_prompts(prompts, generated, latencies, selected)
            result = replace(self.profile, drafters=measured)
            if prompts == all_prompts or self.deadline.over() or (is_certain is not None and is_certain(result)):
                return result
            prompts = min(2 * prompts, all_prompts)

    @property
    def _points(self) -> list[DecodingPoint]:
        return [DecodingPoint(*pair) for pair in product(self.settings.samplings, self.sources)]

    def _generate(self, target: LanguageModel) -> dict[str, PlainSequences]:
        """Return what the target generates at every operating point, by its name, on as many prompts as time permits."""
        generated = {}
        for point, part in self.deadline.part(GENERATION_SHARE).split(self._points):
            prompt_set = point.prompt_set(self.positions)
            positions = limit_positions(self.profile, prompt_set.positions, part.left_s / 2)
            prompt_set = prompt_set._replace(positions=positions)
            checkpoint, tick = self.recorder.checkpoint, self.recorder.tick
            generated[point.name] = generate_sequences(target, point, prompt_set, checkpoint, part, tick)
            release_memory()  # decoders refer to themselves, so their caches outlive them
        return generated

    def _time_drafters(self) -> dict[str, tuple[DrafterLatency, ...]]:
        latencies = {}
        for number, drafter in enumerate(self.drafters):
            if drafter.name in STATIC_TREE_DRAFTERS:
                share = self.deadline.part(LATENCY_SHARE / (len(self.drafters) - number))
                timer = DrafterTimer(drafter, self.tokens, self.settings, self.recorder)
                latencies[drafter.label] = timer.measure(self.profile.latencies, share)
        return latencies

    def _select_settings(self, generated: Mapping[str, PlainSequences]) -> dict[str, list[Candidates]]:
        """Return the settings to decode with at every operating point, by the labels of drafters with trees of their own."""
        own_trees = [drafter for drafter in self.drafters if drafter.name not in STATIC_TREE_DRAFTERS]
        if not own_trees:
            return {}
        deadline = self.deadline.part(TRIAL_SHARE * len(own_trees) / len(self.drafters))
        selected: dict[str, list[Candidates]] = {}
        for (drafter, sampling), part in deadline.split(list(product(own_trees, self.settings.samplings))):
            points = [point for point in self._points if point.sampling == sampling]
            measurement = self._settings_measurement(drafter, generated)
            selected.setdefault(drafter.label, []).extend(measurement.select(points, part))
        return selected

    def _measure_on_prompts(
        self,
        prompts: int,
        generated: Mapping[str, PlainSequences],
        latencies: Mapping[str, tuple[DrafterLatency, ...]],
        selected: Mapping[str, Sequence[Candidates]],
    ) -> tuple[MeasuredDrafter, ...]:
        """Return the drafters; those with trees of their own decode up to `prompts` prompts, others count all."""
        measured = []
        for drafter, deadline in self.deadline.split(self.drafters):
            trees: tuple[MeasuredTrees, ...] = ()
            decodes: tuple[MeasuredSettings, ...] = ()
            if drafter.name in STATIC_TREE_DRAFTERS:
                trees = tuple(
                    measure_trees(drafter, sequences, self.settings, self.recorder, part, self.categories)
                    for sequences, part in deadline.split(list(generated.values()))
                )
            else:
                measurement = self._settings_measurement(drafter, generated)
                decodes = tuple(
                    measurement.decode(candidates, prompts, part)
                    for candidates, part in deadline.split(selected[drafter.label])
                )
            measured.append(
                MeasuredDrafter(
                    setting=drafter.setting,
                    latencies=latencies.get(drafter.label, ()),
                    trees=trees,
                    decodes=decodes,
                )
            )
        return tuple(measured)

    def _settings_measurement(
        self, drafter: LoadedDrafter, generated: Mapping[str, PlainSequences]
    ) -> SettingsMeasurement:
        return SettingsMeasurement(
            drafter=drafter,
            profile=self.profile,
            generated=generated,
            positions=self.positions,
            categories=self.categories,
            recorder=self.recorder,
        )
