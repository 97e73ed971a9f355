"""The exact distribution of a step: every draft with its probability, and for each draft every outcome of the verifier.

What a step yields is completed by the target to max_depth + 1 tokens, so that it can be held against the target's joint
distribution of as many.
"""

from itertools import permutations, product

import numpy as np
import torch

from treeopt.runtime import Verifier

CPU = torch.device("cpu")


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


def drafts(tree, text, orders):
    """Return every draft of a tree, as the texts that its nodes stand for, with its probability."""
    found = [(((),), 1.0)]
    for node in range(tree.nodes):
        if count := len(tree.children(node)):
            found = [
                ((*nodes, *((*nodes[node], token) for token in sampled)), weight * probability)
                for nodes, weight in found
                for sampled, probability in orders(text.draft[text.row[nodes[node]]].tolist(), count)
                if weight * probability > 0
            ]
    return found


def verified(rule, tree, text, orders=None, *, on_host=True):
    """Yield, for every draft, its nodes' texts, its probability, and a verifier that has tested it."""
    verifier = Verifier(rule, text.vocabulary, CPU, on_host=on_host)
    draft, target = torch.from_numpy(text.draft), torch.from_numpy(text.target)
    for nodes, weight in drafts(tree, text, orders or ORDERS[rule.name]):
        rows = torch.tensor([text.row[node] for node in nodes])
        tokens = torch.tensor([0, *(node[-1] for node in nodes[1:])])
        verifier.test([tree], tokens, draft[rows], target[rows])
        yield nodes, weight, verifier


def end_probabilities(verifier, tree):
    """Return float64 (n, V): how probable it is that the path ends at a node and a token follows."""
    ends = verifier.reach().copy()
    np.subtract.at(ends, tree.parents[1:], ends[1:].copy())
    assert ends.min() > -1e-12
    distributions = np.stack([verifier.distribution_after(node).double().numpy() for node in range(tree.nodes)])
    return ends[:, None] * distributions / np.where(distributions.sum(1) > 0, distributions.sum(1), 1.0)[:, None]


def step_distribution(rule, tree, text, orders=None, *, on_host=True):
    """Return the joint distribution of the next max_depth + 1 tokens when a step comes first and the target samples the rest."""
    after = {}
    for nodes, weight, verifier in verified(rule, tree, text, orders, on_host=on_host):
        for node, distribution in zip(nodes, weight * end_probabilities(verifier, tree), strict=True):
            after[node] = after.get(node, 0.0) + distribution
    joint = np.zeros((text.vocabulary,) * (text.depth + 1))
    for node, distribution in after.items():
        joint[node] += text.completed(node, distribution)
    return joint


def error(rule, tree, text, orders=None, *, on_host=True):
    """Return by how much the distribution of a step differs from the target's, at most."""
    return np.abs(step_distribution(rule, tree, text, orders, on_host=on_host) - text.target_distribution()).max()


def expected_reach(rule, tree, text, *, on_host=True):
    """Return float64 (n,): how probable it is, over all drafts, that the accepted path holds a node."""
    return sum(weight * verifier.reach() for _, weight, verifier in verified(rule, tree, text, on_host=on_host))
