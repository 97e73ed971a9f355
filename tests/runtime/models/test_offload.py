"""A model most of whose layers lie on disk gives the same logits and the same text as the model loaded whole."""

import pytest
import torch

from tests.support.passes import feed_tree, new_cache

transformers = pytest.importorskip("transformers", reason="needs the hf extra")
pytest.importorskip("accelerate", reason="needs the hf extra")


from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.hf import Placement, load_adapter
from treeopt.trees import TokenTree, level_widths

TREE = level_widths([4, 6, 5, 3])
LAYERS = 8
CONFIG = {
    "vocab_size": 500,
    "hidden_size": 256,
    "intermediate_size": 768,
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
    """Return a checkpoint of 27 MB."""
    made = tmp_path_factory.mktemp("models") / "large"
    with torch.random.fork_rng():
        torch.manual_seed(5)
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def whole(folder):
    return load_model(folder)


@pytest.fixture(scope="module")
def offloaded(folder, tmp_path_factory):
    """Return the model with room for two layers in memory."""
    placement = Placement(max_memory=(("cpu", "9MB"),), offload_folder=tmp_path_factory.mktemp("offload"))
    return load_adapter(folder, placement=placement)  # the tree check is passed


def test_most_layers_lie_on_disk(offloaded, whole):
    places = offloaded._model.hf_device_map
    on_disk = [part for part, place in places.items() if place == "disk" and ".layers." in part]
    assert LAYERS / 2 < len(on_disk) < LAYERS
    assert any(weight.device.type == "meta" for weight in offloaded._model.parameters())
    assert offloaded.device == torch.device("cpu")
    assert offloaded.parameters == whole.parameters


def test_loading_with_a_placement_says_nothing(folder, tmp_path, capfd):
    load_adapter(folder, placement=Placement(max_memory=(("cpu", "9MB"),), offload_folder=tmp_path))
    assert capfd.readouterr() == ("", "")


def test_logits_are_those_of_the_whole_model(offloaded, whole):
    tokens = torch.arange(TREE.nodes) * 5 % 500
    logits = []
    for model in (offloaded, whole):
        cache = new_cache(model, 60)
        model.prefill(torch.tensor(PROMPT), cache)
        logits.append(feed_tree(model, cache, tokens, TREE).logits)
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)


def test_a_tree_decodes_the_greedy_text_of_the_whole_model(offloaded, whole):
    plain = list(Decoder(whole, None, TokenTree([-1]), temperature=0.0).generate(PROMPT, 24))
    assert len(set(plain)) > 3
    assert list(Decoder(offloaded, whole, TREE, temperature=0.0).generate(PROMPT, 24)) == plain


def test_a_small_draft_model_in_memory_beside_it(offloaded, whole, tmp_path):
    with torch.random.fork_rng():
        torch.manual_seed(6)
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**CONFIG, "num_hidden_layers": 1})).save_pretrained(
            tmp_path
        )
    plain = list(Decoder(whole, None, TokenTree([-1]), temperature=0.0).generate(PROMPT, 12))
    assert list(Decoder(offloaded, load_model(tmp_path), TREE, temperature=0.0).generate(PROMPT, 12)) == plain
