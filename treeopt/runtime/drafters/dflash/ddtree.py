"""Trees that are built in every step from one block's marginals (DDTree, arXiv 2604.12989)."""

from collections.abc import Sequence

import numpy as np
import torch

from treeopt.runtime.drafters.dflash.block_drafter import BlockDrafter, DFlashSequence
from treeopt.runtime.drafters.dflash.head import DFlashHead
from treeopt.runtime.drafters.draft_model import top_children
from treeopt.runtime.drafters.drafter import ROOT_ONLY, Proposal, intern_tree
from treeopt.runtime.models.finite import Scores
from treeopt.trees.drafter_parameters import DDTreeSetting


class DDTreeDrafter(BlockDrafter):
    """Drafts the `budget` - 1 most probable paths under the product of the slots' marginals, at temperature 1.

    The trees are built on the host: every step copies the top tokens of all slots and sequences there, once.

    Args:
        head: of the target that verifies.
        setting: the budget.
        capacity: longest sequence.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises OutOfMemoryError for a cache that does not fit into memory.
    """

    def __init__(
        self, head: DFlashHead, setting: DDTreeSetting, *, capacity: int, cuda_graphs: bool | None = None
    ) -> None:
        super().__init__(head, capacity, cuda_graphs)
        from treeopt.runtime.drafters.dflash import best_first  # numba is slow to import

        self.setting, self.max_tokens = setting, setting.max_nodes
        self._top_tokens = min(setting.max_children, head.tokens)
        self._grow_trees = best_first.grow_trees
        self._grow_trees(np.zeros((1, 1, 1)), np.ones(1, np.int64))  # compiles before the first step

    def _fill(self, sequences: Sequence[DFlashSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        """Return the trees below the roots; the root alone if a slot's distribution is not finite."""
        roots, logits = self._draft_blocks(sequences)
        top = top_children(logits, self._top_tokens)
        log_probs, tokens = torch.stack([values.double() for values in top]).cpu().numpy()  # 53 bits hold any token
        finite = np.isfinite(log_probs[..., 0]).all(axis=1)
        parents, indices, counts = self._grow_trees(log_probs, np.where(finite, self.setting.budget, 1))
        drafted = np.take_along_axis(tokens.reshape(len(roots), -1), indices, axis=1).astype(np.int64)
        drafted[:, 0] = roots
        return [
            Proposal(intern_tree(tuple(tree[:count])), torch.from_numpy(nodes[:count]))
            if is_finite
            else Proposal(ROOT_ONLY, torch.from_numpy(nodes[:1]), scores=Scores.missing(self.head.name))
            for tree, nodes, count, is_finite in zip(
                parents.tolist(), drafted, counts.tolist(), finite.tolist(), strict=True
            )
        ]
