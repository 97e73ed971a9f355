"""What the draft model would be worth while it does not draft, so that a restored draft is found again.

One pass of the draft model over the end of the sequence gives the acceptance at many positions.  A step that drafts would
cost a draft pass and a larger verification for one position.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from treeopt.adaptation.averages import Outcomes
from treeopt.runtime.decoding.observer import Steered
from treeopt.runtime.rules.distributions import distribution

PROBE_SHARE = 0.005
"""Share of the decoding time that probes take."""
CONTEXT_TOKENS = 32
"""Tokens that the draft model reads before the probed ones."""
LEAST_PROBED, MOST_PROBED = 16, 24
MOST_NUMBERS = 2**24
"""Target logits kept for a probe."""
SLOWER_PROBE = 1.25
"""Factor by which a probe may seem slower than the last one; more is an interruption."""


class Probe:
    """Remembers the latest steps without a draft, and has the draft model read them.

    Args:
        decoder: whose draft model reads.
        usual_s: estimate of a probe's seconds before the first one.
        now_s: the clock.
    """

    def __init__(self, decoder: Steered, usual_s: float, now_s: Callable[[], float]) -> None:
        self._usual_s, self._now_s = usual_s, now_s
        self._due_s = self.taken_s = 0.0
        self.attach(decoder)

    def attach(self, decoder: Steered) -> None:
        self._decoder = decoder
        self._most = min(MOST_PROBED, max(LEAST_PROBED, MOST_NUMBERS // decoder.target.config.vocabulary))
        self._sampled = decoder.rule.random_drafts and not decoder.sampling.greedy
        self._text: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._tokens: list[int] = []
        self._logits: list[Tensor] = []
        self._count = 0

    def soon(self) -> None:
        """Probe as soon as there are enough steps."""
        self._due_s = 0.0

    def note(self, text: int, before: Sequence[int], token: int, logits: Tensor) -> None:
        """Remember a token that the target committed after a sequence, and the logits (1, V) that it was sampled from."""
        if text != self._text or not self._tokens:
            self._forget()
            self._text, self._tokens = text, list(before[-CONTEXT_TOKENS:])
        self._tokens.append(token)
        self._count = min(self._count + 1, self._most)
        del self._tokens[: -self._most - CONTEXT_TOKENS]
        if self._sampled:
            self._logits.append(logits.clone())  # the next pass overwrites them
            del self._logits[: -self._most]

    def take(self, depths: int, ranks: int, decoding_s: float) -> Outcomes:
        """Return the outcomes at depth 1 if a probe is due after `decoding_s` seconds of decoding, else none."""
        if decoding_s < self._due_s or self._count < LEAST_PROBED:
            return Outcomes.none(depths, ranks)
        start_s = self._now_s()
        outcomes = self._read(depths, ranks)
        taken_s = self._now_s() - start_s
        self.taken_s += taken_s
        self._usual_s = min(taken_s, SLOWER_PROBE * self._usual_s)
        self._due_s = decoding_s + self._usual_s / PROBE_SHARE
        self._forget()
        return outcomes

    @torch.inference_mode()
    def _read(self, depths: int, ranks: int) -> Outcomes:
        """Count greedily by the rank of the committed token, and sampled drafts by sum min(p, q) of the first child.

        The latter is its acceptance (Leviathan et al., 2023, section 3.2).
        """
        outcomes, count = Outcomes.none(depths, ranks), self._count
        logits = self._decoder.draft_logits(self._tokens[:-1])
        if logits is None or not bool(logits[-count:].amax(-1).isfinite().all()):  # -inf is an ordinary logit
            return outcomes
        logits = logits[-count:]
        if self._sampled:
            p = distribution(torch.cat(self._logits[-count:]), self._decoder.sampling)
            q = distribution(logits, self._decoder.draft_sampling)
            outcomes.tried[0, 0] = count
            outcomes.accepted[0, 0] = float(torch.minimum(p, q.to(p.device)).sum())
            return outcomes
        committed = logits.gather(1, torch.tensor(self._tokens[-count:], device=logits.device)[:, None])
        for rank in (logits > committed).sum(dim=1).tolist():
            outcomes.tried[0, : min(rank + 1, ranks)] += 1
            if rank < ranks:
                outcomes.accepted[0, rank] += 1
        return outcomes
