"""Static trees from one DFlash block: from its marginal distributions, or level by level with a Markov head."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from treeopt.records.sampling import GREEDY
from treeopt.runtime.drafters.dflash.block_drafter import BlockDrafter, DFlashSequence
from treeopt.runtime.drafters.dflash.head import DFlashHead
from treeopt.runtime.drafters.draft_levels import LevelSampler, draft_levels
from treeopt.runtime.drafters.drafter import Proposal
from treeopt.runtime.drafters.heads import MarginalTree, check_tree
from treeopt.runtime.rules import RULES
from treeopt.trees import TokenTree

FillTree = Callable[[Sequence[int], Tensor], list[Proposal]]
"""From n roots and the logits (n, levels, V) of their blocks to the trees below the roots."""


class DFlashDrafter(BlockDrafter):
    """Drafts a static tree: the node of depth d and rank r has the r-th most likely token of the d-th slot.

    With a Markov head, it has the r-th most likely token after its parent's.

    Args:
        head: of the target that verifies.
        tree: the tree.
        capacity: longest sequence.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises InvalidValueError for a tree deeper than a block, or with more children of a node than the head predicts tokens,
    OutOfMemoryError for a cache that does not fit into memory.
    """

    def __init__(self, head: DFlashHead, tree: TokenTree, *, capacity: int, cuda_graphs: bool | None = None) -> None:
        super().__init__(head, capacity, cuda_graphs)
        self.max_tokens = tree.nodes
        self.change_tree(tree)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on."""
        self._fill_tree = tree_filler(self.head, tree)
        self.tree = tree

    def _fill(self, sequences: Sequence[DFlashSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        return self._fill_tree(*self._draft_blocks(sequences))


def tree_filler(head: DFlashHead, tree: TokenTree) -> FillTree:
    """Return the function that fills a tree; raises as `DFlashDrafter`."""
    if head.markov is None:
        return MarginalTree(head, tree).fill
    check_tree(head, tree)
    markov, levels = head.markov, draft_levels(tree, head.device)
    sampler = LevelSampler(
        head.name,
        rule=RULES["target"],
        sampling=GREEDY,
        max_nodes=tree.nodes,
        vocabulary=head.config.vocabulary,
        device=head.device,
    )

    @torch.inference_mode()
    def fill(roots: Sequence[int], logits: Tensor) -> list[Proposal]:
        sampler.begin(tree, roots)
        for depth, level in enumerate(levels):
            sampler.fill(level, logits[:, depth, None] + markov.bias(sampler.tokens_of(level)), ())
        return sampler.proposals()

    return fill
