"""What testing whole paths from the leaves up gains over testing token by token, on the same drafts.

Acceptance under `traversal` is not counted position by position: how probable a path is to be accepted hangs on the
target's distributions along all of it, and only drafted trees show them.  So texts are decoded with a tree, and every
step tells, given its drafts, how probable each node is to be reached under `traversal` and how probable under
`sequoia`, which draws its children in the same way.  The ratio of the two acceptances, from the same drafts, has little
noise; times the acceptance counted for `sequoia` it is that of `traversal`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from treeopt.arrays import Float64
from treeopt.profiler.decoding import Decoding
from treeopt.runtime import Decoder, Verifier
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.models.finite import all_finite, not_finite_error
from treeopt.runtime.models.model import LanguageModel, trained_tokens
from treeopt.runtime.rules import rule_named
from treeopt.runtime.rules.distributions import distribution
from treeopt.trees import TokenTree

LEAST_REACHED = 20.0
"""Entries whose parents fewer steps reached keep the acceptance of `sequoia`."""
MAX_ROUNDS = 6


@dataclass(frozen=True, slots=True, eq=False)
class ReachSums:
    """Reach of every node of a tree, summed over steps, under both rules and from the same drafts."""

    tree: TokenTree
    traversal: Float64
    """float64 (n,); entry 0 is the number of steps."""
    sequoia: Float64

    def gain(self, depths: int, ranks: int) -> Float64:
        """Return float64 (depths, ranks): acceptance under `traversal` over that under `sequoia`, nan where not measured."""
        gain = np.full((depths, ranks), np.nan)
        for depth, level in enumerate(self.tree.levels[1 : depths + 1]):
            nodes = np.arange(level.start, level.stop)
            for rank in range(min(ranks, int(self.tree.rank[nodes].max()) + 1)):
                children = nodes[self.tree.rank[nodes] == rank]
                parents = self.tree.parents[children]
                if self.sequoia[parents].sum() < LEAST_REACHED or not self.sequoia[children].any():
                    continue
                ours, theirs = (
                    reach[children].sum() / reach[parents].sum() for reach in (self.traversal, self.sequoia)
                )
                gain[depth, rank] = ours / theirs
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
    """Decode `positions` tokens with a tree under `traversal`, fewer if the text ends, and sum the reach of its nodes.

    Target and draft sample as `decoding` says, whose rule is not looked at.

    Returns float64 (2, n): under `traversal` and under `sequoia`, of the same drafts.
    Raises TreeoptError naming a model whose logits are not finite.
    """
    sampling, draft_sampling = decoding.sampling, decoding.draft_sampling
    trained = trained_tokens(target, draft)
    decoder = Decoder(
        target,
        draft,
        tree,
        rule="traversal",
        sampling=sampling,
        draft_sampling=draft_sampling,
        seed=seed,
        max_text_tokens=min(trained, len(prompt) + positions),
    )
    verifiers = [
        Verifier(rule_named(rule), target.config.vocabulary, target.device) for rule in ("traversal", "sequoia")
    ]
    generator = torch.Generator(target.device).manual_seed(seed + 1)
    reach = np.zeros((2, tree.nodes))

    def step() -> Step:
        proposal = decoder.draft()
        if proposal.scores is not None and not all_finite(proposal.scores.values.tolist()):
            raise not_finite_error(draft.name, "draft model")
        output = decoder.verify(proposal)
        target_probs = distribution(output.logits, sampling)
        for verifier, row in zip(verifiers, reach, strict=True):
            verifier.test([tree], proposal.tokens, proposal.probs, target_probs)
            row += verifier.reach()
        found = decoder.accepted(proposal.tokens.tolist(), verifiers[0].verdict(generator), output)
        decoder.commit(found)
        return found

    for _ in decoder.whole_steps(prompt, positions, step):
        pass
    return reach


def until_no_gain(
    fastest: Callable[[Float64], TokenTree], measure: Callable[[int, TokenTree], ReachSums], depths: int, ranks: int
) -> Float64:
    """Return the gain (depths, ranks) under which the fastest tree is one that was measured.

    Solve and measure take turns: the fastest tree under the gain known so far is measured, what it shows is added, until
    no tree that was not measured promises more.

    Args:
        fastest: the fastest tree under a gain.
        measure: reach on a tree; the first argument counts the rounds from 0.
        depths: of the acceptance table.
        ranks: of the acceptance table.
    """
    gain = np.full((depths, ranks), np.nan)
    measured: list[TokenTree] = []
    while len(measured) < MAX_ROUNDS and (tree := fastest(gain)) not in measured:
        found = measure(len(measured), tree).gain(depths, ranks)
        gain = np.where(np.isnan(found), gain, found)
        measured.append(tree)
    return gain
