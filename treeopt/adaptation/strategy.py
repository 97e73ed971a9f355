"""Strategies that a decoder switches between: trees of the draft model, plain decoding (the root alone), prompt lookup."""

from dataclasses import dataclass
from typing import NamedTuple

from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import TokenTree, describe_tree, kind_of
from treeopt.trees.drafter_parameters import PromptLookupSetting
from treeopt.trees.drafter_setting import DrafterSetting

LOOKUP = "prompt-lookup"
Strategy = TokenTree | PromptLookupSetting


class PredictedRate(NamedTuple):
    strategy: Strategy
    tokens_per_step: float
    step_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_per_step / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A switch from one strategy to another; a line of the adaptation log."""

    step: int
    """Steps decoded before it."""
    why: str
    before: Strategy
    after: Strategy
    gain: float
    """Predicted relative gain of tokens per second."""
    tokens_per_step: float
    """Predicted, with `after`."""
    step_s: float
    """Predicted, with `after`."""

    def to_json(self) -> dict[str, object]:
        return {
            "step": self.step,
            "why": self.why,
            "from": strategy_fields(self.before),
            "to": strategy_fields(self.after),
            "predicted_gain": round(self.gain, 4),
            "predicted_tokens_per_step": round(self.tokens_per_step, 3),
            "predicted_step_s": round(self.step_s, 6),
        }


def prompt_lookup_setting(setting: DrafterSetting | None) -> PromptLookupSetting | None:
    """Return the setting of prompt lookup in a plan, None for another drafter."""
    record = setting.parameters if setting is not None and setting.name == LOOKUP else None
    return record if isinstance(record, PromptLookupSetting) else None


def apply_strategy(decoder: Decoder, strategy: Strategy) -> None:
    """Make a decoder draft with a strategy from the next step on."""
    if isinstance(strategy, PromptLookupSetting):
        decoder.change_drafter(PromptLookupDrafter(strategy.ngram, strategy.length))
    else:
        decoder.change_tree(strategy)


def describe_strategy(strategy: Strategy) -> str:
    """Return a short description.

    >>> describe_strategy(TokenTree([-1])), describe_strategy(TokenTree([-1, 0, 0])), describe_strategy(PromptLookupSetting(4, 8))
    ('plain decoding', 'tree of 3 nodes, depth 1', 'prompt-lookup, ngram 4, length 8')
    """
    if isinstance(strategy, PromptLookupSetting):
        return f"{LOOKUP}, ngram {strategy.ngram}, length {strategy.length}"
    return describe_tree(strategy)


def strategy_fields(strategy: Strategy) -> dict[str, object]:
    """Return the fields of a strategy in a log.

    >>> strategy_fields(TokenTree([-1, 0, 1]))
    {'drafter': 'model', 'kind': 'chain', 'nodes': 3, 'depth': 2, 'parents': [-1, 0, 1]}
    >>> strategy_fields(PromptLookupSetting(4, 8))
    {'drafter': 'prompt-lookup', 'kind': 'chain', 'nodes': 9, 'depth': 8, 'ngram': 4, 'length': 8}
    """
    if isinstance(strategy, PromptLookupSetting):
        drafts = {"kind": "chain", "nodes": strategy.max_nodes, "depth": strategy.length}
        return {"drafter": LOOKUP, **drafts, "ngram": strategy.ngram, "length": strategy.length}
    return {
        "drafter": "model",
        "kind": kind_of(strategy),
        "nodes": strategy.nodes,
        "depth": strategy.max_depth,
        "parents": strategy.parents.tolist(),
    }
