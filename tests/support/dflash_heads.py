"""Random DFlash heads, made by transformers' own class, in the layouts of the files that people publish."""

import json

import torch
from safetensors.torch import load_file, save_file
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

from treeopt import bundled

BLOCK, MASK, RANK = 5, 22, 3
LAYER_IDS = (1, 4)
"""Zero-based layers of the target whose output is read."""


def make_oracle(target_config, seed=0, layers=2, **changes):
    """Return a random head by transformers' class, in float64."""
    sizes = {
        "hidden_size": target_config.hidden,
        "intermediate_size": 40,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": ["full_attention"] * layers,
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "target_layer_ids": list(LAYER_IDS),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "attn_implementation": "eager",
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        oracle = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**{**sizes, **changes})).double().eval()
        for parameter in oracle.parameters():  # norms are ones, and weights small, as they are initialised
            parameter.data = torch.randn(parameter.shape, dtype=torch.float64) * (0.4 if parameter.ndim > 1 else 0.3)
            parameter.data += parameter.ndim == 1
    return oracle


def tensors_of(oracle):
    """Return the tensors by the names of z-lab's files."""
    names = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
    return {names.get(name, name): value.float().contiguous() for name, value in oracle.state_dict().items()}


def sizes_of(oracle):
    config = oracle.config
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    names = (*names, "head_dim", "rms_norm_eps", "max_position_embeddings", "layer_types", "sliding_window")
    theta = config.rope_parameters["rope_theta"]
    return {name: getattr(config, name) for name in names} | {"rope_theta": theta, "vocab_size": 23}


def z_lab(oracle):
    """Return config and tensors as z-lab and SpecForge save them."""
    nested = {"mask_token_id": MASK, "target_layer_ids": list(LAYER_IDS)}
    config = sizes_of(oracle) | {"architectures": ["DFlashDraftModel"], "block_size": BLOCK, "dflash_config": nested}
    return config, tensors_of(oracle)


def block_size_inside(oracle):
    """Return the same with the block size where newer files have it."""
    config, tensors = z_lab(oracle)
    config["dflash_config"]["block_size"] = config.pop("block_size")
    return config, tensors


def transformers(oracle):
    """Return config and tensors as transformers saves them."""
    config = sizes_of(oracle) | {
        "model_type": "muse_glimmer_assistant",
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "target_layer_ids": list(LAYER_IDS),
    }
    del config["vocab_size"]
    return config, {name: value.float().contiguous() for name, value in oracle.state_dict().items()}


def speculators(oracle):
    """Return config and tensors as speculators saves them, whose layer ids are one higher."""
    config = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": sizes_of(oracle),
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "aux_hidden_state_layer_ids": [each + 1 for each in LAYER_IDS],
    }
    return config, tensors_of(oracle)


LAYOUTS = {each.__name__: each for each in (z_lab, block_size_inside, transformers, speculators)}


def deep_spec(oracle, target):
    """Return config and tensors as DeepSpec saves them: with embedding and output layer, and slots shifted by one."""
    fields = {"block_size": BLOCK, "mask_token_id": MASK, "target_layer_ids": list(LAYER_IDS), "markov_rank": 0}
    embedding, output = target.weights.embedding, target.logits(torch.eye(target.config.hidden, dtype=target.dtype)).T
    own = {"embed_tokens.weight": embedding.float(), "lm_head.weight": output.float().contiguous()}
    return sizes_of(oracle) | {"architectures": ["Qwen3DSparkModel"], **fields}, tensors_of(oracle) | own


def add_markov(config, tensors, *, scale=1.0, seed=0):
    """Return the same with a random Markov head, which makes a DSpark head of it, and a confidence head."""
    generator = torch.Generator().manual_seed(seed)
    hidden, tokens = tensors["norm.weight"].shape[0], config.get("vocab_size", 23)
    predicted = len(tensors["d2t"]) if "d2t" in tensors else tokens
    markov = {
        "markov_head.markov_w1.weight": scale * torch.randn(tokens, RANK, generator=generator),
        "markov_head.markov_w2.weight": torch.randn(predicted, RANK, generator=generator),
        "confidence_head.proj.weight": torch.randn(1, hidden + RANK, generator=generator),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    return config | {"markov_rank": RANK, "markov_head_type": "vanilla"}, tensors | markov


def save_dspark_head(folder):
    """Save the bundled DFlash head with a random Markov head, and return the folder."""
    config = json.loads((bundled.DFLASH / "config.json").read_text())
    return save(folder, *add_markov(config, load_file(bundled.DFLASH / "model.safetensors"), scale=0.1))


def markov_bias(tensors, tokens):
    """Return what a Markov head adds to the logits after tokens, float64 (..., predicted tokens)."""
    first, second = (tensors[f"markov_head.markov_w{number}.weight"].double() for number in (1, 2))
    return first[torch.as_tensor(tokens)] @ second.T


def save(folder, config, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: value.clone() for name, value in tensors.items()}, folder / "model.safetensors")
    return folder


def oracle_logits(oracle, target, text, *, shift=0, block=BLOCK):
    """Return the logits (block, V) of a block after a text whose last token is the root, by transformers' class."""
    return target.logits(oracle_states(oracle, target, text, shift=shift, block=block))


def oracle_states(oracle, target, text, *, shift=0, block=BLOCK):
    """Return what these logits are made of, (block, hidden)."""
    tokens = torch.tensor(text)
    context = len(text) - 1
    states = target.compute_states(tokens[:-1], requested_states_of(shift)) if context else None
    embedding = target.weights.embedding
    slots = torch.cat([embedding[tokens[-1:]], embedding[MASK].expand(block - 1, -1)])[None]
    rows = torch.cat(list(states.layers), -1)[None] if context else slots.new_zeros(1, 0, 2 * slots.shape[-1])
    with torch.no_grad():
        found = oracle(
            noise_embeds=slots,
            context_hidden_states=rows,
            position_ids=torch.arange(context + block)[None],
        )
    return found.last_hidden_state[0]


def requested_states_of(shift=0):
    from treeopt.runtime.models.model import RequestedStates

    return RequestedStates(layer_ids=tuple(each + 1 + shift for each in LAYER_IDS), all_tokens=True)
