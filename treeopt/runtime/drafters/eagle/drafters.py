"""Drafters with an EAGLE head: static trees and dynamic trees."""

from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.eagle.sequence import new_eagle_sequences
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.heads import check_children
from treeopt.runtime.drafters.static_tree import LevelDrafter
from treeopt.runtime.models.runner import make_graph_pool
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.rule import RULES
from treeopt.trees import TokenTree
from treeopt.trees.drafter_parameters import DynamicTree


class EagleDrafter(LevelDrafter):
    """Drafts a static tree: the child of rank k has the k-th most likely token after its parent's path.

    Args:
        head: of the target that verifies.
        tree: the tree.
        capacity: longest sequence.
        rule: verification rule; if it needs sampled children, they are sampled from the head's distribution, which is 0
            for tokens that it does not predict.
        sampling: what children are sampled from; greedy takes the top tokens, whatever the rule.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises InvalidValueError for more children of a node than the head predicts tokens, OutOfMemoryError for a cache that
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
        check_children("tree", int(tree.child_counts.max()), head.name, head.tokens)
        super().__init__(
            head,
            tree,
            rule=rule,
            sampling=sampling,
            capacity=capacity,
            new_sequences=new_eagle_sequences,
            requested_states=head.requested_states,
            pool=make_graph_pool(head.device, cuda_graphs),
        )
        self.head = head

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on; raises as for the first tree."""
        check_children("tree", int(tree.child_counts.max()), self.head.name, self.head.tokens)
        super().change_tree(tree)


class EagleDynamicDrafter(ExpandingDrafter):
    """Grows trees where the head is confident: EAGLE-2 (Li et al., 2024).

    Args:
        head: of the target that verifies; its probabilities are those of temperature 1, whatever the target's.
        tree: how trees grow.
        capacity: longest sequence.
        cuda_graphs: as for `EagleDrafter`.

    Raises what `EagleDrafter` raises.
    """

    def __init__(self, head: EagleHead, tree: DynamicTree, *, capacity: int, cuda_graphs: bool | None = None) -> None:
        check_children("top_k", tree.top_k, head.name, head.tokens)
        super().__init__(
            head,
            tree,
            capacity=capacity,
            new_sequences=new_eagle_sequences,
            requested_states=head.requested_states,
            cuda_graphs=cuda_graphs,
        )
        self.head = head
