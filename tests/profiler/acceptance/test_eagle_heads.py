"""Acceptance of an EAGLE head by depth and rank, against a slow implementation and decoding."""

import numpy as np
import pytest
import torch

from tests.support.eagle_heads import eagle1, make_head, save_head, speculators
from tests.support.head_acceptance import eagle_counts, generated, head_acceptance
from tests.support.slow_eagle import SlowEagle
from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance.heads import eagle_children
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.eagle import load_eagle
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.trees import level_widths

SOME = (1, 2, 5, 6, 9, 11, 14, 15, 20, 22)
CASES = {
    "some tokens": (speculators, {"layer_ids": (0, 1), "ids": SOME, "norm_before_residual": True}),
    "two layers": (speculators, {"layer_ids": (1,), "layers": 2, "norm_output": True}),
    "last state": (eagle1, {"layer_ids": (), "eagle1": True}),
}


@pytest.fixture
def heads(target, tmp_path):
    """Return a function that makes a head and its slow implementation."""

    def make(name):
        layout, options = CASES[name]
        made = make_head(target, seed=2, scale=0.2, embedding=True, **options)
        output = target.logits(torch.eye(target.config.hidden)).T.double().numpy() if layout is eagle1 else None
        return load_eagle(save_head(layout, tmp_path, made, target), target), SlowEagle(made, None, output)

    return make


def generate(target, head, prompt, positions, sampling=GREEDY):
    return generated(target, prompt, positions, sampling, 1, head.requested_states)


class TestChildren:
    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("prompt", [[3], [3, 14], [3, 14, 15, 9]])
    def test_children_below_every_root_are_those_of_the_slow_head(self, target, heads, case, prompt):
        head, twin = heads(case)
        sequence = generate(target, head, prompt, 7, Sampling(1.0))
        children = eagle_children(head, sequence, 3, 4)
        tokens = [*sequence.before.tolist(), *sequence.tokens.tolist()]
        states = [*sequence.states.layers, *([] if sequence.states.last is None else [sequence.states.last])]
        for place in range(len(sequence.tokens)):
            root = len(sequence.before) + place
            read = [[state[row].double().numpy() for state in states] for row in range(root - 1)]
            for depth in range(min(4, len(sequence.tokens) - place)):
                logits = twin.logits_after(read, tokens[:root], tokens[root : root + depth])
                assert children[place, depth].tolist() == np.argsort(-logits)[:3].tolist()

    def test_branching_is_at_most_the_tokens_of_the_head(self, target, heads):
        head, _ = heads("some tokens")
        sequence = generate(target, head, [1, 2, 3], 10)
        assert eagle_counts(head, sequence, 99, 20).accepted.shape == (20, 10)

    def test_sequence_that_ends_at_once_counts_nothing(self, make_model, heads):
        head, _ = heads("some tokens")
        model = make_model(seed=1)
        end = int(generate(model, head, [3], 1).before[-1])
        sequence = generate(make_model(seed=1, end_tokens=(end,)), head, [3], 9)
        assert eagle_counts(head, sequence, 3, 2).reached.tolist() == [0, 0]


class TestTable:
    def test_table_predicts_the_tokens_of_decoding(self, target, heads, prompts):
        head, _ = heads("two layers")
        acceptance = head_acceptance(
            target, head, prompts, sampling=Sampling(1.0), positions=len(prompts) * 40, depth=3
        )
        tree = level_widths([3, 6, 6])
        drafter = StaticTreeDrafter(head, tree, capacity=128)
        decoder = Decoder(target, drafter, temperature=1.0, seed=5)
        lengths = [len(step) for prompt in prompts for step in decoder.stream(prompt, 40)]
        error = np.std(lengths) / np.sqrt(len(lengths))
        assert abs(np.mean(lengths) - acceptance.table.expected_tokens(tree)) < 4 * error

    def test_head_that_is_not_finite_is_named(self, target, heads, prompts):
        head, _ = heads("some tokens")
        head.embedding.fill_(torch.nan)
        with pytest.raises(TreeoptError, match="EAGLE head"):
            head_acceptance(target, head, prompts, sampling=GREEDY, positions=60)
