"""The load-time check accepts right models and refuses those that would change a text."""

from dataclasses import replace

import numpy as np
import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from treeopt import bundled
from treeopt.errors import TreeoptError
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.model import NO_STATES, Output, Outputs
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.tree_check import CHECKED_WINDOW, EXACT, ROUNDED, check_tree_mask

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
}
LLAMA = transformers.LlamaConfig(**SIZES)
GPT2 = transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
GEMMA2 = transformers.Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8)
MISTRAL = transformers.MistralConfig(**SIZES, num_key_value_heads=2)


def random_model(config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config)


class WithoutMask(AdapterModel):
    def _build_mask(self, inputs, batch, numbers):
        mask = super()._build_mask(inputs, batch, numbers)
        if isinstance(mask, dict):
            return {kind: torch.zeros_like(layer_mask) for kind, layer_mask in mask.items()}
        return None if mask is None else torch.zeros_like(mask)


class WithChangedInput(AdapterModel):
    def change(self, sequence):
        raise NotImplementedError

    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        return super().forward([self.change(sequence) for sequence in inputs], requested_states, last_only=last_only)


class WithCausalMask(WithChangedInput):
    """Ignores the mask."""

    def change(self, sequence):
        nodes = sequence.nodes
        return sequence._replace(nodes=PassNodes(depth=nodes.depth, start=nodes.start))


class WithoutPositions(WithChangedInput):
    def change(self, sequence):
        nodes = sequence.nodes
        depth = nodes.start + np.arange(nodes.rows)
        return sequence._replace(nodes=PassNodes(depth=depth, visible=nodes.visible, start=nodes.start))


class WithWrongCommit(AdapterModel):
    def new_caches(self, capacity, sequences):
        store = KVStore(sequences, capacity)
        return [CommitsTheFirstNodes(store, index) for index in range(sequences)]


class CommitsTheFirstNodes(KVCache):
    def commit(self, path):
        super().commit(range(len(path)))


class WithWrongStart(WithChangedInput):
    """Writes every part of a tree to the same slots."""

    def change(self, sequence):
        nodes = sequence.nodes
        return sequence._replace(nodes=PassNodes(depth=nodes.depth, visible=nodes.visible[:, : nodes.rows]))


class WithNaN(AdapterModel):
    def forward(self, inputs, requested_states=NO_STATES, *, last_only=False):
        outputs = super().forward(inputs, requested_states, last_only=last_only)
        return Outputs(outputs.whole.map(lambda values: values * float("nan")), outputs.sizes)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [(LLAMA, torch.float32), (GPT2, torch.bfloat16), (GEMMA2, torch.float32)],
    ids=["llama", "gpt2", "gemma2"],
)
class TestTreeMask:
    @pytest.mark.parametrize(
        "kind", [WithoutMask, WithCausalMask, WithoutPositions, WithWrongCommit, WithWrongStart, WithNaN]
    )
    def test_wrong_adapter_is_refused(self, config, dtype, kind):
        model = kind(random_model(config).to(dtype), name="wrong one")
        with pytest.raises(TreeoptError, match=r"^wrong one: cannot take a tree mask: .*%"):
            check_tree_mask(model, tolerance=EXACT if dtype == torch.float32 else ROUNDED)

    def test_right_adapter_is_accepted(self, config, dtype):
        largest = 1e-5 if dtype == torch.float32 else 0.1
        assert check_tree_mask(AdapterModel(random_model(config).to(dtype), name="right"), tolerance=ROUNDED) < largest


class WithoutWindow(AdapterModel):
    """Ignores the sliding window, as a model that takes one mask for all layers."""

    more = 10_000

    def _build_mask(self, inputs, batch, numbers):
        true = self.config
        self.config = replace(true, sliding_window=true.sliding_window + self.more)
        try:
            return super()._build_mask(inputs, batch, numbers)
        finally:
            self.config = true


class WithLongerWindow(WithoutWindow):
    more = 1


class WithShorterWindow(WithoutWindow):
    more = -1


@pytest.mark.parametrize(
    ("config", "dtype"), [(GEMMA2, torch.float32), (MISTRAL, torch.bfloat16)], ids=["gemma2", "mistral"]
)
class TestSlidingWindow:
    """The window of both is 4096 tokens, which only the check with a narrow window reaches."""

    @pytest.mark.parametrize("kind", [WithoutWindow, WithLongerWindow, WithShorterWindow])
    def test_wrong_window_is_refused(self, config, dtype, kind):
        tolerance = EXACT if dtype == torch.float32 else ROUNDED
        model = kind(random_model(config).to(dtype), name="wrong one")
        check_tree_mask(model, tolerance=tolerance)
        with (
            model.narrowed(CHECKED_WINDOW),
            pytest.raises(TreeoptError, match=r"^wrong one: cannot slide: a tree pass differs"),
        ):
            check_tree_mask(model, tolerance=tolerance, refusal="cannot slide")

    def test_right_window_is_accepted_and_restored(self, config, dtype):
        model = AdapterModel(random_model(config).to(dtype), name="right")
        with model.narrowed(CHECKED_WINDOW):
            largest = 1e-5 if dtype == torch.float32 else 0.1
            assert check_tree_mask(model, tolerance=ROUNDED) < largest
            assert model.config.sliding_window == model._model.config.sliding_window == CHECKED_WINDOW
        assert model.config.sliding_window == model._model.config.sliding_window == 4096


def test_loading_checks_the_sliding_window(tmp_path, monkeypatch):
    random_model(MISTRAL).save_pretrained(tmp_path / "odd")
    monkeypatch.setattr("treeopt.runtime.models.hf.model.hide_before_window", lambda mask, _: mask)
    with pytest.raises(TreeoptError, match=r"^odd: cannot take a tree mask beyond its sliding window: a tree pass"):
        load_adapter(tmp_path / "odd")


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_trained_model_is_accepted_in_every_dtype(dtype, most):
    model = transformers.AutoModelForCausalLM.from_pretrained(bundled.TARGET, dtype=dtype)
    assert check_tree_mask(AdapterModel(model, name="bundled"), tolerance=ROUNDED) < most


def test_vocabulary_smaller_than_the_tokens_of_the_check():
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": 5})
    assert check_tree_mask(AdapterModel(random_model(config), name="small"), tolerance=EXACT) < 1e-5


def test_infinite_logits_do_not_count():
    class Silent(AdapterModel):
        def forward(self, *args, **options):
            outputs = super().forward(*args, **options)
            return Outputs(Output(self.silence(outputs.logits)), outputs.sizes)

        def reference_logits(self, sequences):
            return self.silence(super().reference_logits(sequences))

        def silence(self, logits):
            logits[..., 50:] = float("-inf")
            return logits

    assert check_tree_mask(Silent(random_model(LLAMA), name="silent"), tolerance=EXACT) < 1e-5


def test_model_without_attention_cannot_be_checked():
    model = random_model(LLAMA)
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    with pytest.raises(TreeoptError, match=r"^blind: cannot tell whether it takes a tree mask"):
        check_tree_mask(AdapterModel(model, name="blind"), tolerance=EXACT)


def test_error_contains_what_the_model_raised():
    class Raising(AdapterModel):
        def forward(self, *_, **__):
            raise KeyError("some\nthing")

    with pytest.raises(TreeoptError, match=r"^odd: cannot take a tree mask: its check ended with KeyError: .*some"):
        check_tree_mask(Raising(random_model(LLAMA), name="odd"), tolerance=EXACT)


SHORT = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2}
REFUSED = {
    "bloom": ("Bloom", {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "ALiBi"),
    "falcon": ("Falcon", {**SIZES, "alibi": True}, "ALiBi"),
    "mpt": ("Mpt", {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4, "initializer_range": 0.3}, "%"),
    "mamba": ("Mamba", {**SHORT, "state_size": 4}, "state"),
    "gpt_neo": (
        "GPTNeo",
        {**SHORT, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
        "slot in the cache",
    ),
    "jamba": ("Jamba", {**SIZES, "num_key_value_heads": 2, "num_hidden_layers": 4, "num_experts": 2}, "state"),
    "falcon_h1": ("FalconH1", {**SIZES, "num_key_value_heads": 2}, "state"),
    "lfm2": ("Lfm2", {**SIZES, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}, "Error"),
    "bert": ("Bert", {**SIZES, "pad_token_id": 0}, "(%|Error)"),
}


@pytest.mark.filterwarnings("ignore::UserWarning:transformers", "ignore::FutureWarning:transformers")
@pytest.mark.parametrize("name", REFUSED)
def test_architecture_without_tree_masks_is_refused_in_one_line(name, tmp_path):
    kind, sizes, word = REFUSED[name]
    random_model(getattr(transformers, f"{kind}Config")(**sizes)).save_pretrained(tmp_path / name)
    with pytest.raises(TreeoptError, match=rf"^{name}: cannot take a tree mask: .*{word}") as caught:
        load_adapter(tmp_path / name)
    assert "\n" not in str(caught.value)
