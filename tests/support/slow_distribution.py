"""What a sampling makes of logits, token by token in plain Python."""

import math


def slow_distribution(logits, sampling):
    """Return the distribution as a list: the temperature first, then top-k, of what is left top-p."""
    scores = [float(x) / sampling.temperature for x in logits]
    least = sorted(scores, reverse=True)[sampling.top_k - 1] if 0 < sampling.top_k <= len(scores) else -math.inf
    weights = [math.exp(x - max(scores)) if x >= least else 0.0 for x in scores]
    mass = math.fsum(weights)
    distribution = [x / mass for x in weights]
    kept, total = set(), 0.0
    for token in sorted(range(len(distribution)), key=lambda x: (-distribution[x], x)):
        if total >= sampling.top_p or distribution[token] == 0:
            break
        kept.add(token)
        total += distribution[token]
    return [distribution[x] / total if x in kept else 0.0 for x in range(len(distribution))]
