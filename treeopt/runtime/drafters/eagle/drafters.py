"""Drafters that an EAGLE head fills trees for: static ones by depth and rank, and dynamic ones."""

from functools import partial

import numpy as np

from treeopt.errors import InvalidValueError
from treeopt.records.sampling import Sampling
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.eagle.text import texts_of
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.static_tree import FilledTreeDrafter
from treeopt.runtime.models.runner import pool_for
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.rule import RULES
from treeopt.trees import TokenTree
from treeopt.trees.dynamic_tree import DynamicTree

GREEDY = Sampling(0.0)


class EagleDrafter(FilledTreeDrafter):
    """Drafts one tree in every step: the child of rank k carries the k-th likeliest token after its parent's path.

    Args:
        head: of the target that verifies.
        tree: the shape, the same in every step.
        capacity: longest text.
        rule: the verification rule; under one that asks for sampled children they are sampled from the head's
            distribution, zero for tokens that it does not know.
        sampling: what they are sampled from; greedy takes the likeliest, whatever the rule.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises InvalidValueError for more children of a node than the head knows tokens, OutOfMemoryError for a cache that
    does not fit into memory.
    """

    def __init__(
        self,
        head: EagleHead,
        tree: TokenTree,
        *,
        capacity: int,
        rule: Rule = RULES["target"],
        sampling: Sampling = GREEDY,
        cuda_graphs: bool | None = None,
    ) -> None:
        _check_children("tree", int(tree.child_counts.max()), head)
        fed = max(1, int(np.count_nonzero(tree.child_counts)))
        super().__init__(
            head,
            partial(texts_of, head, capacity, fed),
            tree,
            rule=rule,
            sampling=sampling,
            max_nodes=tree.nodes,
            wants=head.wants,
            pool=pool_for(head.device, cuda_graphs),
        )
        self.head = head


class EagleDynamicDrafter(ExpandingDrafter):
    """Grows the tree of every step where the head is sure of itself: EAGLE-2's rule (Li et al., 2024).

    Args:
        head: of the target that verifies; its probabilities are those of temperature 1, whatever the target's.
        tree: how trees grow.
        capacity: longest text.
        cuda_graphs: as for `EagleDrafter`.

    Raises what `EagleDrafter` raises.
    """

    def __init__(self, head: EagleHead, tree: DynamicTree, *, capacity: int, cuda_graphs: bool | None = None) -> None:
        _check_children("top_k", tree.top_k, head)
        super().__init__(head, tree, capacity=capacity, new_drafts=texts_of, wants=head.wants, cuda_graphs=cuda_graphs)
        self.head = head


def _check_children(name: str, children: int, head: EagleHead) -> None:
    if children > head.tokens:
        raise InvalidValueError(
            f"{name}: expected at most {head.tokens} children of a node, the tokens that {head.name} knows. "
            f"Got {children}: take a narrower tree."
        )
