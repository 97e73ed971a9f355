"""A change of what is drafted, and why: a line of JSON each."""

from dataclasses import dataclass

from treeopt.planner.model import kind_of
from treeopt.trees import TokenTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of tree."""

    step: int
    """Steps that were decoded before it."""
    why: str
    """What was counted that the plan did not have."""
    before: TokenTree
    after: TokenTree
    gain: float
    """By which share tokens per second are predicted to be more."""
    noise: float
    """Standard error of the logarithm of 1 + gain."""
    tokens_per_step: float
    """Predicted with the new tree."""
    step_s: float
    """Likewise."""
    switch_s: float
    """What the change took."""

    def to_json(self) -> dict[str, object]:
        """Return it as a line of an adaptation log holds it."""
        return {
            "step": self.step,
            "why": self.why,
            "from": described(self.before),
            "to": described(self.after),
            "predicted_gain": round(self.gain, 4),
            "noise": round(self.noise, 4),
            "predicted_tokens_per_step": round(self.tokens_per_step, 3),
            "predicted_step_s": round(self.step_s, 6),
            "switch_s": round(self.switch_s, 6),
        }


def shape_of(tree: TokenTree) -> str:
    """Return a tree in a few words.

    >>> shape_of(TokenTree([-1])), shape_of(TokenTree([-1, 0, 0]))
    ('plain decoding', 'tree of 3 nodes, depth 1')
    """
    kind = kind_of(tree)
    return "plain decoding" if kind == "plain" else f"{kind} of {tree.nodes} nodes, depth {tree.max_depth}"


def described(tree: TokenTree) -> dict[str, object]:
    """Return what a log says of a tree.

    >>> described(TokenTree([-1, 0, 1]))
    {'kind': 'chain', 'nodes': 3, 'depth': 2, 'parents': [-1, 0, 1]}
    """
    return {"kind": kind_of(tree), "nodes": tree.nodes, "depth": tree.max_depth, "parents": tree.parents.tolist()}
