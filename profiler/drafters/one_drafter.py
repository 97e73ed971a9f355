"""Measuring one drafter: the acceptance of static trees, or decoding with the settings of one with trees of its own."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product, zip_longest

import numpy as np

from treeopt.planner import StepModel, step_model
from treeopt.profiler.acceptance.contexts import PromptSet, PromptSource
from treeopt.profiler.acceptance.draft_record import RecordFiles, Recording
from treeopt.profiler.budget import Deadline
from treeopt.profiler.drafters.acceptance import measure_head_acceptance, root_counter
from treeopt.profiler.drafters.block_replay import step_seconds
from treeopt.profiler.drafters.by_category import PassSeconds, add_category_settings
from treeopt.profiler.drafters.candidates import DDTREE, LOOKUP, REPLAYED, find_candidates
from treeopt.profiler.drafters.decodes import (
    Configuration,
    DecodedSequence,
    count_passes,
    decode_prompts,
    join_sequences,
)
from treeopt.profiler.drafters.plain_sequences import (
    GeneratedSequences,
    describe_point,
    limit_positions,
)
from treeopt.profiler.drafters.replays import SettingReplay
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.settings import RecordSize, Settings
from treeopt.records.draft_record import DraftRecord
from treeopt.records.measured_acceptance import select_categories
from treeopt.records.measured_drafter import (
    DrafterLatency,
    MeasuredDrafter,
    MeasuredSetting,
    MeasuredSettings,
    MeasuredTrees,
    ReplayedSequences,
)
from treeopt.records.profile import Profile
from treeopt.records.rules import TARGET_RULE
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.trees import chain
from treeopt.trees.drafter_setting import STATIC_TREE_DRAFTERS, DrafterSetting

TRIAL_PROMPTS, TRIAL_POSITIONS = 4, 48
"""Sequences that every candidate decodes, to find the settings to decode with in full."""
MIN_SETTINGS, DECODED_POSITIONS = 2, 128
"""Settings to decode with on all prompts, one per context if those are more, and the most new tokens of each sequence."""
TRIAL_SHARE = 1 / 3
"""Fraction of the time that finding the fastest settings may take."""
COUNT_SHARE = 1 / 2
"""Fraction of that time for what is replayed; decoding with the smallest and the largest tree has the rest."""
RECORD = RecordSize(top_k=8, depth=8)
RECORDED_PROMPTS, RECORDED_POSITIONS = 6, 64
"""Sequences along which the draft model is recorded, to find candidates."""


@dataclass(frozen=True, kw_only=True)
class DrafterProfiler:
    """Measures one drafter."""

    drafter: LoadedDrafter
    profile: Profile
    """Without drafters."""
    sources: Sequence[PromptSource]
    generated: GeneratedSequences
    """Plain decoding of the target."""
    latencies: tuple[DrafterLatency, ...]
    """Of drafting static trees; empty for a drafter with trees of its own."""
    settings: Settings
    positions: int
    """New tokens of each sequence."""
    prompt_count: int
    decoded_prompts: int
    """Prompts that are decoded with a drafter that has trees of its own."""
    categories: Sequence[str]
    recorder: Recorder
    deadline: Deadline
    expect_ticks: Callable[[int], None]
    """Announces ticks of the recorder to the progress bar."""

    def measure(self) -> MeasuredDrafter:
        drafter = self.drafter
        static = drafter.name in STATIC_TREE_DRAFTERS
        return MeasuredDrafter(
            name=drafter.name,
            source=drafter.source,
            digest=drafter.digest,
            layers=drafter.layers,
            block_draft_tokens=drafter.block_draft_tokens,
            latencies=self.latencies,
            trees=self._measure_trees() if static else (),
            decodes=() if static else self._measure_decodes(),
        )

    def _measure_trees(self) -> tuple[MeasuredTrees, ...]:
        points = list(product(self.settings.samplings, self.sources))
        return tuple(
            self._measure_trees_at(sampling, source, self.deadline.part(1 / (len(points) - number)))
            for number, (sampling, source) in enumerate(points)
        )

    def _measure_trees_at(self, sampling: Sampling, source: PromptSource, deadline: Deadline) -> MeasuredTrees:
        prompt_set, generated = self.generated[describe_point(sampling, source)]
        count = root_counter(
            self.drafter,
            prompt_set.prompts,
            {number: tokens[: prompt_set.positions] for number, tokens in generated.items()},
            sampling=sampling,
            branching=self.settings.branching,
            depth=self.settings.depth,
        )
        numbers = [
            number for number in range(self.prompt_count) if number in generated or number not in prompt_set.prompts
        ]
        self.expect_ticks(len(numbers))
        prompts = [prompt_set.prompts[number] for number in generated]
        return measure_head_acceptance(
            count,
            numbers,
            sampling,
            _mean_context_tokens(source, prompts, map(len, generated.values())),
            f"acceptance {self._kind(sampling, source)}",
            self.recorder.checkpoint,
            self.recorder.tick,
            deadline,
            categories=self.categories,
        )

    def _measure_decodes(self) -> tuple[MeasuredSettings, ...]:
        samplings = self.settings.samplings
        return tuple(
            decodes
            for number, sampling in enumerate(samplings)
            for decodes in self._measure_sampling(sampling, self.deadline.part(1 / (len(samplings) - number)))
        )

    def _measure_sampling(self, sampling: Sampling, deadline: Deadline) -> list[MeasuredSettings]:
        trial_deadline, sources = deadline.part(TRIAL_SHARE), self.sources
        shares = [1 / left for left in range(len(sources), 0, -1)]
        ranked = [
            self._rank_candidates(sampling, source, trial_deadline.part(share))
            for source, share in zip(sources, shares, strict=True)
        ]
        selected = select_settings(ranked)
        if self.drafter.name in REPLAYED and any(self.categories):
            for source, settings in zip(sources, ranked, strict=True):
                replayed = self._replay.replay_all(settings, sampling, source)
                step_s = self._step_seconds(settings, sampling, source, trial_deadline)
                selected = add_category_settings(selected, replayed, step_s)
        return [
            self._decode_settings(selected, sampling, source, deadline.part(share))
            for source, share in zip(sources, shares, strict=True)
        ]

    def _rank_candidates(self, sampling: Sampling, source: PromptSource, deadline: Deadline) -> list[DrafterSetting]:
        settings = find_candidates(
            self.drafter,
            partial(self._step_model, sampling, source),
            self._record_maker(sampling, source),
            self._max_tokens,
        )
        if len(settings) <= MIN_SETTINGS:
            return settings
        if self.drafter.name in REPLAYED and (ranked := self._rank_by_replay(settings, sampling, source, deadline)):
            return ranked
        decodes = self._decode_trial(settings, sampling, source, deadline)
        rates = [
            sum(sequence.tokens for sequence in sequences) / sum(sequence.seconds for sequence in sequences)
            for sequences in decodes
        ]
        order = sorted(range(len(settings)), key=lambda index: -rates[index])
        return [settings[index] for index in order]

    def _rank_by_replay(
        self, settings: Sequence[DrafterSetting], sampling: Sampling, source: PromptSource, deadline: Deadline
    ) -> list[DrafterSetting]:
        """Return settings by tokens per second, the fastest first; few or none if the sequences are too short."""
        replayed = self._replay.replay_all(settings, sampling, source, deadline.part(COUNT_SHARE))
        if self.drafter.name == DDTREE and not replayed:
            return [settings[0], settings[-1]]
        step_s = self._step_seconds(settings, sampling, source, deadline)
        rates = {
            setting: sum(sequences.tokens) / float(step_s(np.array(sequences.pass_tokens)) @ np.array(sequences.passes))
            for setting, sequences in replayed.items()
        }
        return sorted(rates, key=lambda setting: -rates[setting])

    def _step_seconds(
        self, settings: Sequence[DrafterSetting], sampling: Sampling, source: PromptSource, deadline: Deadline
    ) -> PassSeconds:
        """Return a function from sizes of the target's passes to the seconds of a step; lookup drafts for nothing."""
        costs = self._step_model(sampling, source).costs
        if self.drafter.name == LOOKUP:
            return costs.verify.at
        by_budget = sorted(settings, key=lambda setting: setting.value("budget"))
        plain, *probes = self._decode_trial([None, by_budget[0], by_budget[-1]], sampling, source, deadline)
        return step_seconds(costs, plain, probes)

    def _decode_trial(
        self,
        settings: Sequence[DrafterSetting | None],
        sampling: Sampling,
        source: PromptSource,
        deadline: Deadline,
    ) -> list[list[DecodedSequence]]:
        """Return what each setting decodes of a few prompts; None is plain decoding."""
        kind = self._kind(sampling, source)
        configurations = [
            self._configuration(f"try {setting.description if setting else 'plain'} {kind}", sampling, setting)
            for setting in settings
        ]
        prompt_set = source.prompt_set(sampling, min(self.positions, TRIAL_POSITIONS), TRIAL_PROMPTS)
        return self._decode(configurations, prompt_set, deadline, at_least=1)[1]

    @cached_property
    def _replay(self) -> SettingReplay:
        return SettingReplay(
            drafter=self.drafter,
            generated=self.generated,
            categories=self.categories,
            max_tokens=self._max_tokens,
            recorder=self.recorder,
            expect_ticks=self.expect_ticks,
        )

    @property
    def _max_tokens(self) -> int:
        """Tokens of the largest pass that was timed at all operating points."""
        return min(latency.verify.max_tokens for latency in self.profile.latencies)

    def _decode_settings(
        self, settings: Sequence[DrafterSetting], sampling: Sampling, source: PromptSource, deadline: Deadline
    ) -> MeasuredSettings:
        kind = self._kind(sampling, source)
        configurations = [
            self._configuration(f"decode plain {kind}", sampling),
            *(self._configuration(f"decode {setting.description} {kind}", sampling, setting) for setting in settings),
        ]
        replays = self._replay.replay(settings, sampling, source, deadline)
        prompt_set = source.prompt_set(sampling, min(self.positions, DECODED_POSITIONS), self.decoded_prompts)
        prompts, (plain, *decodes) = self._decode(configurations, prompt_set, deadline)
        categories = select_categories(self.categories, prompts)
        return MeasuredSettings(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            context_tokens=_mean_context_tokens(source, prompts.values(), (sequence.tokens for sequence in plain)),
            plain=join_sequences(plain),
            settings=tuple(
                _count_setting(
                    setting,
                    self.drafter.make_with_setting(setting).max_tokens,
                    sequences,
                    replayed,
                    by_sequence=bool(categories),
                )
                for setting, sequences, replayed in zip(settings, decodes, replays, strict=True)
            ),
            categories=categories,
        )

    def _decode(
        self, configurations: Sequence[Configuration], prompt_set: PromptSet, deadline: Deadline, at_least: int = 2
    ) -> tuple[dict[int, Sequence[int]], list[list[DecodedSequence]]]:
        """Return the prompts that were decoded in time, and what each configuration decoded."""
        self.expect_ticks(len(configurations) * len(prompt_set.prompts))
        sequence_s = deadline.left_s / (at_least * len(configurations))
        positions = limit_positions(self.profile, prompt_set.positions, sequence_s)
        decodes = decode_prompts(configurations, prompt_set.prompts, positions, self.recorder, deadline, at_least)
        return dict(list(prompt_set.prompts.items())[: len(decodes[0])]), decodes

    def _configuration(self, kind: str, sampling: Sampling, setting: DrafterSetting | None = None) -> Configuration:
        def make() -> Decoder:
            drafter: Drafter | None = None if setting is None else self.drafter.make_with_setting(setting)
            return Decoder(
                self.drafter.target,
                drafter,
                chain(0) if drafter is None else None,
                sampling=sampling,
                max_sequence_tokens=self.drafter.capacity,
                cuda_graphs=self.settings.cuda_graphs,
            )

        return Configuration(kind, make)

    def _kind(self, sampling: Sampling, source: PromptSource) -> str:
        """Return the end of the checkpoint's kinds of this drafter, sampling and context length."""
        return f"{self.drafter.label} {describe_point(sampling, source)}"

    def _step_model(self, sampling: Sampling, source: PromptSource) -> StepModel:
        temperature = sampling.temperature
        has_rule = self.profile.acceptances_of(rule=TARGET_RULE, temperature=temperature)
        return step_model(
            self.profile,
            rule=TARGET_RULE if has_rule else None,
            temperature=temperature,
            context_tokens=source.context_tokens,
            extrapolate=True,  # latencies of a long context are missing if memory ran out
        )

    def _record_maker(self, sampling: Sampling, source: PromptSource) -> Callable[[], DraftRecord]:
        @cache
        def make_record() -> DraftRecord:
            prompt_set = source.prompt_set(sampling, min(self.positions, RECORDED_POSITIONS), RECORDED_PROMPTS)
            prompts = list(prompt_set.prompts.values())
            settings = Settings(samplings=(sampling,), positions=prompt_set.positions * len(prompts), record=RECORD)
            draft = self.drafter.draft
            assert draft is not None  # candidates that need a record expand a draft model
            recording = Recording(self.drafter.target, draft, prompts, settings, files=RecordFiles(None))
            return recording.record(show_progress=False)

        return make_record


def select_settings(ranked: Sequence[Sequence[DrafterSetting]]) -> list[DrafterSetting]:
    """Return the settings to decode with in full: the fastest at every context, then the next, at least `MIN_SETTINGS`.

    Args:
        ranked: settings at each context, the fastest first.
    """
    by_rank = dict.fromkeys(setting for row in zip_longest(*ranked) for setting in row if setting is not None)
    return list(by_rank)[: max(MIN_SETTINGS, len({settings[0] for settings in ranked}))]


def _mean_context_tokens(source: PromptSource, prompts: Iterable[Sequence[int]], new_tokens: Iterable[int]) -> int:
    """Return the context length in the middle of the new tokens, on average."""
    if source.context_tokens is not None:
        return source.context_tokens
    return round(float(np.mean([len(prompt) + new / 2 for prompt, new in zip(prompts, new_tokens, strict=True)])))


def _count_setting(
    setting: DrafterSetting,
    max_tokens: int,
    sequences: Sequence[DecodedSequence],
    replayed: ReplayedSequences | None,
    *,
    by_sequence: bool,
) -> MeasuredSetting:
    passes = count_passes(sequences)
    return MeasuredSetting(
        values=setting.values,
        max_tokens=max_tokens,
        decoded=join_sequences(sequences),
        pass_tokens=tuple(passes),
        passes=tuple(passes.values()),
        passes_by_sequence=tuple(tuple(sequence.passes.get(size, 0) for size in passes) for sequence in sequences)
        if by_sequence
        else (),
        replayed=replayed,
    )
