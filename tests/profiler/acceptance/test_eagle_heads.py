"""Acceptance of an EAGLE head by depth and rank: what it says along a text is what it says there in a step."""

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
from treeopt.runtime.drafters.eagle import EagleDrafter, load_eagle
from treeopt.trees import level_widths

SOME = (1, 2, 5, 6, 9, 11, 14, 15, 20, 22)
CASES = {
    "some tokens": (speculators, {"layer_ids": (0, 1), "ids": SOME, "norm_before_residual": True}),
    "two layers": (speculators, {"layer_ids": (1,), "layers": 2, "norm_output": True}),
    "last state": (eagle1, {"layer_ids": (), "eagle1": True}),
}


@pytest.fixture
def heads(target, tmp_path):
    """Return a function that makes a head and its slow twin."""

    def make(name):
        layout, options = CASES[name]
        made = make_head(target, seed=2, scale=0.2, embedding=True, **options)
        output = target.logits(torch.eye(target.config.hidden)).T.double().numpy() if layout is eagle1 else None
        return load_eagle(save_head(layout, tmp_path, made, target), target), SlowEagle(made, None, output)

    return make


def new_text(target, head, prompt, positions, sampling=GREEDY):
    return generated(target, prompt, positions, sampling, 1, head.requested_states)


class TestChildren:
    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("prompt", [[3], [3, 14], [3, 14, 15, 9]])
    def test_below_every_root_they_are_those_of_the_slow_twin(self, target, heads, case, prompt):
        head, twin = heads(case)
        text = new_text(target, head, prompt, 7, Sampling(1.0))
        children = eagle_children(head, text, 3, 4)
        tokens = [*text.before.tolist(), *text.tokens.tolist()]
        states = [*text.states.layers, *([] if text.states.last is None else [text.states.last])]
        for place in range(len(text.tokens)):
            root = len(text.before) + place
            read = [[each[row].double().numpy() for each in states] for row in range(root - 1)]
            for depth in range(min(4, len(text.tokens) - place)):
                logits = twin.logits_after(read, tokens[:root], tokens[root : root + depth])
                assert children[place, depth].tolist() == np.argsort(-logits)[:3].tolist()

    def test_it_is_never_asked_for_more_tokens_than_it_knows(self, target, heads):
        head, _ = heads("some tokens")
        text = new_text(target, head, [1, 2, 3], 10)
        assert eagle_counts(head, text, 99, 20).accepted.shape == (20, 10)

    def test_a_text_that_ends_at_once_counts_nothing(self, make_model, heads):
        head, _ = heads("some tokens")
        model = make_model(seed=1)
        end = int(new_text(model, head, [3], 1).before[-1])
        text = new_text(make_model(seed=1, end_tokens=(end,)), head, [3], 9)
        assert eagle_counts(head, text, 3, 2).reached.tolist() == [0, 0]


class TestTable:
    def test_decoding_yields_the_tokens_that_it_expects(self, target, heads, prompts):
        head, _ = heads("two layers")
        found = head_acceptance(target, head, prompts, sampling=Sampling(1.0), positions=len(prompts) * 40, depth=3)
        tree = level_widths([3, 6, 6])
        drafter = EagleDrafter(head, tree, capacity=128)
        decoder = Decoder(target, drafter, temperature=1.0, seed=5)
        lengths = [len(step) for prompt in prompts for step in decoder.stream(prompt, 40)]
        error = np.std(lengths) / np.sqrt(len(lengths))
        assert abs(np.mean(lengths) - found.table.expected_tokens(tree)) < 4 * error

    def test_a_head_that_is_not_finite_is_named(self, target, heads, prompts):
        head, _ = heads("some tokens")
        head.embedding.fill_(torch.nan)
        with pytest.raises(TreeoptError, match="EAGLE head"):
            head_acceptance(target, head, prompts, sampling=GREEDY, positions=60)
