"""The exact distribution of a step: every draft with its probability, and for each draft every outcome of the verifier.

What a step yields is completed by the target to max_depth + 1 tokens, so that it can be held against the target's joint
distribution of as many.
"""

from itertools import permutations, product

import numpy as np
import torch

from treeopt.runtime import Verifier
from treeopt.runtime.rules.layout import host_tree

CPU = torch.device("cpu")
BATCH = 256
"""Drafts that are tested at once."""


def one_after_the_other(distribution, count):
    """Return every order of tokens sampled without replacement, uniformly once nothing is left, with its probability."""
    found = []
    for order in permutations(range(len(distribution)), count):
        probability, untried = 1.0, list(range(len(distribution)))
        for token in order:
            left = sum(distribution[x] for x in untried)
            probability *= distribution[token] / left if left > 0 else 1 / len(untried)
            untried.remove(token)
        found.append((order, probability))
    return found


def independent(distribution, count):
    return [
        (sampled, float(np.prod([distribution[x] for x in sampled])))
        for sampled in product(range(len(distribution)), repeat=count)
    ]


def the_likeliest(distribution, count):
    return [(tuple(np.argsort(-np.asarray(distribution), kind="stable")[:count].tolist()), 1.0)]


ORDERS = {
    "sequoia": one_after_the_other,
    "specinfer": independent,
    "target": the_likeliest,
    "traversal": one_after_the_other,
    "typical": the_likeliest,
}
"""How the children of one node are sampled: orders(distribution, count) -> [(tokens, probability)]."""


def drafts(tree, pair, orders):
    """Return every draft of a tree, as the prefixes of its nodes, with its probability."""
    found = [(((),), 1.0)]
    for node in range(tree.nodes):
        if count := len(tree.children(node)):
            found = [
                ((*nodes, *((*nodes[node], token) for token in sampled)), weight * probability)
                for nodes, weight in found
                for sampled, probability in orders(pair.draft[pair.row[nodes[node]]].tolist(), count)
                if weight * probability > 0
            ]
    return found


def verified(rule, tree, pair, orders=None, *, on_host=True):
    """Yield every draft of a tree in batches: its nodes' prefixes and its probability, and a verifier that has tested them."""
    verifier = Verifier(rule, pair.vocabulary, CPU, on_host=on_host)
    draft, target = torch.from_numpy(pair.draft), torch.from_numpy(pair.target)
    every = drafts(tree, pair, orders or ORDERS[rule.name])
    for start in range(0, len(every), BATCH):
        batch = every[start : start + BATCH]
        rows = torch.tensor([pair.row[node] for nodes, _ in batch for node in nodes])
        tokens = torch.tensor([node[-1] if node else 0 for nodes, _ in batch for node in nodes])
        verifier.test([tree] * len(batch), tokens, draft[rows], target[rows])
        yield batch, verifier


def reach_of(verifier, tree):
    """Return float64 (B, n): how probable it is that the accepted path of each of B drafts holds each node."""
    acceptance = verifier._acceptance.view(-1, tree.nodes).tolist()
    return np.stack([verifier._rule.selection.reach(host_tree(tree), row) for row in acceptance])


def bonus_weights(verifier):
    """Return float64 (n, V): up to a factor, the distribution of the token after a path that ends at each node."""
    weights, parents = verifier._target.double().numpy().copy(), verifier._layout.internal[:, 0]
    weights[parents] = verifier._residual.numpy()[: len(parents)]
    return weights


def end_probabilities(verifier, tree):
    """Return float64 (B, n, V): how probable it is that the path of each draft ends at a node and a token follows."""
    reach, weights = reach_of(verifier, tree), bonus_weights(verifier)
    ends = reach.copy()
    for node in range(1, tree.nodes):
        ends[:, tree.parents[node]] -= reach[:, node]
    assert ends.min() > -1e-12
    sums = weights.sum(1, keepdims=True)
    return ends[..., None] * (weights / np.where(sums > 0, sums, 1.0)).reshape(*ends.shape, -1)


def step_distribution(rule, tree, pair, orders=None, *, on_host=True):
    """Return the joint distribution of the next max_depth + 1 tokens when a step comes first and the target samples the rest."""
    after = {}
    for batch, verifier in verified(rule, tree, pair, orders, on_host=on_host):
        for (nodes, weight), probabilities in zip(batch, end_probabilities(verifier, tree), strict=True):
            for node, distribution in zip(nodes, weight * probabilities, strict=True):
                after[node] = after.get(node, 0.0) + distribution
    joint = np.zeros((pair.vocabulary,) * (pair.depth + 1))
    for node, distribution in after.items():
        joint[node] += pair.completed(node, distribution)
    return joint


def error(rule, tree, pair, orders=None, *, on_host=True):
    """Return by how much the distribution of a step differs from the target's, at most."""
    return np.abs(step_distribution(rule, tree, pair, orders, on_host=on_host) - pair.target_distribution()).max()


def expected_reach(rule, tree, pair, *, on_host=True):
    """Return float64 (n,): how probable it is, over all drafts, that the accepted path holds a node."""
    return sum(
        np.array([weight for _, weight in batch]) @ reach_of(verifier, tree)
        for batch, verifier in verified(rule, tree, pair, on_host=on_host)
    )
