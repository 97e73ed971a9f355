"""Work on several texts: passes that they need at the same time are asked for together."""

import torch

from treeopt.runtime.models.model import Output, RaggedOutputs, States
from treeopt.runtime.models.together import PassCall, finish_together, joined_logits


def test_a_text_waits_for_the_passes_of_the_others_and_each_is_sent_what_its_own_gives():
    log = []

    def run(tokens):
        log.append(tokens.tolist())
        return Output(tokens + 0.5)

    def work(number, passes):
        rows = torch.full((number + 1,), float(number))
        for _ in range(passes):
            output = yield PassCall(run, rows)
            rows = output.logits
        return rows.tolist()

    found = finish_together([work(number, passes) for number, passes in enumerate([1, 3, 0, 2])])
    assert found == [[0.5], [2.5] * 2, [2.0] * 3, [4.0] * 4]
    assert log == [[0.0], [1.0] * 2, [3.0] * 4, [1.5] * 2, [3.5] * 4, [2.0] * 2]
    assert finish_together([]) == []


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
