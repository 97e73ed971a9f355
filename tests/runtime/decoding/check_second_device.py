"""Target and draft model on two devices, one of which is simulated: texts, acceptance, and what is moved in a step."""

import pytest
import torch

from tests.support.decoded import PROMPT
from tests.support.second_device import moved, moved_model, second_device
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter
from treeopt.trees import chain, level_widths
from treeopt.trees.drafter_parameters import DynamicTree

TREE = level_widths([2, 3, 1])
COUNT = 20


@pytest.fixture
def other():
    """Run a test with the second device, and return the function that moves a model there."""
    with second_device():
        yield moved_model


def drafters(draft):
    return {
        "static tree": (draft, TREE),
        "chain": (draft, chain(4)),
        "dynamic tree": (ExpandingDrafter(draft, DynamicTree(top_k=2, depth=3, nodes=6), capacity=128), None),
    }


@pytest.mark.parametrize("name", ["static tree", "chain", "dynamic tree"])
def test_greedy_texts_and_steps_are_those_of_one_device(target, draft, other, name):
    steps = [
        list(Decoder(target, *drafters(each)[name], temperature=0.0).stream(PROMPT, COUNT))
        for each in (draft, other(draft))
    ]
    assert steps[0] == steps[1]
    assert max(map(len, steps[0])) > 1


def test_a_batch(target, draft, other):
    prompts = [PROMPT, [1, 2], PROMPT[:3] * 3]
    texts = []
    for each in (draft, other(draft)):
        found = {number: [] for number in range(3)}
        for number, tokens in Decoder(target, each, TREE, temperature=0.0).generate_all(prompts, COUNT):
            found[number] += tokens
        texts.append(found)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "traversal", "target"])
def test_a_draft_like_the_target_is_always_accepted(target, other, rule):
    """So its probabilities come with its tokens: another distribution than they were sampled from would be rejected."""
    decoder = Decoder(target, other(target), chain(3), rule=rule, sampling=Sampling(0.8))
    lengths = [len(step.tokens) for step in decoder.decode_steps(PROMPT, COUNT)]
    assert set(lengths) == {4} or rule == "target"
    assert max(lengths) > 1


def test_what_is_moved_does_not_grow_with_the_tree(target, draft, other):
    counts = []
    for tree in (chain(2), level_widths([2, 2, 2])):
        decoder = Decoder(target, other(draft), tree, temperature=0.8)
        decoder.start(PROMPT)
        decoder.step()
        moved.clear()
        decoder.step()
        counts.append((moved["here"], moved["there"]))
    assert counts[0] == counts[1]
    assert max(counts[0]) <= 4


def test_an_operation_on_tensors_of_both_devices_is_found(target, draft, other):
    """The control: were something not moved, the simulated device would raise."""
    mixed = other(draft)
    mixed.weights = draft.weights
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        list(Decoder(target, mixed, TREE, temperature=0.0).generate(PROMPT, 4))
    assert torch.Generator().device.type == "cpu"
