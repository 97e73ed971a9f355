"""Measuring one drafter with trees of its own: all prompts are decoded with the settings that are fast on a few."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from treeopt.planner import StepModel, step_model
from treeopt.planner.request import PlanRequest
from treeopt.profiler.acceptance.contexts import DecodingPoint, PromptSet
from treeopt.profiler.acceptance.draft_record import RecordFiles, Recording
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.drafters.candidates import (
    DDTREE,
    LOOKUP,
    MIN_SETTINGS,
    REPLAYED,
    PassSeconds,
    add_category_settings,
    find_candidates,
    select_settings,
    tokens_per_s,
)
from treeopt.profiler.drafters.decodes import DecodedSequence, decode_prompts, join_sequences
from treeopt.profiler.drafters.plain_sequences import PlainSequences, limit_positions
from treeopt.profiler.drafters.replays import count_needed_tokens, replay_budgets, replay_lookups, step_seconds
from treeopt.profiler.latency.memory import release_memory
from treeopt.profiler.latency.rounds import Recorder
from treeopt.profiler.settings import RecordSize, Settings
from treeopt.records.draft_record import DraftRecord
from treeopt.records.measured_acceptance import select_categories
from treeopt.records.measured_drafter import MeasuredSetting, MeasuredSettings, ReplayedSequences
from treeopt.records.profile import Profile
from treeopt.records.rules import TARGET_RULE
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.trees.drafter_parameters import PromptLookupSetting
from treeopt.trees.drafter_setting import DrafterSetting

TRIAL_PROMPTS, TRIAL_POSITIONS = 4, 48
"""Sequences that every candidate decodes, to find the settings to decode with in full."""
COUNT_SHARE = 1 / 2
"""Fraction of the time for candidates that replays may take; decoding with the smallest and the largest tree has the rest."""
RECORD = RecordSize(top_k=8, depth=8)
RECORDED_PROMPTS, RECORDED_POSITIONS = 6, 64
"""Sequences along which the draft model is recorded, to find candidates."""


class Candidates(NamedTuple):
    """Settings at one operating point, the fastest first."""

    point: DecodingPoint
    settings: list[DrafterSetting]
    replays: dict[DrafterSetting, ReplayedSequences]
    """Steps along plain decoding of the settings that can be replayed, however many are decoded with."""
    step_s: PassSeconds | None = None
    """From sizes of the target's passes to the seconds of steps; None if replays did not rank the settings."""


@dataclass(frozen=True, kw_only=True)
class SettingsMeasurement:
    """Measures one drafter: first the candidates among its settings, then those that are selected."""

    drafter: LoadedDrafter
    profile: Profile
    """Without drafters."""
    generated: Mapping[str, PlainSequences]
    """Plain decoding of the target, by the names of operating points; only used if the drafter can be replayed."""
    positions: int
    """New tokens of each sequence."""
    categories: Sequence[str]
    """One for each prompt, `""` for none."""
    recorder: Recorder

    def select(self, points: Sequence[DecodingPoint], deadline: Deadline = NO_DEADLINE) -> list[Candidates]:
        """Return the settings to decode with, the same at all of some operating points."""
        ranked = [self._rank(point, part) for point, part in deadline.split(points)]
        selected = select_settings([candidates.settings for candidates in ranked])
        for candidates in ranked:
            if candidates.step_s is not None:
                selected = add_category_settings(selected, candidates.replays, candidates.step_s)
        return [candidates._replace(settings=selected) for candidates in ranked]

    def decode(self, selected: Candidates, prompts: int, deadline: Deadline = NO_DEADLINE) -> MeasuredSettings:
        """Return what up to `prompts` prompts are decoded to with each selected setting, and plainly."""
        point, settings = selected.point, selected.settings
        prompt_set = point.prompt_set(self.positions, prompts)
        numbers, (plain, *decodes) = self._decode("decode", [None, *settings], point, prompt_set, deadline)
        return MeasuredSettings(
            sampling=point.sampling,
            context_tokens=point.middle_tokens(
                [prompt_set.prompts[number] for number in numbers], [sequence.tokens for sequence in plain]
            ),
            plain=join_sequences(plain),
            settings=tuple(
                MeasuredSetting(
                    values=setting.values,
                    max_tokens=self.drafter.make_with_setting(setting).max_tokens,
                    decoded=join_sequences(sequences),
                    replayed=selected.replays.get(setting),
                )
                for setting, sequences in zip(settings, decodes, strict=True)
            ),
            categories=select_categories(self.categories, numbers),
        )

    def _rank(self, point: DecodingPoint, deadline: Deadline) -> Candidates:
        settings = find_candidates(
            self.drafter, partial(self._step_model, point), partial(self._record, point), self._max_tokens
        )
        replays = self._replay(settings, point, deadline.part(COUNT_SHARE))
        if len(settings) <= MIN_SETTINGS:
            return Candidates(point, settings, replays)
        if replays:
            step_s = self._step_seconds(settings, point, deadline)
            by_rate = sorted(replays, key=lambda setting: -tokens_per_s(replays[setting], step_s))
            return Candidates(point, by_rate, replays, step_s)
        if self.drafter.name == DDTREE:  # it has a setting for every budget
            return Candidates(point, [settings[0], settings[-1]], replays)
        decoded = map(join_sequences, self._decode_trial(settings, point, deadline))
        token_s = {
            setting: sequences.step_s / sequences.tokens_per_step
            for setting, sequences in zip(settings, decoded, strict=True)
        }
        return Candidates(point, sorted(settings, key=lambda setting: token_s[setting]), replays)

    def _replay(
        self, settings: Sequence[DrafterSetting], point: DecodingPoint, deadline: Deadline
    ) -> dict[DrafterSetting, ReplayedSequences]:
        """Return the steps of settings along plain decoding, without those for which all sequences are too short."""
        if self.drafter.name not in REPLAYED:
            return {}
        sequences = self.generated[point.name]
        if self.drafter.name == LOOKUP:
            parameters = [setting.parameters for setting in settings]
            lookups = [lookup for lookup in parameters if isinstance(lookup, PromptLookupSetting)]
            replays = replay_lookups(lookups, sequences, self.categories)
        else:
            needed = count_needed_tokens(self.drafter, sequences, self._max_tokens, self.recorder, deadline)
            budgets = [setting.value("budget") for setting in settings]
            replays = replay_budgets(budgets, needed, self.drafter.heads, self.categories)
        return {setting: replay for setting, replay in zip(settings, replays, strict=True) if replay is not None}

    def _step_seconds(
        self, settings: Sequence[DrafterSetting], point: DecodingPoint, deadline: Deadline
    ) -> PassSeconds:
        """Return a function from sizes of the target's passes to the seconds of a step; lookup drafts for nothing."""
        costs = self._step_model(point).costs
        if self.drafter.name == LOOKUP:
            return costs.verify.at
        by_budget = sorted(settings, key=lambda setting: setting.value("budget"))
        plain, *probes = self._decode_trial([None, by_budget[0], by_budget[-1]], point, deadline)
        return step_seconds(costs, plain, probes)

    def _decode_trial(
        self, settings: Sequence[DrafterSetting | None], point: DecodingPoint, deadline: Deadline
    ) -> list[list[DecodedSequence]]:
        """Return what each setting decodes of a few prompts; None is plain decoding."""
        prompt_set = point.prompt_set(min(self.positions, TRIAL_POSITIONS), TRIAL_PROMPTS)
        return self._decode("try", settings, point, prompt_set, deadline, at_least=1)[1]

    def _decode(
        self,
        verb: str,
        settings: Sequence[DrafterSetting | None],
        point: DecodingPoint,
        prompt_set: PromptSet,
        deadline: Deadline,
        at_least: int = 2,
    ) -> tuple[list[int], list[list[DecodedSequence]]]:
        """Return the numbers of the prompts that were decoded in time, and what each setting decoded.

        Args:
            verb: start of the kinds in the checkpoint.
            settings: None is plain decoding.
            point: how the target samples.
            prompt_set: what is decoded.
            deadline: see `decode_prompts`.
            at_least: see `decode_prompts`.
        """
        decoders = {
            f"{verb} {setting.description if setting else 'plain'} {self.drafter.label} {point.name}": partial(
                self._decoder, setting, point
            )
            for setting in settings
        }
        sequence_s = deadline.left_s / (at_least * len(decoders))
        positions = limit_positions(self.profile, prompt_set.positions, sequence_s)
        decodes = decode_prompts(decoders, prompt_set.prompts, positions, self.recorder, deadline, at_least)
        release_memory()  # decoders refer to themselves, so their caches outlive them
        return list(prompt_set.prompts)[: len(decodes[0])], decodes

    def _decoder(self, setting: DrafterSetting | None, point: DecodingPoint) -> Decoder:
        return Decoder(
            self.drafter.target,
            None if setting is None else self.drafter.make_with_setting(setting),
            sampling=point.sampling,
            max_sequence_tokens=self.drafter.capacity,
            cuda_graphs=self.drafter.cuda_graphs,
        )

    @property
    def _max_tokens(self) -> int:
        """Tokens of the largest pass that was timed at all operating points."""
        return min(latency.verify.max_tokens for latency in self.profile.latencies)

    def _step_model(self, point: DecodingPoint) -> StepModel:
        temperature = point.sampling.temperature
        has_rule = self.profile.acceptances_of(rule=TARGET_RULE, temperature=temperature)
        request = PlanRequest(
            rule=TARGET_RULE if has_rule else None,
            temperature=temperature,
            context_tokens=point.source.context_tokens,
            extrapolate=True,  # latencies of a long context are missing if memory ran out
        )
        return step_model(self.profile, request)

    def _record(self, point: DecodingPoint) -> DraftRecord:
        sampling, draft = point.sampling, self.drafter.draft
        assert draft is not None  # candidates that need a record expand a draft model
        prompt_set = point.prompt_set(min(self.positions, RECORDED_POSITIONS), RECORDED_PROMPTS)
        prompts = list(prompt_set.prompts.values())
        settings = Settings(samplings=(sampling,), positions=prompt_set.positions * len(prompts), record=RECORD)
        recording = Recording(self.drafter.target, draft, prompts, settings, files=RecordFiles(None))
        return recording.record(show_progress=False)
