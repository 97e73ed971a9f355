"""What the target generates without a drafter, decoded once for all drafters: their acceptance is counted along it."""

from collections.abc import Callable, Mapping, Sequence
from operator import add

from treeopt.errors import OutOfMemoryError, TextsError
from treeopt.profiler.acceptance.contexts import Place, Stretch
from treeopt.profiler.budget import UNLIMITED, Slice
from treeopt.profiler.journal import Journal
from treeopt.records.categories import text_categories
from treeopt.records.measured_drafter import ReplayedTexts
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.lookup_replay import MOST_WALKED, LookupReplay, Walked
from treeopt.runtime.models.model import LanguageModel, trained_tokens
from treeopt.trees.own_trees import PROMPT_LOOKUP_SETTINGS, PromptLookupSetting

BATCH_SIZE = 16
"""Texts to a pass."""
BEYOND_TOKENS = max(each.length for each in PROMPT_LOOKUP_SETTINGS)
"""Generated behind the positions that count, so that it is seen how far the last drafts are right."""


LEAST_POSITIONS = 16
"""Of each text, however little time there is."""
GeneratedTexts = dict[str, tuple[Stretch, dict[int, list[int]]]]
"""By condition, what was continued, and the target's own tokens after each prompt."""


class PlainTexts:
    """Texts that the target generates, each in the journal as soon as it is decoded.

    Args:
        target: what generates them.
        journal: where they are stored.
    """

    def __init__(self, target: LanguageModel, journal: Journal) -> None:
        self._target, self._journal = target, journal

    def decoded(
        self,
        stretch: Stretch,
        sampling: Sampling,
        kind: str,
        time: Slice = UNLIMITED,
        tick: Callable[[], object] = lambda: None,
    ) -> dict[int, list[int]]:
        """Return the new tokens by prompt, `BEYOND_TOKENS` more than the stretch has positions where there is room.

        A text has its prompt's number as its seed, so that a resumed profile equals a whole one.

        Args:
            stretch: what is continued.
            sampling: how.
            kind: what texts of this sampling and place are called in the journal.
            time: when it is over, no further texts are begun; `BATCH_SIZE` are decoded in any case.
            tick: called after every text.

        Raises TreeoptError where the target's logits are not finite.
        """
        kind = f"plain text {kind}"
        known = {entry.key: list(map(int, entry.values)) for entry in self._journal.entries(kind)}
        longest = max(map(len, stretch.prompts.values()))
        new_tokens = min(stretch.positions + BEYOND_TOKENS, trained_tokens(self._target) - longest)
        decoder = None
        prompts = list(stretch.prompts)
        for first in range(0, len(prompts), BATCH_SIZE):
            numbers = prompts[first : first + BATCH_SIZE]
            missing = [number for number in numbers if number not in known]
            if missing:
                if known and time.over():
                    break
                decoder = decoder or Decoder(
                    self._target, None, sampling=sampling, max_text_tokens=longest + new_tokens
                )
                for number, tokens in self._generated(decoder, stretch, missing, new_tokens).items():
                    known[number] = tokens
                    self._journal.append(kind, number, tuple(map(float, tokens)))
            for _ in numbers:
                tick()
        return {number: known[number] for number in stretch.prompts if number in known}

    def _generated(
        self, decoder: Decoder, stretch: Stretch, numbers: list[int], new_tokens: int
    ) -> dict[int, list[int]]:
        prompts = [stretch.prompts[number] for number in numbers]
        found: dict[int, list[int]] = {number: [] for number in numbers}
        try:
            steps = decoder.generate_all(prompts, new_tokens, seeds=numbers, batch_size=BATCH_SIZE)
        except OutOfMemoryError:
            steps = decoder.generate_all(prompts, new_tokens, seeds=numbers, batch_size=1)
        try:
            for text, tokens in steps:
                found[numbers[text]] += tokens
        except TextsError as error:
            raise next(iter(error.errors.values())) from None
        return found


def replayed_lookups(
    settings: Sequence[PromptLookupSetting],
    stretch: Stretch,
    texts: Mapping[int, Sequence[int]],
    categories: Sequence[str] = (),
) -> list[ReplayedTexts | None]:
    """Return the steps that prompt lookup takes along texts with each setting, None where all are too short for a step.

    Above temperature 0 these are the steps of rule `target`, which accepts a draft token where it is what was sampled.

    Args:
        settings: of prompt lookup.
        stretch: what the texts continue.
        texts: new tokens by prompt.
        categories: one for each prompt, `""` for none.
    """
    found: list[dict[int, Walked]] = [{} for _ in settings]
    for number, tokens in texts.items():
        replay, text = LookupReplay(settings), list(stretch.prompts[number])
        walked = dict.fromkeys(settings, Walked(0, 0, 0))
        for first in range(0, len(tokens), MOST_WALKED):
            new = tokens[first : first + MOST_WALKED]
            replay.note(number, text, new)
            text += new
            for setting, more in zip(replay.settings, replay.walk(), strict=True):
                walked[setting] = Walked(*map(add, walked[setting], more))
        for texts_walked, setting in zip(found, settings, strict=True):
            if walked[setting].steps:
                texts_walked[number] = walked[setting]
    return [
        _together(list(each.values()), setting, text_categories(categories, each)) if each else None
        for each, setting in zip(found, settings, strict=True)
    ]


def _together(
    walked: Sequence[Walked], setting: PromptLookupSetting, categories: tuple[str, ...] = ()
) -> ReplayedTexts:
    drafted, steps = sum(each.drafted for each in walked), sum(each.steps for each in walked)
    sizes = {1: steps - drafted, setting.max_nodes: drafted}
    by_text = [{1: each.steps - each.drafted, setting.max_nodes: each.drafted} for each in walked]
    return ReplayedTexts(
        tokens=tuple(each.tokens for each in walked),
        steps=tuple(each.steps for each in walked),
        pass_tokens=tuple(size for size, passes in sizes.items() if passes),
        passes=tuple(passes for passes in sizes.values() if passes),
        passes_by_text=tuple(tuple(each[size] for size, passes in sizes.items() if passes) for each in by_text)
        if categories
        else (),
        categories=categories,
    )


def affordable_positions(profile: Profile, positions: int, text_s: float) -> int:
    """Return the positions that a text may have, of which plain decoding takes so many seconds at most."""
    step_s = float(profile.latencies[0].verify.seconds(1))
    return int(min(positions, max(LEAST_POSITIONS, text_s / step_s)))


def condition_name(sampling: Sampling, place: Place) -> str:
    """Return a sampling and a place in words, as the journal names them."""
    at = "" if place.context_tokens is None else f" at {place.context_tokens}"
    return f"{sampling.temperature:g}{at}"
