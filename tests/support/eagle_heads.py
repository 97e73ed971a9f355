"""Random EAGLE heads, saved as each of the public layouts saves them: names, files and configurations of their own."""

import json
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import save_file

IDS = "eagle_aux_hidden_state_layer_ids"
MASK_TOKEN, LEVELS = 2, 4
"""Of P-EAGLE heads."""


@dataclass
class MadeHead:
    """A head by plain names, and what a layout may say of it."""

    weights: dict[str, torch.Tensor]
    layer_ids: tuple[int, ...]
    ids: list[int] | None = None
    """The target's token for each of the head's."""
    theta: float = 10_000.0
    yarn: tuple[float, int] | None = None
    """Factor and positions of the first training, where rotations are scaled as in YaRN."""
    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 8
    layers: int = 1
    flags: dict[str, bool] = field(default_factory=dict)

    @property
    def hidden(self) -> int:
        return len(self.weights["layer0.o"])


def make_head(
    target,
    layer_ids=(1, 2),
    *,
    seed=0,
    ids=None,
    layers=1,
    scale=0.3,
    hidden=None,
    embedding=False,
    own_output=True,
    head_norms=False,
    eagle1=False,
    theta=10_000.0,
    yarn=None,
    mtp=False,
    mask=False,
    **flags,
):
    """Return a random head on a target's hidden states; sizes of attention are those of `MadeHead`."""
    noise, width, vocabulary = torch.Generator().manual_seed(seed), target.config.hidden, target.config.vocabulary
    h = hidden or width

    def random(*shape):
        return scale * torch.randn(shape, generator=noise)

    def norm(size):
        return 1 + 0.3 * torch.randn(size, generator=noise)

    found = {}
    if eagle1:
        found |= {"fc": random(h, 2 * h), "fc_bias": random(h)}
    elif mtp:
        found |= {"fc": random(h, 2 * h), "token_norm": norm(h)}
        flags["norm_output"] = True
    elif layer_ids:
        found["fc"] = random(h, len(layer_ids) * width)
    for layer in range(layers):
        inputs, name = 2 * h if layer == 0 and not (eagle1 or mtp) else h, f"layer{layer}"
        if layer or not eagle1:
            found[f"{name}.input_norm"] = norm(h)
        if layer == 0 and not eagle1:
            found[f"{name}.hidden_norm"] = norm(h)
        found |= {f"{name}.q": random(32, inputs), f"{name}.k": random(16, inputs), f"{name}.v": random(16, inputs)}
        found |= {f"{name}.o": random(h, 32), f"{name}.mlp_norm": norm(h)}
        found |= {f"{name}.gate": random(40, h), f"{name}.up": random(40, h), f"{name}.down": random(h, 40)}
        if mtp:
            found |= {f"{name}.q_bias": random(32), f"{name}.k_bias": random(16), f"{name}.v_bias": random(16)}
        if head_norms:
            found |= {f"{name}.q_norm": norm(8), f"{name}.k_norm": norm(8)}
    if not eagle1:
        found["norm"] = norm(h)
        if own_output:
            found["output"] = random(vocabulary if ids is None else len(ids), h)
    if embedding or eagle1:
        found["embedding"] = random(vocabulary, h)
    if mask:
        found["mask_hidden"] = random(1, 1, max(1, len(layer_ids)) * width)
    if flags.get("fc_norm"):
        found |= {f"fc_norm.{index}": norm(width) for index in range(len(layer_ids))}
    if flags.get("norm_before_fc"):
        found["before_fc"] = norm(len(layer_ids) * width)
    return MadeHead(found, tuple(layer_ids), ids=ids, theta=theta, yarn=yarn, layers=layers, flags=flags)


NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "input_norm": "input_layernorm",
    "hidden_norm": "hidden_norm",
    "mlp_norm": "post_attention_layernorm",
}
TOP = {
    "fc": "fc.weight",
    "fc_bias": "fc.bias",
    "norm": "norm.weight",
    "output": "lm_head.weight",
    "embedding": "embed_tokens.weight",
    "before_fc": "input_norm.weight",
    "mask_hidden": "mask_hidden",
}


def stored(made, vocabulary, first, *, mask):
    """Return the tensors by their public names; `first` is the first layer's."""
    found = {}
    for name, weight in made.weights.items():
        layer, _, part = name.partition(".")
        if layer.startswith("layer"):
            found[f"{first if layer == 'layer0' else layer.replace('layer', 'layers.')}.{NAMES[part]}.weight"] = weight
        else:
            found[TOP.get(name, f"{name}.weight")] = weight
    if made.ids is not None:
        ids = torch.tensor(made.ids)
        found["d2t"] = ids - torch.arange(len(ids))
        if mask:
            found["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, ids, True)
    return found


def sizes(made, target) -> dict[str, Any]:
    return {
        "hidden_size": made.hidden,
        "intermediate_size": 40,
        "num_attention_heads": made.heads,
        "num_key_value_heads": made.key_value_heads,
        "head_dim": made.head_dim,
        "num_hidden_layers": made.layers,
        "rms_norm_eps": 1e-5,
        "vocab_size": target.config.vocabulary,
        "max_position_embeddings": 64,
    }


def safeailab(folder, made, target):
    """SafeAILab/EAGLE: a pickle, no layer ids, no base of rotations."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes(made, target)}
    config["draft_vocab_size"] = len(made.ids or range(target.config.vocabulary))
    torch.save(stored(made, target.config.vocabulary, "midlayer", mask=True), folder / "pytorch_model.bin")
    return config


def specforge(folder, made, target):
    """SpecForge: ids of layers whose output is read."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **sizes(made, target),
        "rope_theta": made.theta,
        **made.flags,
    }
    config["eagle_config"] = {IDS: [each - 1 for each in made.layer_ids]}
    save_file(stored(made, target.config.vocabulary, "midlayer", mask=True), folder / "model.safetensors")
    return config


def speculators(folder, made, target):
    """speculators: layer ids, sizes in a mapping of their own."""
    config = {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", **made.flags}
    config["norm_before_residual"] = made.flags.get("norm_before_residual", False)
    config[IDS] = list(made.layer_ids)
    config["transformer_layer_config"] = {
        "model_type": "llama",
        **sizes(made, target),
        "rope_parameters": {"rope_type": "default", "rope_theta": made.theta},
    }
    save_file(stored(made, target.config.vocabulary, "layers.0", mask=True), folder / "model.safetensors")
    return config


def speculators_p_eagle(folder, made, target):
    """P-EAGLE of speculators: its EAGLE-3 with a mask token, and with as many draft tokens as were trained."""
    config = speculators(folder, made, target) | {"speculators_model_type": "peagle", "mask_token_id": MASK_TOKEN}
    proposal = {"proposal_type": "greedy", "speculative_tokens": LEVELS}
    return config | {"speculators_config": {"algorithm": "peagle", "proposal_methods": [proposal]}}


def nemo_p_eagle(folder, made, target):
    """NeMo AutoModel's P-EAGLE, as it is exported for vLLM."""
    config = model_optimizer(folder, made, target)
    return config | {"parallel_drafting": True, "pard_token": MASK_TOKEN, "num_depths": LEVELS}


def model_optimizer(folder, made, target):
    """Model-Optimizer: ids of layers in a nested mapping, flags there too."""
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", **sizes(made, target)}
    config |= {"rope_theta": made.theta, "eagle_config": {"use_aux_hidden_state": bool(made.layer_ids), **made.flags}}
    if made.yarn:
        factor, positions = made.yarn
        config["rope_scaling"] = {"type": "yarn", "factor": factor, "original_max_position_embeddings": positions}
    if made.layer_ids:
        config["eagle_config"][IDS] = [each - 1 for each in made.layer_ids]
    save_file(stored(made, target.config.vocabulary, "layers.0", mask=False), folder / "model.safetensors")
    return config


def eagle1(folder, made, target):
    """EAGLE-1 and 2: neither norms nor an output layer of its own."""
    config = {"architectures": ["LlamaForCausalLM"], **sizes(made, target), "bias": True}
    torch.save(stored(made, target.config.vocabulary, "layers.0", mask=False), folder / "pytorch_model.bin")
    return config


def mimo(folder, made, target):
    """MiMo: a module among the target's own tensors, all of them in one file."""
    names = {"fc": "input_proj", "norm": "final_layernorm", "layer0.hidden_norm": "hidden_layernorm"}
    names |= {"token_norm": "token_layernorm", "layer0.input_norm": "input_layernorm"}
    module = {}
    for name, weight in made.weights.items():
        stored_name = names.get(name) or NAMES[name.partition(".")[2].removesuffix("_bias")]
        module[f"model.mtp_layers.0.{stored_name}.{'bias' if name.endswith('_bias') else 'weight'}"] = weight
    save_file({**module, "model.norm.weight": torch.ones(target.config.hidden)}, folder / "model.safetensors")
    config = {"architectures": ["MiMoForCausalLM"], **sizes(made, target), "rope_theta": made.theta}
    return config | {"num_hidden_layers": 8, "num_nextn_predict_layers": 1, "attention_bias": True}


def save_head(layout, folder, made, target, **changes):
    """Save a head in a layout, fields of its configuration changed, None leaving one out; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = layout(folder, made, target) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder
