"""What passes over several texts give: the logits of all of them, and those after the last token of each."""

import pytest
import torch

from treeopt.runtime.models.model import Output, RaggedOutputs, States
from treeopt.runtime.models.together import joined_logits, last_logits


def test_the_logits_of_one_pass_are_joined_as_they_are_and_those_of_several_one_after_the_other():
    logits, last = torch.rand(6, 4), torch.rand(6, 2)
    for states in (None, States((logits + 1, logits + 2), last)):
        together = RaggedOutputs(Output(logits, states), [1, 3, 2])
        assert joined_logits(together) is logits
        in_turn = [Output(logits[:1]), Output(logits[1:4]), Output(logits[4:])]
        assert joined_logits(in_turn).equal(logits)
        for number, (one, other) in enumerate(zip(together, in_turn, strict=True)):
            assert one.logits.equal(other.logits)
            rows = slice((0, 1, 4)[number], (1, 4, 6)[number])
            assert one.states is None if states is None else one.states.last.equal(last[rows])
            assert states is None or one.states.boundaries[1].equal(logits[rows] + 2)


@pytest.mark.parametrize("sizes", [[1], [4], [1, 1, 1], [1, 3, 2], [2, 2]])
def test_the_logits_after_the_last_token_of_each_output(sizes):
    logits = torch.rand(sum(sizes), 4)
    together = RaggedOutputs(Output(logits), sizes)
    for outputs in (together, list(together)):
        found = last_logits(outputs)
        assert found.shape == (len(sizes), 4)
        for text, size in enumerate(sizes):
            assert found[text].tolist() == logits[sum(sizes[:text]) + size - 1].tolist()
