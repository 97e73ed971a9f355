"""Hidden states of built-in models and of transformers' own: those that transformers tells, and no others."""

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
NODES = [7, 1, 4, 9, 2, 20]
LAYERS = 2
ALL = RequestedStates(layer_ids=(1, 0), last=True)


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
def told(reference, text):
    """Return the states (n, hidden) of a text that transformers tells: before every layer, and after the final norm."""
    return [each[0] for each in reference(torch.tensor([text]), output_hidden_states=True).hidden_states]


def tree_pass(model, cache, requested_states):
    return feed_tree(model, cache, torch.tensor(NODES), TREE, requested_states)


def assert_told(states, expected, row=slice(None), requested_states=ALL):
    for found, layer_id in zip(states.layers, requested_states.layer_ids, strict=True):
        torch.testing.assert_close(found, expected[layer_id][row], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states.last, expected[-1][row], rtol=1e-4, atol=1e-4)


def test_every_node_of_a_tree(model, reference):
    cache = new_cache(model, 32)
    model.prefill(torch.tensor(PROMPT), cache)
    output = tree_pass(model, cache, ALL)
    for node in range(TREE.nodes):
        path = [NODES[above] for above in np.flatnonzero(TREE.ancestor_mask[node])]
        assert_told(output.states.row(node), told(reference, [*PROMPT, *path]), slice(-1, None))


def test_the_prompt(model, reference):
    expected, tokens = told(reference, PROMPT), torch.tensor(PROMPT)
    assert_told(model.prefill(tokens, new_cache(model, 32), ALL), expected, slice(-1, None))
    assert_told(model.prefill(tokens, new_cache(model, 32), ALL._replace(all_tokens=True)), expected)


def test_a_batch_of_whole_texts(target, reference):
    texts = torch.tensor([PROMPT, PROMPT[::-1]])
    states = target.compute_states(texts, ALL)
    for row, text in enumerate(texts.tolist()):
        expected = told(reference, text)
        torch.testing.assert_close(states.layers[0][row], expected[1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states.last[row], expected[-1], rtol=1e-4, atol=1e-4)


def test_a_prompt_in_parts(reference, monkeypatch):
    monkeypatch.setattr("treeopt.runtime.models.model.PREFILL_TOKENS", 3)
    model = AdapterModel(reference, name="hf")
    for requested_states in (ALL, ALL._replace(all_tokens=True)):
        found = model.prefill(torch.tensor(PROMPT), new_cache(model, 32), requested_states)
        assert_told(found, told(reference, PROMPT), slice(None) if requested_states.all_tokens else slice(-1, None))


def test_a_pass_that_is_replayed(target, reference):
    cache = new_cache(target, 32)
    runner = Runner(target, max_nodes=6, requested_states=ALL, pool=GraphPool(torch.device("cpu")))
    target.prefill(torch.tensor(PROMPT), cache)
    for _ in range(3):
        states = runner.forward([SequenceInput(cache, torch.tensor(NODES), PassNodes.whole(TREE))])[0].states
    assert runner.captured
    path = [NODES[above] for above in np.flatnonzero(TREE.ancestor_mask[4])]
    assert_told(states.row(4), told(reference, [*PROMPT, *path]), slice(-1, None))


def test_the_stream_after_all_layers_has_no_norm(target):
    cache = new_cache(target, 32)
    states = target.prefill(torch.tensor(PROMPT), cache, RequestedStates(layer_ids=(LAYERS,), last=True))
    normed = torch.nn.functional.rms_norm(states.layers[0], (32,), target.weights.norm, target.config.norm_epsilon)
    torch.testing.assert_close(normed, states.last)
    assert (states.layers[0] - states.last).abs().max() > 0.1


def test_no_more_than_is_wanted(model):
    cache = new_cache(model, 32)
    assert model.prefill(torch.tensor(PROMPT), cache) is None
    assert tree_pass(model, cache, NO_STATES).states is None
    one = tree_pass(model, cache, RequestedStates(layer_ids=(1,))).states
    assert (len(one.layers), one.last) == (1, None)
    assert model.prefill(torch.tensor([], dtype=torch.int64), new_cache(model, 8), ALL) is None


@pytest.mark.parametrize("layer_id", [-1, 3])
def test_a_layer_id_beyond_the_layers(model, layer_id):
    with pytest.raises(InvalidValueError, match=r"expected hidden-state layer ids from 0 to \d, its layers. Got"):
        model.prefill(torch.tensor(PROMPT), new_cache(model, 32), RequestedStates(layer_ids=(layer_id,)))


def test_the_norm_that_is_left_out_is_found(target, reference, monkeypatch):
    monkeypatch.setattr(target, "_norm", lambda states: states)
    states = target.prefill(torch.tensor(PROMPT), new_cache(target, 32), RequestedStates(last=True))
    assert (states.last - told(reference, PROMPT)[-1][-1:]).abs().max() > 0.1
