"""Shadow drafting: the acceptance of the draft model while it does not draft, so that a better draft is used again.

One pass of the draft model over the end of the sequence gives the acceptance at many positions.  A step that drafts would
cost a draft pass and a larger verification for a single position.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from treeopt.adaptation.averages import Outcomes
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.rules.distributions import distribution

PROBE_FRACTION = 0.005
"""Fraction of the decoding time that probes take."""
CONTEXT_TOKENS = 32
"""Tokens before the probed ones in the draft model's pass."""
MIN_PROBED, MAX_PROBED = 16, 24
MAX_LOGITS = 2**24
"""Target logits stored for a probe."""
SLOWER_PROBE = 1.25
"""Limit on the time of a probe relative to the last one; longer ones were interrupted."""


class Probe:
    """Stores the latest steps without a draft, and runs the draft model on them.

    Args:
        decoder: its draft model is probed.
        estimate_s: seconds of the first probe.
        now_s: the clock.
    """

    def __init__(self, decoder: Decoder, estimate_s: float, now_s: Callable[[], float]) -> None:
        self._estimate_s, self._now_s = estimate_s, now_s
        self._due_s = self.spent_s = 0.0
        self.attach(decoder)

    def attach(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._capacity = min(MAX_PROBED, max(MIN_PROBED, MAX_LOGITS // decoder.target.config.vocabulary))
        self._sampled = decoder.rule.random_drafts and not decoder.sampling.greedy
        self._sequence: int | None = None
        self._forget()

    def _forget(self) -> None:
        self._tokens: list[int] = []
        self._logits: list[Tensor] = []
        self._count = 0

    def schedule(self) -> None:
        """Make a probe due as soon as there are enough steps."""
        self._due_s = 0.0

    def add(self, sequence: int, before: Sequence[int], token: int, logits: Tensor) -> None:
        """Add a token that the target committed after the tokens before it, and its logits (1, V)."""
        if sequence != self._sequence or not self._tokens:
            self._forget()
            self._sequence, self._tokens = sequence, list(before[-CONTEXT_TOKENS:])
        self._tokens.append(token)
        self._count = min(self._count + 1, self._capacity)
        del self._tokens[: -self._capacity - CONTEXT_TOKENS]
        if self._sampled:
            self._logits.append(logits.clone())  # the next pass overwrites them
            del self._logits[: -self._capacity]

    def take(self, depths: int, ranks: int, decoding_s: float) -> Outcomes:
        """Return the outcomes at depth 1 if a probe is due after `decoding_s` seconds of decoding, else none."""
        if decoding_s < self._due_s or self._count < MIN_PROBED:
            return Outcomes.none(depths, ranks)
        start_s = self._now_s()
        outcomes = self._run(depths, ranks)
        probe_s = self._now_s() - start_s
        self.spent_s += probe_s
        self._estimate_s = min(probe_s, SLOWER_PROBE * self._estimate_s)
        self._due_s = decoding_s + self._estimate_s / PROBE_FRACTION
        self._forget()
        return outcomes

    @torch.inference_mode()
    def _run(self, depths: int, ranks: int) -> Outcomes:
        """Count the rank of the committed token in greedy decoding, and sum min(p, q) of the first child in sampling.

        The sum is its acceptance (Leviathan et al., 2023, section 3.2).
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
