"""Sequences that the target generates by plain decoding, once for all drafters whose acceptance is counted along them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from treeopt.errors import BatchError, OutOfMemoryError
from treeopt.profiler.acceptance.contexts import DecodingPoint, PromptSet
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.limits import MIN_POSITIONS
from treeopt.records.profile import Profile
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel, max_sequence_tokens
from treeopt.trees.drafter_parameters import PROMPT_LOOKUP_SETTINGS

BATCH_SIZE = 16
LOOKAHEAD_TOKENS = max(setting.length for setting in PROMPT_LOOKUP_SETTINGS)
"""Generated after the counted positions, to verify the last drafts."""


class PlainSequences(NamedTuple):
    """What the target generates at one operating point."""

    point: DecodingPoint
    prompts: Mapping[int, Sequence[int]]
    """Token ids by prompt number."""
    positions: int
    """New tokens of each sequence that are counted."""
    tokens: Mapping[int, Sequence[int]]
    """New tokens by prompt number, up to `LOOKAHEAD_TOKENS` more than are counted; of fewer prompts if the time ends."""


def generate_sequences(
    target: LanguageModel,
    point: DecodingPoint,
    prompt_set: PromptSet,
    checkpoint: Checkpoint,
    deadline: Deadline = NO_DEADLINE,
    tick: Callable[[], object] = lambda: None,
) -> PlainSequences:
    """Return sequences of `LOOKAHEAD_TOKENS` more than the positions of the prompt set, fewer if they end.

    The prompt number is the seed, so resuming changes nothing.

    Args:
        target: decodes plainly.
        point: how it samples.
        prompt_set: what is continued, prompts of the operating point.
        checkpoint: where the sequences are stored.
        deadline: after which no batch is started, except the first.
        tick: called after every sequence.

    Raises TreeoptError if the target's logits are not finite.
    """
    kind = f"plain text {point.name}"
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
            decoder = decoder or Decoder(
                target, None, sampling=point.sampling, max_sequence_tokens=longest + new_tokens
            )
            for number, tokens in _generate_batch(decoder, missing, new_tokens).items():
                sequences[number] = tokens
                checkpoint.append(kind, number, tuple(map(float, tokens)))
        for _ in numbers:
            tick()
    generated = {number: sequences[number] for number in prompts if number in sequences}
    return PlainSequences(point, prompt_set.prompts, prompt_set.positions, generated)


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


def limit_positions(profile: Profile, positions: int, sequence_s: float) -> int:
    """Return at most `positions`, of which plain decoding takes at most `sequence_s`."""
    step_s = float(profile.latencies[0].verify.seconds(1))
    return int(min(positions, max(MIN_POSITIONS, sequence_s / step_s)))
