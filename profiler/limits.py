"""How long sequences of a profile become, and whether the models support that."""

from collections.abc import Sequence

from treeopt.errors import InvalidValueError
from treeopt.profiler.acceptance.contexts import Window
from treeopt.profiler.acceptance.incremental import MAX_POSITIONS
from treeopt.profiler.latency.passes import ROOM_TOKENS
from treeopt.profiler.settings import Settings
from treeopt.runtime.models.model import (
    LanguageModel,
    check_token_ids,
    describe_length_limit,
    max_sequence_tokens,
    shortest_model,
)

MIN_POSITIONS = 16
"""Positions of each sequence that are counted, however small the time budget."""


def room_tokens(target: LanguageModel, draft: LanguageModel | None, prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens every prompt can be continued by."""
    return max_sequence_tokens(target, draft) - max(map(len, prompts))


def longest_sequence(
    target: LanguageModel, draft: LanguageModel | None, prompts: Sequence[Sequence[int]], settings: Settings
) -> int:
    """Return the tokens of the longest decoded sequence; under a time budget an upper bound."""
    positions = MAX_POSITIONS if settings.time_budget_s is not None else settings.positions_per_prompt(len(prompts))
    max_tokens = max_sequence_tokens(target, draft)
    contexts = settings.acceptance_contexts
    if contexts and settings.time_budget_s is None:
        windows = [Window.around(context, positions, max_tokens) for context in contexts]
        return min(max_tokens, max(window.prompt_tokens + window.positions for window in windows))
    # without time for contexts, prompts up to the longest one are continued
    return min(max_tokens, max(contexts or map(len, prompts)) + positions)


def check_measurable(
    target: LanguageModel, draft: LanguageModel | None, prompts: Sequence[Sequence[int]], settings: Settings
) -> None:
    """Raise InvalidValueError if prompts are missing or of another tokenizer, or a context or the positions do not fit the models."""
    shortest = shortest_model(target, draft)
    max_tokens = shortest.config.max_positions
    if len(prompts) < 2 or min(map(len, prompts)) == 0:
        raise InvalidValueError(f"prompts: expected at least two, none empty. Got {len(prompts)}.", field="prompts")
    for prompt in prompts:
        check_token_ids(target, prompt, "prompts")
    if max_tokens <= ROOM_TOKENS:
        raise InvalidValueError(
            f"context_tokens: expected models that take more than {ROOM_TOKENS} tokens, which the timed steps need. "
            f"{describe_length_limit(shortest)}: use another model.",
            field="context_tokens",
        )
    if max(settings.context_tokens) + ROOM_TOKENS > max_tokens:
        raise InvalidValueError(
            f"context_tokens: expected at most {max_tokens - ROOM_TOKENS}, because {describe_length_limit(shortest)}, and the timed "
            f"steps need {ROOM_TOKENS}. Got {max(settings.context_tokens)}.",
            field="context_tokens",
        )
    longest, room = max(map(len, prompts)), room_tokens(target, draft, prompts)
    positions = MIN_POSITIONS if settings.time_budget_s is not None else settings.positions_per_prompt(len(prompts))
    if (
        settings.acceptance_contexts
    ):  # prompts are cut where they are too long for a context, but not for a draft record
        if settings.record is None:
            return
        positions = 1
    if room < 1:
        raise InvalidValueError(
            f"prompts: expected at most {max_tokens - 1} tokens before a new one, because {describe_length_limit(shortest)}. Got "
            f"{longest}: give shorter prompts.",
            field="prompts",
        )
    if positions > room:
        raise InvalidValueError(
            f"positions: expected at most {room * len(prompts)}, since {len(prompts)} prompts of up "
            f"to {longest} tokens are continued and {describe_length_limit(shortest)}. "
            f"Got {settings.positions}: ask for fewer, or give more prompts.",
            field="positions",
        )
