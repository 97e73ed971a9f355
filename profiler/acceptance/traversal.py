"""The gain of verifying whole paths from the leaves (`traversal`) over verifying token by token (`sequoia`).

Under `traversal` the acceptance of a path depends on the target's distributions along all of it, so it cannot be counted
position by position.  Instead sequences are decoded with a tree.  Each step yields the probability that each node is
reached under `traversal` and under `sequoia`, which draws the same children.  The ratio of the two has little noise;
multiplied by the acceptance of `sequoia` it gives that of `traversal`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from treeopt.arrays import Float64
from treeopt.profiler.decoding import Decoding
from treeopt.runtime import Verifier
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.models.finite import all_finite, not_finite_error
from treeopt.runtime.models.model import LanguageModel, max_sequence_tokens
from treeopt.runtime.rules import get_rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.trees import TokenTree

LEAST_REACHED = 20.0
"""Entries whose parents are reached by fewer steps keep the acceptance of `sequoia`."""
MAX_ROUNDS = 6


@dataclass(frozen=True, slots=True, eq=False)
class ReachSums:
    """The probability that each node of a tree is reached, summed over steps, under both rules and the same drafts."""

    tree: TokenTree
    traversal: Float64
    """float64 (n,); entry 0 is the number of steps."""
    sequoia: Float64

    def gain(self, depths: int, ranks: int) -> Float64:
        """Return float64 (depths, ranks): acceptance under `traversal` over that under `sequoia`, nan if not measured."""
        gain = np.full((depths, ranks), np.nan)
        for depth, level in enumerate(self.tree.levels[1 : depths + 1]):
            nodes = np.arange(level.start, level.stop)
            for rank in range(min(ranks, int(self.tree.rank[nodes].max()) + 1)):
                children = nodes[self.tree.rank[nodes] == rank]
                parents = self.tree.parents[children]
                if self.sequoia[parents].sum() < LEAST_REACHED or not self.sequoia[children].any():
                    continue
                traversal, sequoia = (
                    reach[children].sum() / reach[parents].sum() for reach in (self.traversal, self.sequoia)
                )
                gain[depth, rank] = traversal / sequoia
        return gain


@torch.inference_mode()
def count_reach(
    target: LanguageModel,
    draft: LanguageModel,
    tree: TokenTree,
    prompt: Sequence[int],
    positions: int,
    decoding: Decoding,
    *,
    seed: int,
) -> Float64:
    """Decode `positions` tokens with a tree under `traversal`, fewer if the sequence ends, and sum the reach of its nodes.

    Returns float64 (2, n): under `traversal` and under `sequoia`, from the same drafts.
    Raises TreeoptError naming a model whose logits are not finite.
    """
    max_tokens = min(max_sequence_tokens(target, draft), len(prompt) + positions)
    decoder = decoding.decoder(target, draft, tree, max_tokens, seed=seed)
    verifiers = [Verifier(get_rule(rule), target.config.vocabulary, target.device) for rule in ("traversal", "sequoia")]
    generator = torch.Generator(target.device).manual_seed(seed + 1)
    reach = np.zeros((2, tree.nodes))

    def decode_step() -> Step:
        proposal = decoder.draft()
        if proposal.scores is not None and not all_finite(proposal.scores.values.tolist()):
            raise not_finite_error(draft.name, "draft model")
        output = decoder.verify(proposal)
        target_probs = distribution(output.logits, decoding.sampling)
        for verifier, row in zip(verifiers, reach, strict=True):
            verifier.test([tree], proposal.tokens, proposal.probs, target_probs)
            row += verifier.reach()
        step = decoder.accept_verdict(proposal.tokens.tolist(), verifiers[0].verdict(generator), output)
        decoder.commit(step)
        return step

    for _ in decoder.decode_steps(prompt, positions, decode_step):
        pass
    return reach


def iterate_gain(
    fastest: Callable[[Float64], TokenTree], measure: Callable[[int, TokenTree], ReachSums], depths: int, ranks: int
) -> Float64:
    """Return the gain (depths, ranks) under which the fastest tree is one that was measured.

    Solving and measuring alternate: the fastest tree under the current gain is measured, and the gain updated, until the
    fastest tree is one that was measured before.

    Args:
        fastest: returns the fastest tree under a gain.
        measure: returns the reach on a tree; the first argument is the round, from 0.
        depths: of the acceptance table.
        ranks: of the acceptance table.
    """
    gain = np.full((depths, ranks), np.nan)
    measured: list[TokenTree] = []
    while len(measured) < MAX_ROUNDS and (tree := fastest(gain)) not in measured:
        tree_gain = measure(len(measured), tree).gain(depths, ranks)
        gain = np.where(np.isnan(tree_gain), gain, tree_gain)
        measured.append(tree)
    return gain
