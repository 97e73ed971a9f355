"""Target and draft model on two devices, one of which is simulated: tokens, acceptance and transfers of a step.

Every test runs in a fork, because torch cannot unregister a simulated device.
"""

import pytest

from tests.support.decoded import PROMPT, joined
from tests.support.forked import in_fork
from tests.support.second_device import moved, moved_model, second_device
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter
from treeopt.trees import chain, level_widths
from treeopt.trees.drafter_parameters import DynamicTree

TREE = level_widths([2, 3, 1])
pytestmark = pytest.mark.slow


def drafter_arguments(name, draft):
    if name == "static tree":
        return draft, TREE
    return (ExpandingDrafter(draft, DynamicTree(top_k=2, depth=3, nodes=6), capacity=128),)


@pytest.mark.parametrize("name", ["static tree", "dynamic tree"])
@in_fork
@second_device()
def test_greedy_steps_are_those_of_one_device_alone_and_in_a_batch(target, draft, name):
    prompts, outputs = [PROMPT, [1, 2], PROMPT[:3] * 3], []
    for model in (draft, moved_model(draft)):
        decoder = Decoder(target, *drafter_arguments(name, model), temperature=0.0)
        steps = list(decoder.stream(PROMPT, 20))
        batch = {number: [] for number in range(3)}
        for number, tokens in decoder.generate_all(prompts, 20):
            batch[number] += tokens
        assert batch[0] == joined(steps)
        outputs.append((steps, batch))
    assert outputs[0] == outputs[1]
    assert max(map(len, outputs[0][0])) > 1


@pytest.mark.parametrize("rule", ["sequoia", "target"])
@in_fork
@second_device()
def test_the_target_as_draft_is_always_accepted(target, rule):
    """Probabilities other than those that the tokens were sampled from would be rejected."""
    decoder = Decoder(target, moved_model(target), chain(3), rule=rule, sampling=Sampling(0.8))
    lengths = [len(step.tokens) for step in decoder.decode_steps(PROMPT, 20)]
    assert set(lengths) == {4} or rule == "target"
    assert max(lengths) > 1


@in_fork
@second_device()
def test_the_number_of_transfers_does_not_grow_with_the_tree(target, draft):
    counts = []
    for tree in (chain(2), level_widths([2, 2, 2])):
        decoder = Decoder(target, moved_model(draft), tree, temperature=0.8)
        decoder.start(PROMPT)
        decoder.step()
        moved.clear()
        decoder.step()
        counts.append((moved["here"], moved["there"]))
    assert counts[0] == counts[1]
    assert max(counts[0]) <= 4


@in_fork
@second_device()
def test_an_operation_on_tensors_of_both_devices_is_found(target, draft):
    mixed = moved_model(draft)
    mixed.weights = draft.weights
    with pytest.raises(RuntimeError, match="expected all tensors on one device"):
        list(Decoder(target, mixed, TREE, temperature=0.0).generate(PROMPT, 4))
