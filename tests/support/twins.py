"""Every rule once more: slow, in plain Python, from the papers' own recursions, sharing no code with treeopt.

Each returns float64 (n, V): how probable it is that the accepted path of one draft ends at a node and a token follows.
`tree` gives `nodes` and `children(node)`; tokens and distributions are lists.
"""

import math

import numpy as np


def _positive(values):
    return [max(value, 0.0) for value in values]


def _scaled(values):
    total = math.fsum(values)
    return [value / total for value in values] if total > 0 else list(values)


def sequoia(tree, tokens, draft, target):
    """Chen et al., 2024, Algorithm 2."""

    def after(distribution, tried):
        left = [0.0 if x in tried else p for x, p in enumerate(distribution)]
        if math.fsum(left) == 0:
            left = [float(x not in tried) for x in range(len(distribution))]
        return _scaled(left)

    return _children_in_turn(tree, tokens, draft, target, after)


def specinfer(tree, tokens, draft, target):
    """Miao et al., 2024, Algorithm 2."""
    return _children_in_turn(tree, tokens, draft, target, lambda distribution, _: distribution)


def _children_in_turn(tree, tokens, draft, target, draft_distribution_after):
    found = np.zeros(np.shape(target))

    def visit(node, weight):
        p, q, tried = list(target[node]), list(draft[node]), set()
        for child in tree.children(node):
            token = tokens[child]
            accepted = min(1.0, p[token] / q[token])
            visit(child, weight * accepted)
            weight *= 1.0 - accepted
            if weight == 0.0:
                return
            p = _scaled(_positive(a - b for a, b in zip(p, q, strict=True)))
            tried.add(token)
            if len(tried) < len(q):
                q = draft_distribution_after(q, tried)
        found[node] += weight * np.array(_scaled(p))

    visit(0, 1.0)
    return found


def target(tree, tokens, draft, target):  # noqa: ARG001
    """Sample a token from the target; where it is a child, sample from there again."""
    found = np.zeros(np.shape(target))

    def visit(node, weight):
        child_of = {tokens[child]: child for child in tree.children(node)}
        for token, probability in enumerate(target[node]):
            if token in child_of:
                visit(child_of[token], weight * probability)
            else:
                found[node, token] = weight * probability

    visit(0, 1.0)
    return found


def traversal(tree, tokens, draft, target):
    """Weng et al., 2025, Algorithm 3, in its recursive form."""
    found = np.zeros(np.shape(target))

    def visit(node, path, weight):
        """Test all below a node and the node; return what is left of the weight where nothing was accepted."""
        big, small = list(target[node]), list(draft[node])
        for child in tree.children(node):
            token = tokens[child]
            weight = visit(child, min(1.0, path * big[token] / small[token]), weight)
            rest = _positive(path * b - s for b, s in zip(big, small, strict=True))
            mass = math.fsum(rest)
            path = mass / (mass + (1.0 - path)) if mass + (1.0 - path) > 0 else 0.0
            big = _scaled(rest)
            small[token] = 0.0
            if math.fsum(small) == 0.0:
                tried = {tokens[sibling] for sibling in tree.children(node) if sibling <= child}
                small = [float(x not in tried) for x in range(len(small))]
            small = _scaled(small)
        found[node] += weight * path * np.array(big)
        return weight * (1.0 - path)

    visit(0, 1.0, 1.0)
    return found


def block(tree, tokens, draft, target):
    """Block verification of chains (Sun et al., 2024, Algorithm 2): the longest block whose own test succeeds."""
    length = tree.nodes - 1
    path, tests, distributions = 1.0, [], []
    for i in range(length + 1):
        if i:
            path = min(1.0, path * target[i - 1][tokens[i]] / draft[i - 1][tokens[i]])
        if i == length:
            tests.append(path)
            distributions.append(list(target[i]))
            break
        rest = _positive(path * b - s for b, s in zip(target[i], draft[i], strict=True))
        mass = math.fsum(rest)
        tests.append(mass / (mass + (1.0 - path)) if mass + (1.0 - path) > 0 else 0.0)
        distributions.append(_scaled(rest))
    tests[0] = 1.0  # the empty block is accepted where no other is
    found = np.zeros(np.shape(target))
    for i in range(length + 1):
        found[i] = tests[i] * math.prod(1.0 - test for test in tests[i + 1 :]) * np.array(distributions[i])
    return found


def typical(tree, tokens, draft, target):  # noqa: ARG001
    """Cai et al., 2024: the longest path of tokens likely enough, in a tie the likeliest."""
    paths = [(0, 1.0, 0)]  # depth, likelihood, node
    for depth, likelihood, node in paths:  # grows while it is read
        entropy = -math.fsum(p * math.log(p) for p in target[node] if p > 0)
        for child in tree.children(node):
            p = target[node][tokens[child]]
            if p > min(0.3, 0.09 * math.exp(-entropy)):
                paths.append((depth + 1, likelihood * p, child))
    last = max(paths, key=lambda path: path[:2])[2]
    found = np.zeros(np.shape(target))
    found[last] = target[last]
    return found


TWINS = {
    "sequoia": sequoia,
    "specinfer": specinfer,
    "target": target,
    "traversal": traversal,
    "typical": typical,
}
