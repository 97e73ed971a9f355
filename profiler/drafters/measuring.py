"""Measuring all requested drafters at every temperature, after the rest of the profile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import NoReturn

from tqdm import tqdm

from treeopt.profiler.acceptance.contexts import PromptSource
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.drafters.candidates import REPLAYED
from treeopt.profiler.drafters.one_drafter import DrafterProfiler
from treeopt.profiler.drafters.plain_sequences import (
    GeneratedSequences,
    describe_point,
    generate_sequences,
    limit_positions,
)
from treeopt.profiler.drafters.times import DrafterTimer
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.settings import Settings
from treeopt.records.measured_drafter import DrafterLatency, MeasuredDrafter
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
COUNTED_ALONG_SEQUENCES = (*STATIC_TREE_DRAFTERS, *REPLAYED)
"""Drafters whose tokens per step need no decoding of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterMeasurement:
    """Measures drafters on the same prompts."""

    sources: Sequence[PromptSource]
    """The whole prompts, or one source for each context length."""
    prompt_count: int
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

    def measure(
        self,
        drafters: Sequence[LoadedDrafter],
        profile: Profile,
        hidden: bool | None,
        *,
        is_certain: Callable[[Profile], bool] | None = None,
    ) -> Profile:
        """Return a profile with the drafters in it; what the checkpoint contains is not measured again.

        Args:
            drafters: what is measured.
            profile: what was measured without them.
            hidden: whether bars are hidden.
            is_certain: whether a profile makes the choice among them certain.  It is called after a few prompts, and again
                after twice as many, until the choice is certain or the time is over.  By default all prompts are decoded.
        """
        prompts = self.prompt_count if is_certain is None else min(FIRST_PROMPTS, self.prompt_count)
        counted = [drafter for drafter in drafters if drafter.name in COUNTED_ALONG_SEQUENCES]
        generated = self._generate(counted[0].target, profile, hidden) if counted else {}
        latencies = self._time_drafters(drafters, profile, hidden)
        while True:
            measured = self._measure_on_prompts(prompts, drafters, profile, generated, latencies, hidden)
            result = replace(profile, drafters=measured)
            if prompts == self.prompt_count or self.deadline.over() or (is_certain is not None and is_certain(result)):
                return result
            prompts = min(2 * prompts, self.prompt_count)

    def _generate(self, target: LanguageModel, profile: Profile, hidden: bool | None) -> GeneratedSequences:
        """Return what the target generates by plain decoding at every operating point, on as many prompts as time permits."""
        points = list(product(self.settings.samplings, self.sources))
        deadline = self.deadline.part(GENERATION_SHARE)
        generated: GeneratedSequences = {}
        with tqdm(desc="sequences ", unit="sequence", disable=hidden) as bar:
            for number, (sampling, source) in enumerate(points):
                part = deadline.part(1 / (len(points) - number))
                prompt_set = source.prompt_set(sampling, self.positions)
                _extend_bar(bar, len(prompt_set.prompts))
                positions = limit_positions(profile, prompt_set.positions, part.left_s / 2)
                prompt_set = prompt_set._replace(positions=positions)
                name = describe_point(sampling, source)
                generated[name] = (
                    prompt_set,
                    generate_sequences(target, prompt_set, sampling, name, self.recorder.checkpoint, part, bar.update),
                )
        return generated

    def _time_drafters(
        self, drafters: Sequence[LoadedDrafter], profile: Profile, hidden: bool | None
    ) -> dict[str, tuple[DrafterLatency, ...]]:
        latencies = {}
        with tqdm(desc="drafting  ", unit="call", disable=hidden) as bar:
            for number, drafter in enumerate(drafters):
                if drafter.name in STATIC_TREE_DRAFTERS:
                    share = self.deadline.part(LATENCY_SHARE / (len(drafters) - number))
                    recorder = replace(self.recorder, tick=bar.update)
                    timer = DrafterTimer(drafter, self.tokens, self.settings, recorder)
                    latencies[drafter.label] = timer.measure(profile.latencies, share)
        return latencies

    def _measure_on_prompts(
        self,
        prompts: int,
        drafters: Sequence[LoadedDrafter],
        profile: Profile,
        generated: GeneratedSequences,
        latencies: Mapping[str, tuple[DrafterLatency, ...]],
        hidden: bool | None,
    ) -> tuple[MeasuredDrafter, ...]:
        measured = []
        for number, drafter in enumerate(drafters):
            deadline = self.deadline.part(1 / (len(drafters) - number))
            with tqdm(desc=f"{drafter.label:<10}", unit="text", disable=hidden) as bar:
                profiler = DrafterProfiler(
                    drafter=drafter,
                    profile=profile,
                    sources=self.sources,
                    generated=generated,
                    latencies=latencies.get(drafter.label, ()),
                    settings=self.settings,
                    positions=self.positions,
                    prompt_count=self.prompt_count,
                    decoded_prompts=prompts,
                    categories=self.categories,
                    recorder=replace(self.recorder, tick=bar.update),
                    deadline=deadline,
                    expect_ticks=partial(_extend_bar, bar),
                )
                measured.append(profiler.measure())
        return tuple(measured)


def _extend_bar(bar: "tqdm[NoReturn]", steps: int) -> None:
    bar.total = (bar.total or 0) + steps
    bar.refresh()
