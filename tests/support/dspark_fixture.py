"""A random DSpark head with the logits that the package speculators computes, and how they were made.

    pip download --no-deps speculators==0.9.0   # pip install would replace transformers
    unzip speculators-0.9.0-py3-none-any.whl -d build/speculators
    PYTHONPATH=build/speculators:. python -m tests.support.dspark_fixture

writes the file again, with random numbers of its own.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np
import torch

PATH = Path(__file__).parents[1] / "data" / "dspark-speculators.npz"
MISSING = ("datasets", "hs_connectors", "openai")
"""Packages that speculators imports, and its models do not need."""
VOCABULARY, HIDDEN, RANK, BLOCK, MASK = 23, 32, 3, 5, 22
ROOT, TOKENS = 6, 14
"""Position of the root, and the length of the sequence: the last `BLOCK` positions of one cannot be roots."""
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "vocab_size": VOCABULARY,
}
LAYER_IDS = [2, 5]
"""Hidden-state layer ids of the target."""


def config(*, shifted=None):
    """Return `config.json` as speculators writes it; `shifted` is its `sample_from_anchor`, None for its default."""
    return {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "transformer_layer_config": SIZES | {"rope_theta": 10000.0},
        "draft_vocab_size": VOCABULARY,
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "aux_hidden_state_layer_ids": LAYER_IDS,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        **({} if shifted is None else {"sample_from_anchor": shifted}),
    }


def load():
    """Return the tensors of the head by name, float32, and the other arrays of the file.

    `states` are the target's, (2, TOKENS, HIDDEN); `shifted` and `in_place` the logits (BLOCK, VOCABULARY) of the block
    after `tokens[ROOT]`, every slot after the sequence's own token.
    """
    with np.load(PATH) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files}
    tensors = {
        name.removeprefix("head "): arrays.pop(name).float() for name in list(arrays) if name.startswith("head ")
    }
    return tensors, arrays


def main():
    """Write the file."""
    sys.meta_path.append(EmptyPackages())
    from speculators.models.dspark import core
    from speculators.models.dspark.config import DSparkSpeculatorConfig
    from transformers import Qwen3Config

    torch.manual_seed(0)
    states, tokens = torch.randn(2, TOKENS, HIDDEN).half(), torch.randint(VOCABULARY, (TOKENS,))
    arrays = {"states": states.numpy(), "tokens": tokens.numpy()}
    weights = None
    for name, shifted in (("shifted", True), ("in_place", False)):
        fields = config(shifted=shifted)
        layer = Qwen3Config(**fields["transformer_layer_config"])
        layer._attn_implementation = "eager"  # the package's default needs flex attention
        model = core.DSparkDraftModel(DSparkSpeculatorConfig(**{**fields, "transformer_layer_config": layer})).double()
        trained = {key: value for key, value in model.state_dict().items() if not key.startswith("verifier_")}
        weights = weights or {
            key: (0.4 * torch.randn(value.shape) + (value.ndim == 1)).half() for key, value in trained.items()
        }
        verifier = {key: torch.zeros_like(value) for key, value in model.state_dict().items() if key not in trained}
        model.load_state_dict({key: value.double() for key, value in weights.items()} | verifier)
        arrays[name] = logits_of(core, model.eval(), states.double(), tokens).numpy()
    np.savez_compressed(PATH, **arrays, **{f"head {key}": value.numpy() for key, value in weights.items()})
    print(f"{PATH}: {PATH.stat().st_size} bytes")


def logits_of(core, model, states, tokens):
    """Return the package's logits (BLOCK, VOCABULARY) of the block after `tokens[ROOT]`: its training pass, one root."""
    computed = []
    core.compute_metrics = lambda logits, *_, **__: computed.append(logits) or (None, None)
    root = torch.zeros(1, TOKENS).index_fill(1, torch.tensor([ROOT]), 1)
    with torch.no_grad():
        model(
            hidden_states=torch.cat(list(states), -1)[None],
            input_ids=tokens[None],
            loss_mask=root,
            verifier_last_hidden_states=torch.zeros(1, TOKENS, HIDDEN).double(),
            document_ids=torch.zeros(1, TOKENS, dtype=torch.int64),
            max_anchors=1,
        )
    return computed[0].view(BLOCK, VOCABULARY)


class EmptyPackages(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the missing packages as empty ones, with an empty class for every name."""

    def find_spec(self, name, path=None, target=None):
        del path, target
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in MISSING else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: type(name, (), {})
        return module

    def exec_module(self, module):
        del module


if __name__ == "__main__":
    main()
