"""Counting acceptance per depth and rank on sequences that the target generates.

At every position the draft's children are sampled, the rule's acceptance probability of each is recorded, and the sequence
continues with the token that the rule samples.  A lossless rule makes the sequence follow the target's distribution, and
its outcomes show at every position whether a step that started earlier would have come this far, and through which ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Float64, Int64
from treeopt.profiler.decoding import Decoding
from treeopt.records.acceptance_counts import REJECTED
from treeopt.records.sampling import resolve_draft_sampling
from treeopt.runtime.models.finite import check_logits
from treeopt.runtime.models.model import LanguageModel, SequenceCache, SequenceInput
from treeopt.runtime.models.runner import Runner, make_graph_pool
from treeopt.runtime.rules import get_rule
from treeopt.runtime.rules.distributions import distribution
from treeopt.runtime.rules.sample_children import index_children, take_likeliest
from treeopt.runtime.rules.verify import Verifier
from treeopt.trees import level_widths


@dataclass(frozen=True, slots=True, eq=False)
class SequencePositions:
    """The acceptance at every position of one sequence."""

    expected: Float64
    """float64 (positions, B): the probability that the rule accepts the child of each rank, given the children."""
    accepted_rank: Int64
    """int64 (positions,): the rank that it accepted, `REJECTED` for none."""

    @classmethod
    def empty(cls, branching: int) -> "SequencePositions":
        return cls(np.zeros((0, branching)), np.zeros(0, np.int64))


class PositionSampler:
    """Samples the next token of a sequence under one rule and sampling, with the acceptance at its position.

    Args:
        target: its vocabulary and device.
        decoding: the rule, lossy ones included, and how target and draft sample.
        branching: children sampled per position, B.
        seed: of the random generator.
    """

    def __init__(self, target: LanguageModel, decoding: Decoding, *, branching: int, seed: int = 0) -> None:
        self._rule = get_rule(decoding.rule, lossy=True)
        self._sampling = decoding.sampling
        self._draft_sampling = resolve_draft_sampling(decoding.sampling, decoding.draft_sampling)
        self._children = index_children([branching], target.device)
        self._tree = level_widths([branching])
        self._verifier = Verifier(self._rule, target.config.vocabulary, target.device)
        self._generator = torch.Generator(target.device).manual_seed(seed)

    def sample_position(self, token: int, target_logits: Tensor, draft_logits: Tensor) -> tuple[Float64, int, int]:
        """Return the expected acceptance (B,) of the children after a token, the accepted rank, and the next token.

        Logits are (1, V) of either model, after the token.
        """
        if self._sampling.greedy:
            next_token = int(target_logits.argmax())
            expected = (take_likeliest(draft_logits, self._children) == next_token).double().cpu().numpy()
            return expected, int(expected.argmax()) if expected.any() else REJECTED, next_token
        draft_probs = distribution(draft_logits, self._draft_sampling)
        (children,) = self._rule.draw(draft_probs[None], self._children, [self._generator])
        tokens = torch.cat([children.new_tensor([token]), children])
        self._verifier.test([self._tree], tokens, draft_probs, distribution(target_logits, self._sampling))
        node, u = self._verifier.last_node(self._generator)
        next_token = int(tokens[node]) if node else self._verifier.token_after(0, u)
        return self._verifier.reach()[1:], node - 1 if node else REJECTED, next_token


@torch.inference_mode()
def continue_prompts(
    target: LanguageModel,
    draft: LanguageModel,
    samplers: Sequence[PositionSampler],
    prompts: Sequence[Sequence[int]],
    positions: int,
) -> list[SequencePositions]:
    """Continue prompts, each with its own sampler, with one batched pass of each model per token.

    Returns up to `positions` positions of each sequence, fewer if it ends.
    Raises TreeoptError naming a model whose logits are not finite.
    """
    models, end_tokens = (target, draft), set(target.config.end_tokens)
    batch_size = len(prompts)
    runners = [Runner(model, max_nodes=1, pool=make_graph_pool(model.device)) for model in models]
    model_caches = [model.new_caches(max(map(len, prompts)) + positions, batch_size) for model in models]
    for model, caches in zip(models, model_caches, strict=True):
        for prompt, cache in zip(prompts, caches, strict=True):
            model.prefill(torch.tensor(prompt[:-1], dtype=torch.int64, device=model.device), cache)
    last_tokens = [prompt[-1] for prompt in prompts]
    outcomes: list[list[tuple[Float64, int]]] = [[] for _ in samplers]
    ended = [False] * batch_size
    for _ in range(positions):
        logits = [_feed(runner, caches, last_tokens) for runner, caches in zip(runners, model_caches, strict=True)]
        check_logits(target, "target", logits[0])
        check_logits(draft, "draft model", logits[1])
        for row, sampler in enumerate(samplers):
            if not ended[row]:
                expected, rank, last_tokens[row] = sampler.sample_position(
                    last_tokens[row], logits[0][row], logits[1][row]
                )
                outcomes[row].append((expected, rank))
                ended[row] = last_tokens[row] in end_tokens
        if all(ended):
            break
    return [
        SequencePositions(np.array([expected for expected, _ in row]), np.array([rank for _, rank in row]))
        for row in outcomes
    ]


def _feed(runner: Runner, caches: Sequence[SequenceCache], tokens: Sequence[int]) -> Tensor:
    """Commit a token to each sequence and return the logits (batch, 1, V) after it."""
    rows = torch.tensor(tokens, dtype=torch.int64, device=runner.model.device).split(1)
    logits = runner.forward(
        [SequenceInput.causal(cache, token) for cache, token in zip(caches, rows, strict=True)]
    ).logits
    for cache in caches:
        cache.length += 1
    return logits[:, None]
