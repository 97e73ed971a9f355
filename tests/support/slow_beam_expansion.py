"""The expansion of an EAGLE-2 tree in plain Python, path by path: no cache, no masks, no arrays of nodes."""

import numpy as np
import torch


def cumulative(scores, path, log_prob):
    """Return the score of a path's child: float32, as the sum of its parent's score and its own log-probability."""
    return np.float32(scores[path] + log_prob)


def own(_scores, _path, log_prob):
    """Return what a tree must not be grown by: the child's own log-probability."""
    return log_prob


def slow_tree(children_after, tree, score=cumulative):
    """Return the tokens along every path of the tree, the root's empty path first, in level order.

    `children_after(path)` returns the log-probabilities, float32 and falling, of the top-k tokens after a path, and the
    tokens.
    """
    scores, pool, beams = {(): np.float32(0)}, [], [()]
    for _ in range(tree.depth):
        level = []
        for path in beams:
            for log_prob, token in zip(*children_after(path), strict=True):
                child = (*path, int(token))
                scores[child] = score(scores, path, np.float32(log_prob))
                level.append(child)
        pool += level
        beams = best(level, scores, tree.top_k)
    kept = best(pool, scores, tree.nodes - 1)
    order = [()]
    for path in order:
        order += [child for child in pool if child in kept and child[:-1] == path]
    return order


def best(paths, scores, count):
    """Return the paths of the highest scores; of equal ones the first."""
    left, chosen = list(paths), []
    while left and len(chosen) < count:
        chosen.append(max(left, key=lambda path: scores[path]))  # max returns the first of equals
        left.remove(chosen[-1])
    return chosen


def paths_of(tree, tokens):
    """Return the tokens along the path of every node of a drafted tree."""
    paths = [()]
    for node in range(1, tree.nodes):
        paths.append((*paths[tree.parents[node]], int(tokens[node])))
    return paths


def children_of(model, text, top_k, logits_after):
    """Return `children_after` of a model: every path by a pass over nothing but its own text."""

    def after(path):
        log_probs = logits_after(model, [*text, *path]).float().log_softmax(-1)
        tokens = sorted(range(len(log_probs)), key=lambda token: -float(log_probs[token]))[:top_k]
        return log_probs[torch.tensor(tokens)].numpy(), tokens

    return after
