"""SpecExec's expansion in plain Python, path by path: no cache, no masks, no arrays of nodes."""

from heapq import heappop, heappush
from itertools import product

import numpy as np

from tests.support.slow_beam_expansion import cumulative


def slow_tree(children_after, setting, score=cumulative):
    """Return the tokens along every path of the tree, the root's empty path first, in level order.

    `children_after(path)` returns the log-probabilities, float32 and falling, of the likeliest tokens after a path, and
    the tokens.
    """
    scores, pool, fed = {(): np.float32(0)}, [], []
    batch = [()]
    for _ in range(setting.longest_draft):
        for path in batch:
            fed.append(path)
            for log_prob, token in zip(*children_after(path), strict=True):
                child = (*path, int(token))
                scores[child] = score(scores, path, np.float32(log_prob))
                pool.append(child)
        best = sorted(pool, key=lambda path: -scores[path])[: setting.budget - 1]  # sorted() keeps the order of equals
        best = [path for path in best if scores[path] >= setting.least_log_prob]
        pool = [path for path in pool if path in best]
        full = len(best) == setting.budget - 1
        batch = [path for path in best if path not in fed and not (full and scores[path] <= scores[best[-1]])]
        batch = batch[: setting.batch]
        if not batch:
            break
    order = [()]
    for path in order:
        order += [child for child in pool if child[:-1] == path]
    return order


def enumerated(children_after, count, depth, branching):
    """Return the scores of the `count` best of all paths down to a depth, falling, by looking at every one."""
    found = []
    for level in range(1, depth + 1):
        for ranks in product(range(branching), repeat=level):
            path, score = (), np.float32(0)
            for rank in ranks:
                log_probs, tokens = children_after(path)
                path, score = (*path, int(tokens[rank])), np.float32(score + log_probs[rank])
            found.append((path, score))
    return sorted(found, key=lambda each: -each[1])[:count]


def best_paths(children_after, count, score=cumulative):
    """Return the `count` best of all paths, one at a time from a heap, falling."""
    scores, heap, found = {(): np.float32(0)}, [], []

    def push_children(path):
        for log_prob, token in zip(*children_after(path), strict=True):
            child = (*path, int(token))
            scores[child] = score(scores, path, np.float32(log_prob))
            heappush(heap, (-scores[child], len(scores), child))

    push_children(())
    while len(found) < count:
        path = heappop(heap)[2]
        found.append((path, scores[path]))
        push_children(path)
    return found
