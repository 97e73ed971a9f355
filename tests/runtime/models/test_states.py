"""Hidden states of built-in models and adapters equal those of transformers; only requested ones are returned."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.support.decoded import PROMPT
from tests.support.passes import feed_tree, new_cache
from treeopt.errors import InvalidValueError
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.runtime.models.model import NO_STATES, RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.trees import level_widths

TREE = level_widths([2, 3])
NODES = torch.tensor([7, 1, 4, 9, 2, 20])
ALL = RequestedStates(layer_ids=(1, 0), last=True)
LAST_ROW = slice(-1, None)


@pytest.fixture(scope="module")
def reference(target_folder):
    return AutoModelForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=["built in", "limited", "transformers"])
def model(request, target, reference):
    models = {
        "built in": target,
        "limited": limit_draft(target, range(20), 23),
        "transformers": AdapterModel(reference, name="hf"),
    }
    return models[request.param]


@torch.inference_mode()
def reference_states(reference, tokens):
    """Return states (n, hidden): before every layer, and after the final norm."""
    output = reference(torch.tensor([tokens]), output_hidden_states=True)
    return [states[0] for states in output.hidden_states]


def assert_states(states, expected, row=slice(None)):
    for layer, layer_id in zip(states.layers, ALL.layer_ids, strict=True):
        torch.testing.assert_close(layer, expected[layer_id][row], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states.last, expected[-1][row], rtol=1e-4, atol=1e-4)


def check_nodes(states, reference):
    """Compare the states of a tree's nodes after the prompt with those of each path."""
    for node in range(TREE.nodes):
        path = NODES[np.flatnonzero(TREE.ancestor_mask[node])].tolist()
        assert_states(states.row(node), reference_states(reference, [*PROMPT, *path]), LAST_ROW)


def test_nodes_of_a_tree(model, reference):
    cache = new_cache(model, 32)
    model.prefill(torch.tensor(PROMPT), cache)
    check_nodes(feed_tree(model, cache, NODES, TREE, ALL).states, reference)


def test_replayed_pass(target, reference):
    cache = new_cache(target, 32)
    runner = Runner(target, max_nodes=6, requested_states=ALL, pool=GraphPool(torch.device("cpu")))
    target.prefill(torch.tensor(PROMPT), cache)
    for _ in range(2):
        states = runner.forward([SequenceInput(cache, NODES, PassNodes.whole(TREE))])[0].states
    assert runner.captured
    check_nodes(states, reference)


@pytest.mark.parametrize("chunk", [3, 2048])
def test_prompt(model, reference, monkeypatch, chunk):
    monkeypatch.setattr("treeopt.runtime.models.model.PREFILL_TOKENS", chunk)
    expected, tokens = reference_states(reference, PROMPT), torch.tensor(PROMPT)
    assert_states(model.prefill(tokens, new_cache(model, 32), ALL), expected, LAST_ROW)
    assert_states(model.prefill(tokens, new_cache(model, 32), ALL._replace(all_tokens=True)), expected)


def test_batch_of_sequences_without_a_cache(target, reference):
    sequences = torch.tensor([PROMPT, PROMPT[::-1]])
    states = target.compute_states(sequences, ALL)
    for row, tokens in enumerate(sequences.tolist()):
        assert_states(states.map(lambda values, row=row: values[row]), reference_states(reference, tokens))


def test_states_after_all_layers_have_no_norm(target):
    requested_states = RequestedStates(layer_ids=(target.config.layers,), last=True)
    states = target.prefill(torch.tensor(PROMPT), new_cache(target, 32), requested_states)
    normed = torch.nn.functional.rms_norm(states.layers[0], (32,), target.weights.norm, target.config.norm_epsilon)
    torch.testing.assert_close(normed, states.last)
    assert (states.layers[0] - states.last).abs().max() > 0.1


def test_only_requested_states_are_returned(model):
    cache = new_cache(model, 32)
    assert model.prefill(torch.tensor(PROMPT), cache) is None
    assert feed_tree(model, cache, NODES, TREE, NO_STATES).states is None
    states = feed_tree(model, cache, NODES, TREE, RequestedStates(layer_ids=(1,))).states
    assert (len(states.layers), states.last) == (1, None)
    assert model.prefill(torch.tensor([], dtype=torch.int64), new_cache(model, 8), ALL) is None


@pytest.mark.parametrize("layer_id", [-1, 3])
def test_missing_layer_is_refused(model, layer_id):
    with pytest.raises(InvalidValueError, match=r"expected hidden-state layer ids from 0 to \d, its layers. Got"):
        model.prefill(torch.tensor(PROMPT), new_cache(model, 32), RequestedStates(layer_ids=(layer_id,)))
