"""Whether outputs follow the target's distribution: compared at temperature 0, and by three tests above it.

The tests share the probability of a false alarm.  Surprisal: log p(x) of a token sampled from a distribution p has a known
mean and variance; the sum of the differences, divided by its standard deviation, is standard normal (a martingale's
central limit theorem).  Rank, twice: P(tokens before x) + U p(x), with U uniform, is uniform on [0, 1) for any order of the
tokens (the randomised probability integral transform: Brockwell, 2007).  It is tested where the distribution is not
concentrated on one token, with tokens ordered by probability and by number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.profiler.bench.divergence import find_divergences
from treeopt.records.sampling import Sampling
from treeopt.runtime import distribution
from treeopt.runtime.models.model import LanguageModel, SequenceInput

BINS = 20
MAX_PROBABILITY = 0.95
"""Distributions with a more probable token are not tested for ranks."""
MIN_PROBABILITY = 1e-12
MIN_DEVIATION = 1e-6
SIGNIFICANCE = 1e-4
"""Probability of a false alarm."""
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessnessTest:
    """The result of a test of outputs."""

    lossless: bool
    evidence: str
    """One sentence."""


def greedy_losslessness(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
) -> LosslessnessTest:
    """Compare outputs with plain decoding, up to the shorter length; divergence at near-ties is no fault."""
    shortened = {
        number: [(expected[: len(output)], output[: len(expected)])]
        for number, (expected, output) in enumerate(zip(plain, outputs, strict=True))
    }
    divergences = find_divergences(target, prompts, shortened)
    faults = sum(not item.near_tie for item in divergences)
    if faults:
        return LosslessnessTest(lossless=False, evidence=f"{faults} of {len(outputs)} outputs differ")
    ties = f", {len(divergences)} at near-ties" if divergences else ""
    return LosslessnessTest(lossless=True, evidence=f"{len(outputs)} outputs are plain decoding's{ties}")


def sampled_losslessness(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[Sequence[int]],
    sampling: Sampling,
) -> LosslessnessTest:
    """Test whether every token of the outputs was sampled from the target's distribution."""
    generator = torch.Generator(target.device).manual_seed(SEED)
    statistics = [
        _token_statistics(target, prompt, output, sampling, generator)
        for prompt, output in zip(prompts, outputs, strict=True)
        if len(output) > 0
    ]
    surprisal, variance, is_open, *ranks = torch.cat(statistics, dim=1)
    tested = is_open > 0
    p_values = [normal_p_value(float(surprisal.sum() / variance.sum().sqrt().clamp(min=MIN_DEVIATION)))]
    p_values += [uniform_p_value(rank[tested]) for rank in ranks if tested.any()]
    p_value = min(1.0, len(p_values) * min(p_values))
    evidence = f"{len(surprisal)} tokens, p = {p_value:.2g}"
    return LosslessnessTest(lossless=p_value > SIGNIFICANCE, evidence=evidence)


def normal_p_value(statistic: float) -> float:
    """Return the two-sided p-value of a standard normal statistic.

    >>> round(normal_p_value(1.959964), 4)
    0.05
    """
    return math.erfc(abs(statistic) / math.sqrt(2))


def uniform_p_value(samples: Tensor) -> float:
    """Return the p-value of a chi-squared test that samples are uniform on [0, 1).

    >>> uniform_p_value(torch.arange(1000, dtype=torch.float64) / 1000)
    1.0
    """
    counts = torch.histc(samples, bins=BINS, min=0.0, max=1.0).double()
    expected = len(samples) / BINS
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((BINS - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic.cpu() / 2))


@torch.inference_mode()
def _token_statistics(
    target: LanguageModel, prompt: Sequence[int], output: Sequence[int], sampling: Sampling, generator: torch.Generator
) -> Tensor:
    """Return float64 (5, tokens): surprisal, its variance, whether ranks are tested, rank by probability and by number."""
    logits = _logits_along(target, [*prompt, *output[:-1]])[-len(output) :]
    distributions = distribution(logits, sampling).double()
    sampled = torch.tensor(output, device=target.device)[:, None]
    probability = distributions.gather(1, sampled)
    u = torch.rand(probability.shape, dtype=torch.float64, device=target.device, generator=generator)
    likelier = torch.where(distributions > probability, distributions, 0.0).sum(1, keepdim=True)
    before = distributions.cumsum(1).gather(1, sampled) - probability
    log_distributions = distributions.clamp(min=MIN_PROBABILITY).log()
    mean = (distributions * log_distributions).sum(1, keepdim=True)
    variance = (distributions * (log_distributions - mean) ** 2).sum(1, keepdim=True)
    is_open = (distributions.amax(1, keepdim=True) < MAX_PROBABILITY).double()
    columns = [
        log_distributions.gather(1, sampled) - mean,
        variance,
        is_open,
        (likelier + u * probability).clamp(0, 1),
        (before + u * probability).clamp(0, 1),
    ]
    return torch.cat(columns, dim=1).T


def _logits_along(target: LanguageModel, tokens: Sequence[int]) -> Tensor:
    """Return the target's logits (n, V) after every token, by one causal pass."""
    (cache,) = target.new_caches(len(tokens), 1)
    return target.forward([SequenceInput.causal(cache, torch.tensor(tokens, device=target.device))]).logits
