"""Models of transformers behind the adapter give the logits of their own plain passes, for every path of a tree."""

import json
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from tests.support.hf_models import ARCHITECTURES, GROUPED, VOCABULARY, random_model
from tests.support.passes import feed_tokens, feed_tree, level_of, new_cache
from treeopt import bundled
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.runtime import Decoder, load_model
from treeopt.runtime.models.hf import Placement, load_adapter
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.runtime.models.model import PREFILL_TOKENS, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.trees import TokenTree, level_widths

TREE = level_widths([4, 6, 5, 3])


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a function from an architecture to a folder that holds such a model."""
    found = {}

    def folder(name):
        if name not in found:
            found[name] = tmp_path_factory.mktemp("models") / name
            random_model(name).save_pretrained(found[name])
        return found[name]

    return folder


@pytest.fixture(params=ARCHITECTURES)
def model(request, folders):
    return load_adapter(folders(request.param))


def random_tokens(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def plain(model, text):
    """Return the logits (n, V) of a text by the model's own pass over it alone."""
    with torch.inference_mode():
        return model._model(input_ids=text[None], use_cache=False).logits[0]


def feed(model, cache, tokens, tree=TREE):
    return feed_tree(model, cache, tokens, tree).logits


def assert_paths(model, logits, text, tokens, tree=TREE):
    for padded in tree.leaf_paths:
        path = padded[padded >= 0].tolist()
        expected = plain(model, torch.cat([text, tokens[path]]))[len(text) :]
        torch.testing.assert_close(logits[path], expected, rtol=1e-3, atol=1e-3)


def test_a_text_token_by_token(model):
    text = random_tokens(24)
    cache = new_cache(model, 24)
    assert model.prefill(text[:9], cache) is None
    found = []
    for place in range(9, 24):
        found.append(feed_tokens(model, cache, text[place : place + 1]).logits[0])
        cache.commit([0])
    torch.testing.assert_close(torch.stack(found), plain(model, text)[9:], rtol=1e-3, atol=1e-3)


def test_each_path_of_a_tree_is_a_text_of_its_own_before_and_after_a_path_is_kept(model):
    text, tokens = random_tokens(11), random_tokens(TREE.nodes, seed=1)
    cache = new_cache(model, 60)
    model.prefill(text, cache)
    assert_paths(model, feed(model, cache, tokens), text, tokens)
    path = TREE.leaf_paths[-1][TREE.leaf_paths[-1] >= 0].tolist()
    cache.commit(path)
    text = torch.cat([text, tokens[path]])
    assert cache.length == len(text)
    assert_paths(model, feed(model, cache, tokens.flip(0)), text, tokens.flip(0))


def test_two_texts_at_once_are_what_each_is_alone(model):
    texts, tokens = random_tokens(2, 8), random_tokens(2, TREE.nodes, seed=1)
    caches = model.new_caches(40, 2)
    for text, cache in zip(texts, caches, strict=True):
        model.prefill(text, cache)
    outputs = model.forward([SequenceInput(*each, PassNodes.whole(TREE)) for each in zip(caches, tokens, strict=True)])
    for row, output in enumerate(outputs):
        assert_paths(model, output.logits, texts[row], tokens[row])


def test_a_tree_fed_level_by_level_equals_one_pass(model):
    tokens = random_tokens(TREE.nodes, seed=2)
    cache = new_cache(model, 40)
    model.prefill(random_tokens(5), cache)
    expected = feed(model, cache, tokens)
    for level in TREE.levels:
        logits = model.forward([SequenceInput(cache, tokens[level], level_of(TREE, level.start, level.stop))]).logits
        torch.testing.assert_close(logits, expected[level], rtol=1e-3, atol=1e-3)


def test_parameters_are_counted_once_and_sizes_are_read(folders):
    for name in ("llama", "gpt2", "gemma2"):  # an untied head and two tied ones
        model, theirs = load_adapter(folders(name)), random_model(name)
        assert model.parameters == theirs.num_parameters()
        assert model.config.vocabulary == VOCABULARY
        assert model.config.end_tokens == (7,)
        assert model.name == name


@pytest.mark.parametrize(
    ("name", "changes", "longest"),
    [
        ("llama", {}, 96),
        ("gpt2", {}, 96),
        ("mistral", {}, 96),
        ("mistral", {"attention_chunk_size": 32}, 32),
        ("gemma3_text", {}, 96),
    ],
)
def test_a_text_ends_at_the_trained_length_or_the_first_chunk(name, changes, longest):
    assert AdapterModel(random_model(name, **changes), name=name).config.max_positions == longest


@pytest.mark.parametrize(
    ("name", "changes", "window"),
    [
        ("llama", {}, None),
        ("mistral", {}, 64),
        ("mistral", {"sliding_window": None}, None),
        ("gemma3_text", {"layer_types": ["sliding_attention", "full_attention"]}, 64),
        ("gemma3_text", {"layer_types": ["full_attention", "full_attention"]}, None),
        ("qwen3", {"use_sliding_window": False, "sliding_window": 64}, None),
    ],
)
def test_which_models_have_a_sliding_window(name, changes, window):
    assert AdapterModel(random_model(name, **changes), name=name).config.sliding_window == window


def test_a_text_ends_where_rotations_change():
    rope = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    config = transformers.Phi3Config(**GROUPED, original_max_position_embeddings=32, rope_scaling=rope)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert AdapterModel(model, name="phi3").config.max_positions == 32


def test_several_end_tokens():
    model = random_model("llama")
    model.generation_config.eos_token_id = [3, 5]
    assert AdapterModel(model, name="x").config.end_tokens == (3, 5)


def test_a_long_text_is_prefilled_in_parts(monkeypatch, folders):
    text = random_tokens(40)
    model = load_adapter(folders("gemma2"))
    assert len(text) < PREFILL_TOKENS
    monkeypatch.setattr("treeopt.runtime.models.model.PREFILL_TOKENS", 7)
    cache = new_cache(model, 40)
    model.prefill(text[:-1], cache)
    assert cache.length == 39
    logits = feed_tokens(model, cache, text[-1:]).logits
    torch.testing.assert_close(logits[0], plain(model, text)[-1], rtol=1e-3, atol=1e-3)


def test_an_empty_text_and_a_cleared_cache(folders):
    model, tokens = load_adapter(folders("gpt2")), random_tokens(TREE.nodes)
    cache = new_cache(model, 40)
    for _ in range(2):
        model.prefill(random_tokens(0), cache)
        assert_paths(model, feed(model, cache, tokens), random_tokens(0), tokens)
        cache.commit([0, 1])
        cache.clear()


@pytest.mark.parametrize("name", ["gpt2", "gemma3_text", "deepseek_v3"])
def test_a_decoder_gives_the_plain_text_up_to_the_last_position(folders, name):
    model, draft = load_adapter(folders(name)), AdapterModel(random_model("llama", seed=3), name="draft")
    prompt = random_tokens(4).tolist()
    count = min(model.config.max_positions, draft.config.max_positions) - len(prompt)
    text = list(prompt)
    for _ in range(count):
        text.append(int(plain(model, torch.tensor(text))[-1].argmax()))
        if text[-1] == 7:
            break
    for tree in (TokenTree([-1]), TREE):
        decoder = Decoder(model, draft, tree, temperature=0.0)
        assert [*prompt, *decoder.generate(prompt, count)] == text


@pytest.mark.slow
def test_adapter_and_built_in_models_stand_beside_one_another():
    """The same folder, run by each: as target and as drafter."""
    built_in, adapter = load_model(bundled.TARGET), load_adapter(bundled.TARGET)
    draft = load_model(bundled.DRAFT)
    assert adapter.parameters == built_in.parameters
    prompt = list(b"class Parser:\n    def __init__")
    texts = [
        list(Decoder(target, drafter, TREE, temperature=0.0, max_sequence_tokens=128).generate(prompt, 60))
        for target, drafter in [(built_in, draft), (adapter, draft), (built_in, adapter), (adapter, adapter)]
    ]
    assert texts[1:] == texts[:1] * 3


def test_the_stated_dtype_is_that_of_the_logits(folders):
    model = load_adapter(folders("llama"), dtype=torch.bfloat16)
    logits = feed_tokens(model, new_cache(model, 1), random_tokens(1)).logits
    assert logits.dtype == model.dtype == torch.bfloat16


def edited(folder, into, **changes):
    for path in folder.iterdir():
        (into / path.name).write_bytes(path.read_bytes())
    content = json.loads((folder / "config.json").read_text())
    (into / "config.json").write_text(json.dumps(content | changes))
    return into


class TestRefusals:
    def check(self, folder, *words, **options):
        with pytest.raises(TreeoptError) as caught:
            load_adapter(folder, **options)
        text = str(caught.value)
        assert "\n" not in text
        assert [word for word in words if word not in text] == []

    def test_a_folder_without_a_model(self, tmp_path):
        self.check(tmp_path, str(tmp_path), "config.json")

    def test_no_folder(self, tmp_path):
        self.check(tmp_path / "missing", "no such folder")

    def test_code_of_its_own(self, folders, tmp_path):
        code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
        (tmp_path / "own.py").write_text("raise SystemExit('was run')")
        folder = edited(folders("llama"), tmp_path, model_type="own", auto_map=code)
        self.check(folder, str(folder), "auto_map", "not run")

    def test_an_unknown_architecture(self, folders, tmp_path):
        self.check(edited(folders("llama"), tmp_path, model_type="nothing_known"), str(tmp_path), "nothing_known")

    def test_a_missing_weight(self, folders, tmp_path):
        from safetensors.torch import load_file, save_file

        folder = edited(folders("llama"), tmp_path)
        weights = load_file(folder / "model.safetensors")
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        self.check(folder, "model.layers.1.mlp.up_proj.weight", "missing")

    def test_a_quantiser_that_is_not_installed(self, folders, tmp_path):
        pytest.importorskip("accelerate")
        quantisation = {"quant_method": "hqq", "quant_config": {}}
        self.check(edited(folders("llama"), tmp_path, quantization_config=quantisation), str(tmp_path), "hqq")

    def test_two_ways_of_splitting(self, folders):
        with pytest.raises(InvalidValueError, match="at most"):
            load_adapter(folders("llama"), placement=Placement(max_memory=()), tensor_parallel=True)

    def test_transformers_not_installed(self, folders, monkeypatch):
        monkeypatch.setitem(sys.modules, "transformers", None)
        self.check(folders("llama"), 'pip install "treeopt[hf]"')


def test_loading_says_nothing_on_a_stderr_that_is_no_terminal(folders, capfd):
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_adapter(folders("llama"))
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
