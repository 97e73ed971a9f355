"""Static trees with an EAGLE head; dynamic trees are those of `ExpandingDrafter`."""

from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.heads import check_children
from treeopt.runtime.drafters.static_tree import LevelDrafter
from treeopt.runtime.models.runner import make_graph_pool
from treeopt.runtime.rules import Rule
from treeopt.runtime.rules.rule import RULES
from treeopt.trees import TokenTree


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
            pool=make_graph_pool(head.device, cuda_graphs),
        )
        self.head = head

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on; raises as for the first tree."""
        check_children("tree", int(tree.child_counts.max()), self.head.name, self.head.tokens)
        super().change_tree(tree)
