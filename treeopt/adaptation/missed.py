"""What the draft model would have been worth where nothing was drafted, so that plain decoding is not forever.

A step that drafts to see whether drafts are right again costs a draft pass and a larger pass of the target, and tells of
one position.  One pass of the draft model over many tokens that were decoded meanwhile costs about as much as one over a
single token, nothing is verified that was not decoded anyway, and it tells of every one of these positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from treeopt.adaptation.counts import Outcomes
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.rules.distributions import distribution


class MissedSteps:
    """The steps of one text that drafted nothing, since the draft model last read it.

    Args:
        decoder: whose steps they are.
        most: beyond so many, the oldest are forgotten.
    """

    def __init__(self, decoder: Decoder, most: int) -> None:
        self._decoder, self._most = decoder, most
        self._sampled = decoder.rule.random_drafts and not decoder.sampling.greedy
        self._text = 0
        self._tokens: list[int] = []
        self._logits: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def note(self, text: int, token: int, logits: Tensor) -> None:
        """Remember a step that committed one token, sampled from logits (1, V)."""
        if text != self._text:
            self.forget()
            self._text = text
        self._tokens.append(token)
        if self._sampled:
            self._logits.append(logits.clone())  # the next pass writes over them
        if len(self._tokens) > self._most:
            del self._tokens[0], self._logits[:1]

    def forget(self) -> None:
        """Begin anew."""
        self._tokens.clear()
        self._logits.clear()

    @torch.inference_mode()
    def outcomes(self, depths: int, ranks: int) -> Outcomes:
        """Have the draft model read what it missed; return how often it would have been right one level below the root.

        Where tokens are given to it, a rank is right that the text went on with.  Where they are sampled the first one is
        accepted with probability sum min(p, q) (Leviathan et al., 2023, section 3.2); of later ones nothing is said.
        """
        found = Outcomes.none(depths, ranks)
        logits = self._decoder.catch_up(self._text)
        count = 0 if logits is None else min(len(logits), len(self._tokens))
        if logits is None or count == 0 or not bool(torch.isfinite(logits[-count:]).all()):
            self.forget()
            return found
        if self._sampled:
            found.tried[0, 0] = count
            found.accepted[0, 0] = self._overlap(logits[-count:], self._logits[-count:])
        else:
            _count_ranks(found, logits[-count:], self._tokens[-count:], ranks)
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
