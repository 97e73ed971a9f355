"""Trees, a prompt and small helpers that the tests of the decoder share."""

from dataclasses import replace

import numpy as np
import torch

from treeopt.runtime import Transformer
from treeopt.runtime.drafters.drafter import Step
from treeopt.runtime.models.model import HiddenStates
from treeopt.trees import TokenTree, chain, chains, k_ary, level_widths

PROMPT = [3, 14, 15, 9, 2, 6, 5]


def random_tree(seed, nodes=12):
    generator = np.random.default_rng(seed)
    return TokenTree.ordered([-1, *(int(generator.integers(node)) for node in range(1, nodes))])


TREES = {
    "root alone": chain(0),
    "chain of 1": chain(1),
    "chain of 4": chain(4),
    "two chains": chains(2, 3),
    "wide, then narrow": level_widths([3, 3, 2, 1]),
    "narrow, then wide": level_widths([1, 2, 6]),
    "binary": k_ary(2, 3),
    "random 1": random_tree(1),
    "random 2": random_tree(2),
    "random 3": random_tree(3),
}


def joined(steps):
    return [token for step in steps for token in step]


def with_end(model, *tokens):
    return Transformer(replace(model.config, end_tokens=tokens), model.weights, name=model.name)


def begun(drafter, tokens, last=None):
    """Begin text 0 of a drafter that is used without a decoder, given the target's last hidden state."""
    drafter.end(0)
    drafter.begin(0, tokens, None if last is None else HiddenStates((), last))


def proposed(drafter):
    return drafter.propose([0], [torch.Generator()])[0]


def walk(drafter, steps, seed=1):
    """Yield the tokens before each of some steps, and its proposal; random paths are accepted."""
    generator, text = np.random.default_rng(seed), list(PROMPT)
    begun(drafter, text)
    for _ in range(steps):
        proposal = proposed(drafter)
        tokens, nodes = proposal.tokens.tolist(), proposal.tree.nodes
        assert (proposal.tokens.dtype, tokens[0]) == (torch.int64, text[-1])
        assert nodes <= drafter.max_tokens
        yield list(text), proposal
        path = np.flatnonzero(proposal.tree.ancestor_mask[generator.integers(nodes)]).tolist()
        committed = [*(tokens[node] for node in path[1:]), int(generator.integers(23))]
        accepted(drafter, path, committed)
        text += committed


def accepted(drafter, path, tokens, logits=None, last=None):
    states = None if last is None else HiddenStates((), last)
    drafter.accept([0], [Step(tuple(path), tokens, torch.empty(0) if logits is None else logits, states)])


def decoded_step(decoder, proposal, output=None):
    """Verify, accept and commit a proposal; return the tokens of the step."""
    step = decoder.accept(proposal, decoder.verify(proposal) if output is None else output)
    decoder.commit(step)
    return step.tokens
