"""Whether texts follow the target's distribution: at temperature 0 token by token, above it by three tests.

The tests share the chance of a false alarm.  Surprise: log p(x) of a token sampled from a distribution p has the mean and variance that
p says; over all tokens the sum of the differences, divided by its standard deviation, is standard normal (a
martingale's central limit theorem).  Place, twice: P(tokens before x) + U p(x), with U uniform, is uniform on [0, 1),
whatever the order of the tokens (the randomised probability integral transform: Brockwell, 2007); it is looked at where
the distribution leaves a choice, with tokens ordered by their probability and by their number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeopt.profiler.bench.divergence import divergence
from treeopt.records.sampling import Sampling
from treeopt.runtime import distribution
from treeopt.runtime.models.model import LanguageModel, feed_text

BINS = 20
SURE = 0.95
"""Where a token is more probable than this, its distribution leaves no choice to speak of."""
LEAST_PROBABILITY = 1e-12
LEAST_DEVIATION = 1e-6
SIGNIFICANCE = 1e-4
"""A text of the right distribution fails with this probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losslessness:
    """What a test of texts came to."""

    lossless: bool
    evidence: str
    """In words."""


def greedy_losslessness(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
) -> Losslessness:
    """Compare texts with plain decoding's, as far as both go; near-ties of the top logits are no fault."""
    parted = []
    for number, (prompt, ours, theirs) in enumerate(zip(prompts, plain, texts, strict=True)):
        common = min(len(ours), len(theirs))
        found = divergence(target, number, prompt, ours[:common], theirs[:common])
        if found is not None:
            parted.append(found)
    faults = [each for each in parted if not each.near_tie]
    if faults:
        return Losslessness(lossless=False, evidence=f"{len(faults)} of {len(texts)} texts differ")
    ties = f", {len(parted)} at near-ties" if parted else ""
    return Losslessness(lossless=True, evidence=f"{len(texts)} texts are plain decoding's{ties}")


def sampled_losslessness(
    target: LanguageModel,
    prompts: Sequence[Sequence[int]],
    texts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    seed: int = 0,
) -> Losslessness:
    """Test whether every token of the texts was sampled from the target's distribution after the text before it."""
    generator = torch.Generator(target.device).manual_seed(seed)
    found = [
        _numbers(target, prompt, text, sampling, generator)
        for prompt, text in zip(prompts, texts, strict=True)
        if len(text) > 0
    ]
    surprise, variance, open_choice, *places = torch.cat(found, dim=1)
    chosen = open_choice > 0
    p_values = [normal_p_value(float(surprise.sum() / variance.sum().sqrt().clamp(min=LEAST_DEVIATION)))]
    p_values += [uniform_p_value(each[chosen]) for each in places if chosen.any()]
    p_value = min(1.0, len(p_values) * min(p_values))
    evidence = f"{len(surprise)} tokens, p = {p_value:.2g}"
    return Losslessness(lossless=p_value > SIGNIFICANCE, evidence=evidence)


def normal_p_value(statistic: float) -> float:
    """Return how probable a standard normal number is to lie as far from 0 or farther.

    >>> round(normal_p_value(1.959964), 4)
    0.05
    """
    return math.erfc(abs(statistic) / math.sqrt(2))


def uniform_p_value(places: Tensor) -> float:
    """Return how probable it is that n samples of the uniform distribution on [0, 1) are spread as unevenly or more.

    >>> uniform_p_value(torch.arange(1000, dtype=torch.float64) / 1000)
    1.0
    """
    counts = torch.histc(places, bins=BINS, min=0.0, max=1.0).double()
    expected = len(places) / BINS
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((BINS - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic.cpu() / 2))


@torch.inference_mode()
def _numbers(
    target: LanguageModel, prompt: Sequence[int], text: Sequence[int], sampling: Sampling, generator: torch.Generator
) -> Tensor:
    """Return float64 (5, tokens): surprise, its variance, whether there was a choice, place by probability and by number."""
    distributions = distribution(_logits_along(target, [*prompt, *text[:-1]])[-len(text) :], sampling).double()
    sampled = torch.tensor(text, device=target.device)[:, None]
    own = distributions.gather(1, sampled)
    noise = torch.rand(own.shape, dtype=torch.float64, device=target.device, generator=generator)
    likelier = torch.where(distributions > own, distributions, 0.0).sum(1, keepdim=True)
    before = distributions.cumsum(1).gather(1, sampled) - own
    log_distributions = distributions.clamp(min=LEAST_PROBABILITY).log()
    mean = (distributions * log_distributions).sum(1, keepdim=True)
    variance = (distributions * (log_distributions - mean) ** 2).sum(1, keepdim=True)
    open_choice = (distributions.amax(1, keepdim=True) < SURE).double()
    columns = [
        log_distributions.gather(1, sampled) - mean,
        variance,
        open_choice,
        (likelier + noise * own).clamp(0, 1),
        (before + noise * own).clamp(0, 1),
    ]
    return torch.cat(columns, dim=1).T


def _logits_along(target: LanguageModel, tokens: Sequence[int]) -> Tensor:
    """Return the target's logits (n, V) after every token of a text, by one causal pass."""
    (cache,) = target.new_caches(len(tokens), 1)
    return target.forward([feed_text(cache, torch.tensor(tokens, device=target.device))]).logits
