"""Drafters with an EAGLE head: static trees and dynamic trees, and static trees with a P-EAGLE head."""

from collections.abc import Sequence
from functools import partial

import torch

from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.drafters.drafter import Proposal, Step, propose_ready
from treeopt.runtime.drafters.eagle.head import EagleHead
from treeopt.runtime.drafters.eagle.p_eagle import PEagleHead
from treeopt.runtime.drafters.eagle.sequence import EagleSequence, new_eagle_sequences
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.heads import MarginalTree, check_children
from treeopt.runtime.drafters.sequence_pool import SequencePool
from treeopt.runtime.drafters.static_tree import LevelDrafter
from treeopt.runtime.models.model import HiddenStates
from treeopt.runtime.models.runner import Runner, make_graph_pool
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


class PEagleDrafter:
    """Drafts a static tree in one pass: the node of depth d and rank r has the r-th most likely token at d.

    The pass has a slot for each level of the tree, and those of the tokens that the last step accepted.

    Args:
        head: of the target that verifies.
        tree: the tree.
        capacity: longest sequence.
        cuda_graphs: whether passes are captured as CUDA graphs, by default on a CUDA device.

    Raises InvalidValueError for a tree with more levels than the head was trained for, or more children of a node than
    it predicts tokens, OutOfMemoryError for a cache that does not fit into memory.
    """

    sampled = False

    def __init__(self, head: PEagleHead, tree: TokenTree, *, capacity: int, cuda_graphs: bool | None = None) -> None:
        self.head = head
        self.requested_states = head.requested_states
        self.max_tokens = tree.nodes
        most_slots = 2 * head.levels  # the root, all levels accepted before it, and the other levels after it
        self._runner = Runner(head.eagle, max_nodes=most_slots, pool=make_graph_pool(head.device, cuda_graphs))
        self._sequences = SequencePool(partial(new_eagle_sequences, head.eagle, capacity, head.levels))
        self.change_tree(tree)

    @property
    def tree(self) -> TokenTree:
        return self._tree.tree

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on."""
        head = self.head
        self._tree = MarginalTree(head.name, tree, levels=head.levels, tokens=head.tokens, device=head.device)

    def begin(self, sequence: int, tokens: Sequence[int], states: HiddenStates | None) -> None:
        self._sequences.acquire(sequence).begin(tokens, states)

    def reserve(self, sequences: int) -> None:
        self._sequences.reserve(sequences)

    @torch.inference_mode()
    def propose(self, sequences: Sequence[int], generators: Sequence[torch.Generator]) -> list[Proposal]:
        """Return the trees below the roots; the root alone for a sequence of one token."""
        return propose_ready([self._sequences[sequence] for sequence in sequences], generators, self._fill)

    def _fill(self, sequences: Sequence[EagleSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        levels = max(1, self.tree.max_depth)
        inputs = [self.head.append_masks(slots, levels) for slots in EagleSequence.feed_roots(sequences)]
        outputs = self._runner.forward(inputs)
        for sequence in sequences:
            sequence.commit_pending()
        logits = torch.stack([output.logits[-levels:] for output in outputs])
        return self._tree.fill([sequence.root for sequence in sequences], logits)

    def accept(self, sequences: Sequence[int], steps: Sequence[Step]) -> None:
        """Move to the new roots; the slots of the accepted tokens are fed in the next pass, with the target's states."""
        for sequence, step in zip(sequences, steps, strict=True):
            self._sequences[sequence].accept(step)

    def end(self, sequence: int) -> None:
        self._sequences.release(sequence)
