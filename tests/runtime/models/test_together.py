"""Work on several texts: functions of rows are called once for all, and passes wait until no text needs anything else."""

import torch

from treeopt.runtime.models.model import Output
from treeopt.runtime.models.together import PassCall, RowsCall, finish_together


def test_a_function_is_called_once_for_all_texts_and_passes_wait_for_it():
    log = []

    def double(rows, more):
        log.append(("double", len(rows)))
        return rows * 2, rows + more

    def halve(rows):
        log.append(("halve", len(rows)))
        return (rows / 2,)

    def run(tokens):
        log.append("pass")
        return Output(tokens + 0.5)

    def work(number, functions):
        output = yield PassCall(run, torch.full((number + 1,), float(number)))
        rows = output.logits
        for function in functions:
            twice = yield RowsCall(function, (rows, rows) if function is double else (rows,))
            rows = twice[-1]
        output = yield PassCall(run, rows)
        return output.logits.tolist()

    chosen = [[double], [halve, double], [], [double, halve]]
    found = finish_together([work(number, functions) for number, functions in enumerate(chosen)])
    assert found == [[1.5], [2.0] * 2, [3.0] * 3, [4.0] * 4]
    assert log == [*["pass"] * 4, ("double", 5), ("halve", 2), ("double", 2), ("halve", 4), *["pass"] * 4]
