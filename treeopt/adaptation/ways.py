"""What decoding is changed between: trees of the draft model, the root alone for plain decoding, and prompt lookup."""

from typing import NamedTuple

from treeopt.runtime.decoding.observer import Steered
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import TokenTree, kind_of
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.trees.own_trees import PromptLookupSetting

LOOKUP = "prompt-lookup"
Way = TokenTree | PromptLookupSetting


class Rated(NamedTuple):
    """One way, and what it comes to."""

    way: Way
    tokens_per_step: float
    step_s: float
    noise: float | None = None
    """Standard error of the logarithm of its speed, where it does not come from the table."""

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens_per_step / self.step_s


def lookup_of(setting: DrafterSetting | None) -> PromptLookupSetting | None:
    """Return the setting of prompt lookup that a plan names, None for another drafter."""
    record = setting.record if setting is not None and setting.name == LOOKUP else None
    return record if isinstance(record, PromptLookupSetting) else None


def take(decoder: Steered, way: Way) -> None:
    """Have a decoder draft in a way from the next step on."""
    if isinstance(way, PromptLookupSetting):
        decoder.change_drafter(PromptLookupDrafter(way.ngram, way.length))
    else:
        decoder.change_tree(way)


def nodes_of(way: Way) -> int:
    """Return the tokens of the largest pass."""
    return way.nodes if isinstance(way, TokenTree) else way.max_nodes


def shape_of(way: Way) -> str:
    """Return a way in a few words.

    >>> shape_of(TokenTree([-1])), shape_of(TokenTree([-1, 0, 0])), shape_of(PromptLookupSetting(4, 8))
    ('plain decoding', 'tree of 3 nodes, depth 1', 'prompt-lookup, ngram 4, length 8')
    """
    if isinstance(way, PromptLookupSetting):
        return f"{LOOKUP}, ngram {way.ngram}, length {way.length}"
    kind = kind_of(way)
    return "plain decoding" if kind == "plain" else f"{kind} of {way.nodes} nodes, depth {way.max_depth}"


def described(way: Way) -> dict[str, object]:
    """Return what a log says of a way.

    >>> described(TokenTree([-1, 0, 1]))
    {'drafter': 'model', 'kind': 'chain', 'nodes': 3, 'depth': 2, 'parents': [-1, 0, 1]}
    >>> described(PromptLookupSetting(4, 8))
    {'drafter': 'prompt-lookup', 'kind': 'chain', 'nodes': 9, 'depth': 8, 'ngram': 4, 'length': 8}
    """
    if isinstance(way, PromptLookupSetting):
        drafts = {"kind": "chain", "nodes": way.max_nodes, "depth": way.length}
        return {"drafter": LOOKUP, **drafts, "ngram": way.ngram, "length": way.length}
    return {
        "drafter": "model",
        "kind": kind_of(way),
        "nodes": way.nodes,
        "depth": way.max_depth,
        "parents": way.parents.tolist(),
    }
