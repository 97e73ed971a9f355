"""What the draft model would have been worth where nothing was drafted, so that plain decoding is not forever.

A step that drafts to see whether drafts are right again costs a draft pass and a larger pass of the target, and tells of
one position.  One pass of the draft model over the end of the text costs little more than one over a single token,
nothing is verified that was not decoded anyway, and it tells of every one of these positions.  It reads no more than the
end, whatever the text's length: what it says is a little less than drafts with all of the text would be worth.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from treeopt.adaptation.counts import Outcomes
from treeopt.runtime.decoding.observer import Steered
from treeopt.runtime.rules.distributions import distribution

CONTEXT_TOKENS = 32
"""Tokens that the draft model reads before those that it is asked about; more would take longer and say little else."""


class MissedSteps:
    """The steps of one text that drafted nothing, the latest of them.

    Args:
        decoder: whose steps they are.
        most: beyond so many, the oldest are forgotten.
    """

    def __init__(self, decoder: Steered, most: int) -> None:
        self._decoder, self._most = decoder, most
        self._sampled = decoder.rule.random_drafts and not decoder.sampling.greedy
        self._text: int | None = None
        self._tokens: list[int] = []
        self._logits: list[Tensor] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def note(self, text: int, before: Sequence[int], token: int, logits: Tensor, node: int = 0) -> None:
        """Remember a step that committed one token behind a text, sampled from one of the rows of logits (n, V)."""
        if text != self._text or not self._tokens:
            self.forget()
            self._text, self._tokens = text, list(before[-CONTEXT_TOKENS:])
        self._tokens.append(token)
        self._count = min(self._count + 1, self._most)
        del self._tokens[: -self._most - CONTEXT_TOKENS]
        if self._sampled:
            self._logits.append(logits[node : node + 1].clone())  # the next pass writes over them
            del self._logits[: -self._most]

    def forget(self) -> None:
        """Begin anew."""
        self._tokens.clear()
        self._logits.clear()
        self._count = 0

    @torch.inference_mode()
    def outcomes(self, depths: int, ranks: int) -> Outcomes:
        """Have the draft model read the end of the text; return how often it would have been right one level below the root.

        Where tokens are given to it, a rank is right that the text went on with.  Where they are sampled the first one is
        accepted with probability sum min(p, q) (Leviathan et al., 2023, section 3.2); of later ones nothing is said.
        """
        found = Outcomes.none(depths, ranks)
        tokens, count = self._tokens, self._count
        logits = self._decoder.draft_logits(tokens[:-1]) if count else None
        if logits is not None and bool(logits[-count:].amax(-1).isfinite().all()):  # -inf is an ordinary logit
            if self._sampled:
                found.tried[0, 0] = count
                found.accepted[0, 0] = self._overlap(logits[-count:], self._logits[-count:])
            else:
                _count_ranks(found, logits[-count:], tokens[-count:], ranks)
        self.forget()
        return found

    def _overlap(self, draft: Tensor, target: Sequence[Tensor]) -> float:
        """Return how many of the first children would have been accepted on average."""
        p = distribution(torch.cat(list(target)), self._decoder.sampling)
        q = distribution(draft, self._decoder.draft_sampling)
        return float(torch.minimum(p, q.to(p.device)).sum())


def _count_ranks(found: Outcomes, logits: Tensor, tokens: Sequence[int], ranks: int) -> None:
    """Count the ranks, among the likeliest tokens, of those that the text went on with."""
    own = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
    for rank in (logits > own).sum(dim=1).tolist():
        found.tried[0, : min(rank + 1, ranks)] += 1
        if rank < ranks:
            found.accepted[0, rank] += 1
