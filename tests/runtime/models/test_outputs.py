"""Outputs of passes over several sequences: rows of each, last rows, and passes over several stores."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from treeopt.runtime.models.model import HiddenStates, Output, Outputs, SequenceInput, concatenate_outputs
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.padded_batch import last_outputs, run_by_store


def random_outputs(sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits, last = (torch.rand(sum(sizes), width, generator=generator) for width in (4, 2))
    return Outputs(Output(logits, HiddenStates((logits + 1, logits + 2), last)), sizes)


@pytest.mark.parametrize("sizes", [[1], [4], [1, 1, 1], [1, 3, 2]])
def test_rows_and_last_row_of_each_sequence(sizes):
    outputs, edges = random_outputs(sizes), np.cumsum([0, *sizes])
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


def test_concatenated_outputs():
    parts = [random_outputs([1, 3]), random_outputs([2], seed=1)]
    outputs = concatenate_outputs(parts)
    assert outputs.sizes == [1, 3, 2]
    for output, expected in zip(outputs, [*parts[0], *parts[1]], strict=True):
        assert output.logits.equal(expected.logits)
        assert output.states.last.equal(expected.states.last)


@pytest.mark.parametrize("stores", ["aaa", "abab", "bbaac"])
def test_sequences_of_one_store_share_a_pass_and_keep_their_order(stores):
    inputs = [
        SequenceInput(SimpleNamespace(store=store), torch.tensor([number]), PassNodes.chain(1))
        for number, store in enumerate(stores)
    ]
    passes = []

    def run(inputs):
        passes.append("".join(sequence.cache.store for sequence in inputs))
        return Outputs(Output(torch.cat([sequence.tokens[:, None] for sequence in inputs])), [1] * len(inputs))

    outputs = run_by_store(inputs, run)
    assert outputs.logits.flatten().tolist() == list(range(len(stores)))
    assert sorted(passes) == sorted(store * stores.count(store) for store in {*stores})
