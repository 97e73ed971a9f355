"""A model with most layers on disk gives the logits and the text of the model in memory."""

import pytest
import torch

from tests.support.passes import feed_tree, new_cache

transformers = pytest.importorskip("transformers", reason="needs the hf extra")
pytest.importorskip("accelerate", reason="needs the hf extra")


from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.hf import Placement, load_adapter
from treeopt.trees import TokenTree, level_widths

TREE = level_widths([4, 6, 5, 3])
LAYERS = 6
CONFIG = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.08,
    "bos_token_id": None,
    "eos_token_id": None,
}
PROMPT = list(range(3, 90, 7))

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:accelerate", "ignore::FutureWarning:accelerate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a checkpoint of 5 MB."""
    folder = tmp_path_factory.mktemp("models") / "large"
    with torch.random.fork_rng():
        torch.manual_seed(5)
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    return load_model(folder)


def load_offloaded(folder, offload_folder):
    """Load a model with room for two layers in memory."""
    return load_adapter(folder, placement=Placement(max_memory=(("cpu", "2MB"),), offload_folder=offload_folder))


@pytest.fixture(scope="module")
def offloaded(folder, tmp_path_factory):
    return load_offloaded(folder, tmp_path_factory.mktemp("offload"))


def test_most_layers_are_on_disk(offloaded, whole):
    devices = offloaded._model.hf_device_map
    on_disk = [part for part, device in devices.items() if device == "disk" and ".layers." in part]
    assert LAYERS / 2 < len(on_disk) < LAYERS
    assert any(weight.device.type == "meta" for weight in offloaded._model.parameters())
    assert offloaded.device == torch.device("cpu")
    assert offloaded.parameters == whole.parameters


def test_loading_prints_nothing(folder, tmp_path, capfd):
    load_offloaded(folder, tmp_path)
    assert capfd.readouterr() == ("", "")


def test_logits_and_greedy_text_equal_those_of_the_model_in_memory(offloaded, whole):
    tokens = torch.arange(TREE.nodes) * 5 % 300
    logits = []
    for model in (offloaded, whole):
        cache = new_cache(model, 60)
        model.prefill(torch.tensor(PROMPT), cache)
        logits.append(feed_tree(model, cache, tokens, TREE).logits)
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)
    plain = list(Decoder(whole, None, TokenTree([-1]), temperature=0.0).generate(PROMPT, 16))
    assert len(set(plain)) > 3
    assert list(Decoder(offloaded, whole, TREE, temperature=0.0).generate(PROMPT, 16)) == plain
