"""Counting the acceptance of Medusa's heads, depth by depth, on text that the target itself generates.

The children that a head gives are the same whatever is decided above them, so a text is generated plainly, and every
position of it is taken as a root once: the heads predict from the hidden state before it, and the text says how far a
step would have come.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from treeopt.errors import InvalidValueError
from treeopt.records.acceptance_counts import AcceptanceCounts, text_sums
from treeopt.records.profile import MeasuredAcceptance
from treeopt.records.sampling import Sampling
from treeopt.runtime import Transformer
from treeopt.runtime.decoding.acceptance import sampled
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.models.finite import check_logits, not_finite_error
from treeopt.runtime.models.model import States, Wants, states_together
from treeopt.runtime.rules.distributions import distribution

LAST = Wants(last=True)
"""What Medusa's heads read."""


class HeadText(NamedTuple):
    """A generated text: n places, each of them once the root of a step."""

    states: States
    """The target's before each root, in rows of their own; with the whole text's, of all tokens but the last."""
    distributions: Tensor
    """float32 (n, V): the target's, after each root; at temperature 0 all on one token."""
    tokens: Tensor
    """int64 (n,): what was sampled of them."""
    root: int
    """The first root's token."""

    @property
    def hidden(self) -> Tensor:
        """(n, hidden): the last hidden state before each root, which Medusa's heads read."""
        assert self.states.last is not None  # it was wanted
        return self.states.last


def medusa_acceptance(
    target: Transformer,
    heads: MedusaHeads,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    positions: int,
    branching: int = 16,
) -> MeasuredAcceptance:
    """Return the acceptance of the heads' likeliest tokens under the rule `target`.

    Args:
        target: the model whose texts are generated.
        heads: on its hidden states.
        prompts: token ids that it continues; at least two.
        sampling: how its tokens are sampled.
        positions: generated, over all prompts.
        branching: B, tokens of each head that are counted; at most the vocabulary.

    Raises InvalidValueError for prompts and positions that the target was not trained for, TreeoptError for too little
    text.
    """
    each = _positions_of_each(target, prompts, positions)
    texts = []
    for seed, prompt in enumerate(prompts):
        generator = torch.Generator(target.device).manual_seed(seed)
        texts.append(head_counts(heads, generated(target, prompt, each, sampling, generator), branching))
    sums = text_sums(texts)
    return MeasuredAcceptance(
        rule="target",
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        prompts=len(texts),
        positions=int(sums.reached[:, 0].sum()),
        table=sums.table(),
        texts=sums,
        top_k=sampling.top_k,
    )


@torch.inference_mode()
def generated(
    target: Transformer,
    prompt: Sequence[int],
    positions: int,
    sampling: Sampling,
    generator: torch.Generator,
    wants: Wants = LAST,
) -> HeadText:
    """Generate so many tokens after a prompt, fewer if the text ends.

    Its first place is the prompt's last token, or the one after it where no hidden state stands before that.
    """
    cache = target.new_cache(len(prompt) + positions)
    before = target.prefill(torch.tensor(prompt[:-1], dtype=torch.int64, device=target.device), cache, wants)
    token = torch.tensor(prompt[-1:], device=target.device)
    states = [] if before is None else [before]
    distributions, tokens = [], [token]
    for _ in range(positions):
        place = torch.tensor([cache.length], device=target.device)
        logits, found = target.forward(token, place, cache, None, wants=wants)
        assert found is not None
        states.append(found)
        cache.length += 1
        check_logits(target, "target", logits)
        distributions.append(_distribution(logits, sampling))
        token = sampled(distributions[-1], generator)
        tokens.append(token)
        if int(token) in target.config.end_tokens:
            break
    first = 1 if before is None else 0
    known = states_together(states).rows(slice(-1))
    return HeadText(known, torch.cat(distributions)[first:], torch.cat(tokens)[first + 1 :], int(tokens[first]))


def head_counts(heads: MedusaHeads, text: HeadText, branching: int) -> AcceptanceCounts:
    """Return the sums per depth, (D,) and (D, B), every place of a text taken as a root once.

    Root s counts for depth d when the tokens behind it were among the B likeliest of heads 1 … d - 1, and there with
    the target's probability of each of head d's.
    """
    logits, proposals = heads.likeliest(text.hidden, min(branching, text.distributions.shape[1]))
    if not bool(logits[..., 0].isfinite().all()):
        raise not_finite_error(heads.name, "draft model")
    reached, accepted = np.zeros(heads.heads), np.zeros(proposals.shape[1:])
    reach = torch.ones(len(proposals), dtype=torch.float64, device=proposals.device)  # 1 where root s came to depth d
    for d in range(min(heads.heads, len(proposals))):
        reach, children = reach[: len(proposals) - d], proposals[: len(proposals) - d, d]
        reached[d] = float(reach.sum())
        accepted[d] = (reach @ text.distributions[d:].gather(1, children).double()).cpu().numpy()
        reach = reach * (children == text.tokens[d:, None]).any(1)
    return AcceptanceCounts(reached, accepted)


def _distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return float32 (n, V): what tokens are sampled from, at temperature 0 all on the likeliest."""
    if sampling.greedy:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return distribution(logits, sampling)


def _positions_of_each(target: Transformer, prompts: Sequence[Sequence[int]], positions: int) -> int:
    """Return the positions of each text, after a check that they fit."""
    if len(prompts) < 2 or min(map(len, prompts)) == 0:
        raise InvalidValueError(f"prompts: expected at least two, none empty. Got {len(prompts)}.")
    most = (target.config.max_positions - max(map(len, prompts))) * len(prompts)
    if not 1 <= positions <= most:
        raise InvalidValueError(
            f"positions: expected 1 to {most}, since {len(prompts)} prompts are continued and the target was trained on "
            f"{target.config.max_positions} tokens. Got {positions}."
        )
    return -(-positions // len(prompts))
