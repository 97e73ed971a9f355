"""What a pass over several sequences returns: the logits of all of them, of each, and those of last tokens."""

import numpy as np
import pytest
import torch

from treeopt.runtime.models.model import HiddenStates, Output, Outputs, SequenceInput, concatenate_outputs
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.padded_batch import last_outputs, run_by_memory


def outputs_of(sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits, last = (torch.rand(sum(sizes), width, generator=generator) for width in (4, 2))
    return Outputs(Output(logits, HiddenStates((logits + 1, logits + 2), last)), sizes)


@pytest.mark.parametrize("sizes", [[1], [4], [1, 1, 1], [1, 3, 2], [2, 2]])
def test_each_sequence_has_its_rows_and_its_last_row(sizes):
    outputs, edges = outputs_of(sizes), np.cumsum([0, *sizes])
    last = last_outputs(outputs)
    assert len(outputs) == len(last) == len(sizes)
    assert last.sizes == [1] * len(sizes)
    for number, output in enumerate(outputs):
        rows = slice(edges[number], edges[number + 1])
        assert output.logits.equal(outputs.logits[rows])
        assert output.states.last.equal(outputs.whole.states.last[rows])
        assert output.states.layers[1].equal(outputs.logits[rows] + 2)
        assert last[number].logits.equal(output.logits[-1:])
        assert last[number].states.last.equal(output.states.last[-1:])


def test_passes_over_other_sequences_become_one():
    parts = [outputs_of([1, 3]), outputs_of([2], seed=1)]
    outputs = concatenate_outputs(parts)
    assert outputs.sizes == [1, 3, 2]
    for one, other in zip(outputs, [*parts[0], *parts[1]], strict=True):
        assert one.logits.equal(other.logits)
        assert one.states.last.equal(other.states.last)


@pytest.mark.parametrize("memories", ["aaa", "abab", "abc", "bbaac"])
def test_sequences_in_one_memory_share_a_pass_and_come_back_in_order(memories):
    inputs = [
        SequenceInput(memory, torch.tensor([number]), PassNodes.chain(1)) for number, memory in enumerate(memories)
    ]
    passes = []

    def run(inputs):
        passes.append([sequence.cache for sequence in inputs])
        return Outputs(Output(torch.cat([sequence.tokens[:, None] for sequence in inputs])), [1] * len(inputs))

    outputs = run_by_memory(inputs, lambda sequence: sequence.cache, run)
    assert outputs.logits.flatten().tolist() == list(range(len(memories)))
    assert sorted(map(tuple, passes)) == sorted(tuple(memory * memories.count(memory)) for memory in {*memories})
