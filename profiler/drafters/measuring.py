"""Every drafter that is asked for, at every temperature: measured last, from what the profile holds by then."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product, zip_longest
from typing import NoReturn

import numpy as np
from tqdm import tqdm

from treeopt.planner import StepModel, step_model
from treeopt.profiler.acceptance.contexts import Place, Stretch
from treeopt.profiler.acceptance.draft_record import Recording, TextFiles
from treeopt.profiler.budget import UNLIMITED, Slice
from treeopt.profiler.drafters.acceptance import CountedAcceptance, counted_acceptance, counter
from treeopt.profiler.drafters.by_category import settings_of_categories
from treeopt.profiler.drafters.candidates import LOOKUP, candidates
from treeopt.profiler.drafters.decodes import (
    Configuration,
    DecodedText,
    decode_prompts,
    middle_tokens,
    passes_of,
    together,
)
from treeopt.profiler.drafters.plain_texts import (
    GeneratedTexts,
    PlainTexts,
    affordable_positions,
    condition_name,
    replayed_lookups,
)
from treeopt.profiler.drafters.times import DrafterTimes
from treeopt.profiler.recorder import Recorder
from treeopt.profiler.settings import RecordSize, Settings
from treeopt.records.categories import text_categories
from treeopt.records.draft_record import DraftRecord
from treeopt.records.measured_drafter import (
    CountedDecodes,
    CountedSetting,
    DrafterLatency,
    MeasuredDrafter,
    MeasuredTrees,
    ReplayedTexts,
)
from treeopt.records.profile import Profile
from treeopt.records.rules import GIVEN_TOKENS
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.runtime.models.model import LanguageModel
from treeopt.trees import chain
from treeopt.trees.drafter_setting import TREES, DrafterSetting
from treeopt.trees.own_trees import PromptLookupSetting

TRIED_PROMPTS, TRIED_POSITIONS = 4, 48
"""Texts that every candidate is decoded with, to find those that are decoded with in full."""
KEPT, KEPT_POSITIONS = 2, 128
"""Settings that are decoded with on all prompts, and how long their texts are at most; one of every context, where more."""
TIMES_SHARE = 1 / 2
"""Of the time for a drafter of static trees, what its passes and steps may take; what it accepts is counted in the rest."""
RECORD = RecordSize(top_k=8, depth=8)
RECORDED_PROMPTS, RECORDED_POSITIONS = 6, 64
"""Texts along which the draft model is recorded, to find candidates."""
FIRST_PROMPTS = 8
"""Prompts that are decoded before it is asked whether the choice among drafters is certain."""
PLAIN_SHARE = 1 / 4
"""Of the time, what texts may take along which drafters are counted."""
TRYING_SHARE = 1 / 3
"""Of the time, what finding the fastest settings may take."""
COUNTED_ALONG_TEXTS = (*TREES, LOOKUP)
"""Drafters that need no step of their own to be counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterMeasurement:
    """What drafters are measured with.

    Args of all: the texts are those that the profile's acceptance is counted on.
    """

    places: Sequence[Place]
    """Where texts are continued: behind the prompts, or around several context lengths."""
    texts: int
    """How many prompts there are."""
    text: Sequence[int]
    """Token ids that the contexts of timed steps are made of."""
    settings: Settings
    positions: int
    """New tokens of each text."""
    recorder: Recorder
    """What times texts, and where they are kept."""
    time: Slice = UNLIMITED
    """How long all of them together may take."""
    categories: Sequence[str] = ()
    """One for each prompt, `""` for none."""

    def measure(
        self,
        drafters: Sequence[LoadedDrafter],
        profile: Profile,
        hidden: bool | None,
        *,
        certain: Callable[[Profile], bool] | None = None,
    ) -> Profile:
        """Return a profile with the drafters in it; those of which the journal holds all are not run again.

        Args:
            drafters: what is measured, on the same prompts.
            profile: what was measured without them.
            hidden: whether bars are hidden.
            certain: whether a profile makes the choice among them certain: asked after a few prompts, and again after
                twice as many, until it is or the time is over.  By default all prompts are decoded.
        """
        prompts = self.texts if certain is None else min(FIRST_PROMPTS, self.texts)
        counted = [each for each in drafters if each.name in COUNTED_ALONG_TEXTS]
        generated = self._generated(counted[0].target, profile, hidden) if counted else {}
        timed = self._timed(drafters, profile, hidden)
        while True:
            found = replace(profile, drafters=self._on_prompts(prompts, drafters, profile, generated, timed, hidden))
            if prompts == self.texts or self.time.over() or (certain is not None and certain(found)):
                return found
            prompts = min(2 * prompts, self.texts)

    def _generated(self, target: LanguageModel, profile: Profile, hidden: bool | None) -> GeneratedTexts:
        """Return what the target generates alone under every condition, on as many prompts as there is time for."""
        conditions = list(product(self.settings.samplings, self.places))
        texts, time = PlainTexts(target, self.recorder.journal), self.time.part(PLAIN_SHARE)
        found: GeneratedTexts = {}
        with tqdm(desc="texts     ", unit="text", disable=hidden) as bar:
            for number, (sampling, place) in enumerate(conditions):
                part = time.part(1 / (len(conditions) - number))
                stretch = place.stretch(sampling, self.positions)
                _more(bar, len(stretch.prompts))
                stretch = stretch._replace(positions=affordable_positions(profile, stretch.positions, part.left_s / 2))
                name = condition_name(sampling, place)
                found[name] = stretch, texts.decoded(stretch, sampling, name, part, bar.update)
        return found

    def _timed(
        self, drafters: Sequence[LoadedDrafter], profile: Profile, hidden: bool | None
    ) -> dict[str, tuple[DrafterLatency, ...]]:
        """Return the times of each drafter of static trees by its name, each in half of its fair share of the time."""
        found = {}
        with tqdm(desc="drafting  ", unit="call", disable=hidden) as bar:
            for number, drafter in enumerate(drafters):
                if drafter.name in TREES:
                    share = self.time.part(TIMES_SHARE / (len(drafters) - number))
                    recorder = replace(self.recorder, tick=bar.update)
                    times = DrafterTimes(drafter, self.text, self.settings, recorder)
                    found[drafter.name] = times.measure(profile.latencies, share)
        return found

    def _on_prompts(
        self,
        prompts: int,
        drafters: Sequence[LoadedDrafter],
        profile: Profile,
        generated: GeneratedTexts,
        timed: Mapping[str, tuple[DrafterLatency, ...]],
        hidden: bool | None,
    ) -> tuple[MeasuredDrafter, ...]:
        """Measure every drafter, all in a fair share of the time; those that are decoded with on the first prompts."""
        found = []
        for number, drafter in enumerate(drafters):
            time = self.time.part(1 / (len(drafters) - number))
            with tqdm(desc=f"{drafter.name:<10}", unit="text", disable=hidden) as bar:
                recorder = replace(self.recorder, tick=bar.update)
                latencies = timed.get(drafter.name, ())
                work = _Work(drafter, self, profile, generated, latencies, partial(_more, bar), recorder, time, prompts)
                found.append(work.measured())
        return tuple(found)


def _more(bar: "tqdm[NoReturn]", texts: int) -> None:
    """Let a bar end later."""
    bar.total = (bar.total or 0) + texts
    bar.refresh()


@dataclass(frozen=True)
class _Work:
    """One drafter in the making."""

    drafter: LoadedDrafter
    given: DrafterMeasurement
    profile: Profile
    generated: GeneratedTexts
    latencies: tuple[DrafterLatency, ...]
    """Of static trees; empty where it brings its own."""
    more: Callable[[int], None]
    """Told how many texts are to come."""
    recorder: Recorder
    time: Slice
    prompts: int
    """How many of them are decoded."""

    def measured(self) -> MeasuredDrafter:
        drafter, samplings = self.drafter, self.given.settings.samplings
        static = drafter.name in TREES
        return MeasuredDrafter(
            name=drafter.name,
            source=drafter.source,
            digest=drafter.digest,
            layers=drafter.layers,
            latencies=self.latencies,
            trees=self._all_trees() if static else (),
            decodes=()
            if static
            else tuple(
                found
                for number, each in enumerate(samplings)
                for found in self._decodes(each, self.time.part(1 / (len(samplings) - number)))
            ),
        )

    def _all_trees(self) -> tuple[MeasuredTrees, ...]:
        conditions = list(self._conditions)
        return tuple(
            self._trees(each, place, self.time.part(1 / (len(conditions) - number)))
            for number, (each, place) in enumerate(conditions)
        )

    @property
    def _conditions(self) -> Iterator[tuple[Sampling, Place]]:
        return product(self.given.settings.samplings, self.given.places)

    def _trees(self, sampling: Sampling, place: Place, time: Slice) -> MeasuredTrees:
        """Return the acceptance of static trees at a place."""
        stretch, texts = self.generated[condition_name(sampling, place)]
        counted = self._acceptance(sampling, place, time)
        return MeasuredTrees(
            acceptance=counted.acceptance,
            ranks=counted.ranks,
            context_tokens=_context_tokens(
                place, (stretch.prompts[number] for number in texts), map(len, texts.values())
            ),
        )

    def _acceptance(self, sampling: Sampling, place: Place, time: Slice) -> CountedAcceptance:
        settings = self.given.settings
        stretch, texts = self.generated[condition_name(sampling, place)]
        count = counter(
            self.drafter,
            stretch.prompts,
            {number: tokens[: stretch.positions] for number, tokens in texts.items()},
            sampling=sampling,
            branching=settings.branching,
            depth=settings.depth,
        )
        numbers = [each for each in range(self.given.texts) if each in texts or each not in stretch.prompts]
        self.more(len(numbers))
        kind = f"acceptance {self._kind(sampling, place)}"
        return counted_acceptance(
            count,
            numbers,
            sampling,
            kind,
            self.recorder.journal,
            self.recorder.tick,
            time,
            categories=self.given.categories,
        )

    def _decodes(self, sampling: Sampling, time: Slice) -> list[CountedDecodes]:
        """Return the settings that were fastest on a few texts somewhere, decoded with in full at every place."""
        trying, places = time.part(TRYING_SHARE), self.given.places
        shares = [1 / left for left in range(len(places), 0, -1)]
        ranked = [
            self._fastest_first(sampling, place, trying.part(share))
            for place, share in zip(places, shares, strict=True)
        ]
        kept = kept_settings(ranked)
        for place, settings in zip(places, ranked, strict=True):
            kept = self._kept_of_categories(kept, settings, sampling, place)
        return [
            self._decoded_with(kept, sampling, place, time.part(share))
            for place, share in zip(places, shares, strict=True)
        ]

    def _kept_of_categories(
        self, kept: list[DrafterSetting], settings: Sequence[DrafterSetting], sampling: Sampling, place: Place
    ) -> list[DrafterSetting]:
        """Return the settings to decode with, those included that one category of prompts needs."""
        if self.drafter.name != LOOKUP or not any(self.given.categories):
            return kept
        replayed = zip(settings, self._replayed(settings, sampling, place), strict=True)
        known = {setting: texts for setting, texts in replayed if texts is not None}
        return settings_of_categories(kept, known, self._model(sampling, place).costs.verify.at)

    def _fastest_first(self, sampling: Sampling, place: Place, time: Slice) -> list[DrafterSetting]:
        """Return the candidates at a place, by their tokens per second on a few texts where there are many."""
        recorded = self._recorded(sampling, place)
        model = partial(self._model, sampling, place)
        settings = candidates(self.drafter, model, recorded, self._max_tokens)
        if len(settings) <= KEPT:
            return settings
        if self.drafter.name == LOOKUP and (predicted := self._predicted(settings, sampling, place)):
            return predicted
        configurations = [
            self._set_to(each, sampling, f"try {each.words} {self._kind(sampling, place)}") for each in settings
        ]
        stretch = place.stretch(sampling, min(self.given.positions, TRIED_POSITIONS), TRIED_PROMPTS)
        _, tried = self._decoded(configurations, stretch, time, least=1)
        rates = [sum(each.tokens for each in texts) / sum(each.seconds for each in texts) for texts in tried]
        order = sorted(range(len(settings)), key=lambda number: -rates[number])
        return [settings[number] for number in order]

    def _predicted(self, settings: Sequence[DrafterSetting], sampling: Sampling, place: Place) -> list[DrafterSetting]:
        """Return settings of prompt lookup by their tokens in a second of passes; empty where texts are too short."""
        verify = self._model(sampling, place).costs.verify
        rates = {}
        for setting, replayed in zip(settings, self._replayed(settings, sampling, place), strict=True):
            if replayed is not None:
                seconds = verify.at(np.array(replayed.pass_tokens)) @ np.array(replayed.passes)
                rates[setting] = sum(replayed.tokens) / float(seconds)
        return sorted(rates, key=lambda setting: -rates[setting])

    def _replayed(
        self, settings: Sequence[DrafterSetting], sampling: Sampling, place: Place
    ) -> list[ReplayedTexts | None]:
        """Return what is known of settings without a pass of theirs."""
        if self.drafter.name != LOOKUP:
            return [None] * len(settings)
        stretch, texts = self.generated[condition_name(sampling, place)]
        numbers = [each.record for each in settings]
        lookups = [each for each in numbers if isinstance(each, PromptLookupSetting)]
        return replayed_lookups(lookups, stretch, texts, self.given.categories)

    def _decoded_with(
        self, kept: Sequence[DrafterSetting], sampling: Sampling, place: Place, time: Slice
    ) -> CountedDecodes:
        kind = self._kind(sampling, place)
        configurations = [
            self._plain(sampling, f"decode plain {kind}"),
            *(self._set_to(each, sampling, f"decode {each.words} {kind}") for each in kept),
        ]
        replayed = self._replayed(kept, sampling, place)
        stretch = place.stretch(sampling, min(self.given.positions, KEPT_POSITIONS), self.prompts)
        stretch, (plain, *found) = self._decoded(configurations, stretch, time)
        categories = text_categories(self.given.categories, stretch.prompts)
        return CountedDecodes(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            context_tokens=_context_tokens(place, stretch.prompts.values(), (each.tokens for each in plain)),
            plain=together(plain),
            settings=tuple(
                _counted(setting, self.drafter.set_to(setting).max_tokens, texts, steps, by_text=bool(categories))
                for setting, texts, steps in zip(kept, found, replayed, strict=True)
            ),
            categories=categories,
        )

    def _decoded(
        self, configurations: Sequence[Configuration], stretch: Stretch, time: Slice, least: int = 2
    ) -> tuple[Stretch, list[list[DecodedText]]]:
        """Return what was decoded in every way, and the prompts that there was time for."""
        self.more(len(configurations) * len(stretch.prompts))
        positions = affordable_positions(self.profile, stretch.positions, time.left_s / (least * len(configurations)))
        texts = decode_prompts(configurations, stretch.prompts, positions, self.recorder, time, least)
        prompts = dict(list(stretch.prompts.items())[: len(texts[0])])
        return Stretch(prompts, positions), texts

    def _plain(self, sampling: Sampling, kind: str) -> Configuration:
        return Configuration(kind, lambda: self._decoder(None, sampling))

    def _set_to(self, setting: DrafterSetting, sampling: Sampling, kind: str) -> Configuration:
        return Configuration(kind, lambda: self._decoder(self.drafter.set_to(setting), sampling))

    def _kind(self, sampling: Sampling, place: Place) -> str:
        """Return the end of a name in the journal: whatever it is of, it is of this drafter, sampling and context."""
        return f"{self.drafter.name} {condition_name(sampling, place)}"

    def _decoder(self, drafter: Drafter | None, sampling: Sampling) -> Decoder:
        return Decoder(
            self.drafter.target,
            drafter,
            chain(0) if drafter is None else None,
            sampling=sampling,
            max_text_tokens=self.drafter.capacity,
            cuda_graphs=self.given.settings.cuda_graphs,
        )

    @property
    def _max_tokens(self) -> int:
        """The largest pass that was timed under every condition: what is larger cannot be planned."""
        return min(each.verify.max_tokens for each in self.profile.latencies)

    def _model(self, sampling: Sampling, place: Place) -> StepModel:
        temperature = sampling.temperature
        known = self.profile.acceptances_of(rule=GIVEN_TOKENS, temperature=temperature)
        return step_model(
            self.profile,
            rule=GIVEN_TOKENS if known else None,
            temperature=temperature,
            context_tokens=place.context_tokens,
            extrapolate=True,  # times of a long context are missing where memory ended
        )

    def _recorded(self, sampling: Sampling, place: Place) -> Callable[[], DraftRecord]:
        """Return what records the draft model along a few texts, once."""

        @cache
        def record() -> DraftRecord:
            stretch = place.stretch(sampling, min(self.given.positions, RECORDED_POSITIONS), RECORDED_PROMPTS)
            prompts = list(stretch.prompts.values())
            settings = Settings(samplings=(sampling,), positions=stretch.positions * len(prompts), record=RECORD)
            draft = self.drafter.draft
            assert draft is not None  # candidates that need a record expand a draft model
            return Recording(self.drafter.target, draft, prompts, settings, files=TextFiles(None)).record(
                show_progress=False
            )

        return record


def kept_settings(ranked: Sequence[Sequence[DrafterSetting]]) -> list[DrafterSetting]:
    """Return the settings that are decoded with in full: the fastest of every place, then the next, `KEPT` or more.

    Args:
        ranked: of each place settings, the fastest first.
    """
    in_turn = dict.fromkeys(each for rank in zip_longest(*ranked) for each in rank if each is not None)
    return list(in_turn)[: max(KEPT, len({each[0] for each in ranked}))]


def _context_tokens(place: Place, prompts: Iterable[Sequence[int]], new_tokens: Iterable[int]) -> int:
    """Return the tokens in the middle of what was decoded at a place."""
    return middle_tokens(prompts, new_tokens) if place.context_tokens is None else place.context_tokens


def _counted(
    setting: DrafterSetting,
    max_tokens: int,
    texts: Sequence[DecodedText],
    replayed: ReplayedTexts | None,
    *,
    by_text: bool,
) -> CountedSetting:
    passes = passes_of(texts)
    return CountedSetting(
        values=setting.values,
        max_tokens=max_tokens,
        decoded=together(texts),
        pass_tokens=tuple(passes),
        passes=tuple(passes.values()),
        passes_by_text=tuple(tuple(each.passes.get(size, 0) for size in passes) for each in texts) if by_text else (),
        replayed=replayed,
    )
