"""Replayed passes of transformers' models equal passes that run operation by operation: see `tests.support.recorded`."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from tests.support import recorded
from tests.support.hf_models import ARCHITECTURES, VOCABULARY, random_model
from tests.support.passes import LENGTHS, UNEQUAL
from treeopt.errors import TreeoptWarning
from treeopt.runtime import Decoder
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.runtime.models.model import RequestedStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.trees import level_widths

CLOSE = {"rtol": 1e-3, "atol": 1e-3}
REQUESTED_STATES = RequestedStates(layer_ids=(0, 1), last=True)
PROMPTS = [[5, 3, 40], [1], [8, 8, 2, 60, 11, 4, 4]]


def random_tokens(count, seed):
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def prefilled(model, caches, seed):
    """Return trees after a prefill, with large numbers in the slots that no token may read."""
    inputs = []
    for number, (cache, length, tree) in enumerate(zip(caches, LENGTHS, UNEQUAL, strict=True)):
        cache.clear()
        model.prefill(random_tokens(length + 1, seed + number), cache)
        for entries in cache.store.entries:
            entries[cache.index, :, cache.length :] = 50.0
        inputs.append(SequenceInput(cache, random_tokens(tree.nodes, seed + number), PassNodes.whole(tree)))
    return inputs


def graph_runner(model):
    return Runner(model, max_nodes=80, requested_states=REQUESTED_STATES, pool=GraphPool(torch.device("cpu")))


@pytest.fixture(autouse=True)
def replayed(monkeypatch):
    recorded.replay_on_cpu(monkeypatch)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "falcon"])
def test_replayed_passes_equal_passes(name):
    model = AdapterModel(random_model(name), name=name)
    caches, runner = model.new_caches(80, len(LENGTHS)), graph_runner(model)
    for seed in range(3):
        inputs = prefilled(model, caches, seed)
        for numbers in ([2], [4, 1, 0]):
            some = [inputs[number] for number in numbers]
            for sequence, output in zip(some, runner.forward(some), strict=True):
                (expected,) = model.forward([sequence], REQUESTED_STATES)
                torch.testing.assert_close(output, expected, **CLOSE)
    assert len(runner.captured) == 2


def test_model_that_reads_numbers_of_the_host_runs_operation_by_operation():
    model = AdapterModel(random_model("falcon"), name="falcon")
    inputs = prefilled(model, model.new_caches(80, len(LENGTHS)), seed=0)
    with pytest.warns(TreeoptWarning, match="falcon: expected a pass that can be captured as a CUDA graph"):
        outputs = graph_runner(model).forward(inputs)
    torch.testing.assert_close(outputs.logits, model.forward(inputs).logits, **CLOSE)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_decoder_with_graphs_has_the_same_output(temperature):
    target, draft = (AdapterModel(random_model(name), name=name) for name in ("gemma3_text", "llama"))
    outputs = []
    for cuda_graphs in (False, True):
        decoder = Decoder(
            target,
            draft,
            level_widths([3, 2, 1]),
            temperature=temperature,
            max_sequence_tokens=80,
            cuda_graphs=cuda_graphs,
        )
        outputs.append([*decoder.generate_all(PROMPTS, 15, seeds=range(len(PROMPTS)), batch_size=2)])
        assert bool(decoder._stepper.runner.captured) == cuda_graphs
    assert outputs[0] == outputs[1]


def test_spread_model_is_not_captured():
    model = random_model("llama")
    model.hf_device_map = {"model.layers.0": 0, "model.layers.1": 1}
    adapter = AdapterModel(model, name="spread")
    runner = graph_runner(adapter)
    runner.forward(prefilled(adapter, adapter.new_caches(80, len(LENGTHS)), seed=0))
    assert not runner.captured
