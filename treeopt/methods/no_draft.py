"""Methods without a draft model: prompt lookup and lookahead decoding."""

from functools import partial

from treeopt.methods.fastest_setting import Choice, fastest_choice
from treeopt.methods.method import Inputs, Method
from treeopt.runtime.drafters.lookahead import LOOKAHEAD_SETTINGS, LookaheadDrafter
from treeopt.runtime.drafters.prompt_lookup import PROMPT_LOOKUP_SETTINGS, PromptLookupDrafter


def prompt_lookup(inputs: Inputs) -> Method:
    """Return prompt lookup with the fastest n-gram and length (Saxena, 2023)."""
    choices = [
        Choice(
            f"n-grams of up to {each.ngram}, {each.length} tokens",
            partial(PromptLookupDrafter, each.ngram, each.length),
        )
        for each in PROMPT_LOOKUP_SETTINGS
    ]
    return fastest_choice("prompt-lookup", inputs, choices)


def lookahead(inputs: Inputs) -> Method:
    """Return lookahead decoding with the fastest window, n-gram and number of candidates (Fu et al., 2024)."""
    choices = [
        Choice(
            f"W {each.window}, N {each.ngram}, G {each.candidates}",
            partial(LookaheadDrafter, each.window, each.ngram, each.candidates),
        )
        for each in LOOKAHEAD_SETTINGS
    ]
    return fastest_choice("lookahead", inputs, choices)
