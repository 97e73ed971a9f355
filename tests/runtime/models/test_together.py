"""Work on several texts: passes that they need at the same time are asked for together."""

import torch

from treeopt.runtime.models.model import Output
from treeopt.runtime.models.together import PassCall, finish_together


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
