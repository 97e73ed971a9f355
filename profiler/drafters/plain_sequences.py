"""Sequences that the target generates by plain decoding, once for all drafters whose acceptance is counted along them."""

from collections.abc import Callable, Mapping, Sequence
from operator import add

from treeopt.errors import BatchError, OutOfMemoryError
from treeopt.profiler.acceptance.contexts import PromptSet, PromptSource
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.limits import MIN_POSITIONS
from treeopt.records.measured_acceptance import select_categories
from treeopt.records.measured_drafter import ReplayedSequences
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.lookup_replay import MAX_REPLAYED_TOKENS, LookupReplay, ReplayedSteps
from treeopt.runtime.models.model import LanguageModel, max_sequence_tokens
from treeopt.trees.drafter_parameters import PROMPT_LOOKUP_SETTINGS, PromptLookupSetting

BATCH_SIZE = 16
LOOKAHEAD_TOKENS = max(setting.length for setting in PROMPT_LOOKUP_SETTINGS)
"""Generated after the counted positions, to verify the last drafts."""
GeneratedSequences = dict[str, tuple[PromptSet, dict[int, list[int]]]]
"""By `describe_point`: the prompts, and the target's tokens after each."""


def generate_sequences(
    target: LanguageModel,
    prompt_set: PromptSet,
    sampling: Sampling,
    name: str,
    checkpoint: Checkpoint,
    deadline: Deadline = NO_DEADLINE,
    tick: Callable[[], object] = lambda: None,
) -> dict[int, list[int]]:
    """Return new tokens by prompt, up to `LOOKAHEAD_TOKENS` more than the positions of the prompt set.

    The prompt number is the seed, so resuming changes nothing.

    Args:
        target: decodes plainly.
        prompt_set: what is continued.
        sampling: how.
        name: of the sampling and context length.
        checkpoint: where the sequences are stored.
        deadline: after which no batch is started, except the first.
        tick: called after every sequence.

    Raises TreeoptError if the target's logits are not finite.
    """
    kind = f"plain text {name}"
    sequences = {number: list(map(int, row)) for number, row in checkpoint.rows(kind).items()}
    longest = max(map(len, prompt_set.prompts.values()))
    new_tokens = min(prompt_set.positions + LOOKAHEAD_TOKENS, max_sequence_tokens(target) - longest)
    decoder = None
    prompts = list(prompt_set.prompts)
    for first in range(0, len(prompts), BATCH_SIZE):
        numbers = prompts[first : first + BATCH_SIZE]
        missing = {number: prompt_set.prompts[number] for number in numbers if number not in sequences}
        if missing:
            if sequences and deadline.over():
                break
            decoder = decoder or Decoder(target, None, sampling=sampling, max_sequence_tokens=longest + new_tokens)
            for number, tokens in _generate_batch(decoder, missing, new_tokens).items():
                sequences[number] = tokens
                checkpoint.append(kind, number, tuple(map(float, tokens)))
        for _ in numbers:
            tick()
    return {number: sequences[number] for number in prompts if number in sequences}


def _generate_batch(decoder: Decoder, prompts: Mapping[int, Sequence[int]], new_tokens: int) -> dict[int, list[int]]:
    numbers, token_ids = list(prompts), list(prompts.values())
    sequences: dict[int, list[int]] = {number: [] for number in numbers}
    try:
        steps = decoder.generate_all(token_ids, new_tokens, seeds=numbers, batch_size=BATCH_SIZE)
    except OutOfMemoryError:
        steps = decoder.generate_all(token_ids, new_tokens, seeds=numbers, batch_size=1)
    try:
        for index, tokens in steps:
            sequences[numbers[index]] += tokens
    except BatchError as error:
        raise next(iter(error.errors.values())) from None
    return sequences


def replay_lookups(
    settings: Sequence[PromptLookupSetting],
    prompt_set: PromptSet,
    generated: Mapping[int, Sequence[int]],
    categories: Sequence[str] = (),
) -> list[ReplayedSequences | None]:
    """Return the steps of prompt lookup along sequences with each setting; None if all are too short for a step.

    Above temperature 0 these are the steps of rule `target`, which accepts a draft token equal to the sampled one.

    Args:
        settings: of prompt lookup.
        prompt_set: the prompts.
        generated: new tokens by prompt.
        categories: one for each prompt, `""` for none.
    """
    by_setting: list[dict[int, ReplayedSteps]] = [{} for _ in settings]
    for number, tokens in generated.items():
        replay, sequence = LookupReplay(settings), list(prompt_set.prompts[number])
        steps = dict.fromkeys(settings, ReplayedSteps(0, 0, 0))
        for first in range(0, len(tokens), MAX_REPLAYED_TOKENS):
            new = tokens[first : first + MAX_REPLAYED_TOKENS]
            replay.add(number, sequence, new)
            sequence += new
            for setting, more in zip(replay.settings, replay.replay(), strict=True):
                steps[setting] = ReplayedSteps(*map(add, steps[setting], more))
        for sequences, setting in zip(by_setting, settings, strict=True):
            if steps[setting].steps:
                sequences[number] = steps[setting]
    return [
        _join_replays(list(sequences.values()), setting, select_categories(categories, sequences))
        if sequences
        else None
        for sequences, setting in zip(by_setting, settings, strict=True)
    ]


def _join_replays(
    replays: Sequence[ReplayedSteps], setting: PromptLookupSetting, categories: tuple[str, ...] = ()
) -> ReplayedSequences:
    by_sequence = [{1: replay.steps - replay.drafted, setting.max_nodes: replay.drafted} for replay in replays]
    totals = {size: sum(passes[size] for passes in by_sequence) for size in by_sequence[0]}
    sizes = [size for size, passes in totals.items() if passes]
    return ReplayedSequences(
        tokens=tuple(replay.tokens for replay in replays),
        steps=tuple(replay.steps for replay in replays),
        pass_tokens=tuple(sizes),
        passes=tuple(totals[size] for size in sizes),
        passes_by_sequence=tuple(tuple(passes[size] for size in sizes) for passes in by_sequence) if categories else (),
        categories=categories,
    )


def limit_positions(profile: Profile, positions: int, sequence_s: float) -> int:
    """Return at most `positions`, of which plain decoding takes at most `sequence_s`."""
    step_s = float(profile.latencies[0].verify.seconds(1))
    return int(min(positions, max(MIN_POSITIONS, sequence_s / step_s)))


def describe_point(sampling: Sampling, source: PromptSource) -> str:
    """Return the name of a sampling and context length in the checkpoint."""
    at = "" if source.context_tokens is None else f" at {source.context_tokens}"
    return f"{sampling.temperature:g}{at}"
