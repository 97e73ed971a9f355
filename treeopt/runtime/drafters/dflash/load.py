"""Reads DFlash heads in the layouts of z-lab, SpecForge, Model-Optimizer, DeepSpec, speculators and transformers.

The tensors determine the kind of head: one with tensors that this network does not have is refused.
"""

import re
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.json_file import read_object
from treeopt.runtime.drafters.dflash.head import DFlashHead
from treeopt.runtime.drafters.heads import check_target, load_head_layer, spread_logits, target_ids
from treeopt.runtime.models.config import CONFIG, LAYER_KINDS, ModelConfig, parse_config
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import RequestedStates
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer

OTHER_HEADS = {
    "candidate_selector.": "DFlash2",
    "markov_head.": "DSpark",
    "logit_head.": "DSpark",
    "confidence_head.": "DSpark",
    "prefix_gru.": "Domino",
    "embed_proj.": "Domino",
    "mask_hidden": "P-EAGLE",
    "midlayer.": "EAGLE",
}
"""Prefixes of tensor names in heads of other kinds."""
KNOWN = re.compile(
    r"(encoder\.)?(fc|hidden_norm|output_norm_enc|norm|lm_head|embed_tokens)\.weight|mask_embedding|d2t|t2d|verifier_.*"
    r"|layers\.\d+\.(input_layernorm|post_attention_layernorm|self_attn\.[qkvo]_proj|self_attn\.[qk]_norm"
    r"|mlp\.(gate|up|down)_proj)\.(weight|bias)|.*rotary_emb\.inv_freq"
)
NESTED, SPECULATORS = "dflash_config", "transformer_layer_config"
SHIFTED = ("sample_from_anchor", "shift_label")
SHIFTED_ARCHITECTURE = "Qwen3DSparkModel"
CAUSAL = ("causal_head", "causal", "is_causal")
MOST_BLOCK_TOKENS = 4096


def load_dflash(folder: Path | str, target: Transformer) -> DFlashHead:
    """Read a head from a folder with `config.json` and weights; nothing in it is executed.

    Embedding and output layer are the target's if the folder has none.

    Raises TreeoptError if a file is missing, FormatError naming the field or tensor that is wrong, InvalidValueError
    for a head of another target, and for a target that treeopt does not run itself.
    """
    check_target(target)
    folder = Path(folder)
    config = read_config(folder, target)
    tensors = TensorReader.open_folder(folder, device=target.device, dtype=target.dtype)
    _check_kind(folder, tensors)
    return _build_head(folder, target, config, tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig:
    """The fields of `config.json` that are read."""

    layers: ModelConfig
    layer_ids: tuple[int, ...]
    """Hidden-state layer ids of the target, 0 the embedding."""
    block_tokens: int
    mask_token: int | None
    shifted: bool
    causal: bool


def read_config(folder: Path, target: Transformer) -> DFlashConfig:
    """Read the configuration of a head; raises as `load_dflash`."""
    path = folder / CONFIG
    content = read_object(path)
    fields = Fields(path, content)
    nested = content.get(NESTED) or {}
    if not isinstance(nested, dict):
        raise fields.error(NESTED, f"expected fields with names. Got {nested!r:.60}.")
    merged = {**nested, **content}
    speculators = SPECULATORS in content

    def flag(name: str) -> bool:
        value = merged.get(name, False)
        if not isinstance(value, bool):
            raise fields.error(name, f"expected true or false. Got {value!r:.60}.")
        return value

    def integer(name: str) -> int | None:
        value = merged.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise fields.error(name, f"expected a whole number. Got {value!r:.60}.")
        return value

    block_tokens, mask_token = integer("block_size"), integer("mask_token_id")
    if block_tokens is None or not 2 <= block_tokens <= MOST_BLOCK_TOKENS:
        raise fields.error("block_size", f"expected 2 to {MOST_BLOCK_TOKENS}, the root included. Got {block_tokens}.")
    vocabulary = target.config.vocabulary
    if mask_token is not None and not 0 <= mask_token < len(target.weights.embedding):
        raise fields.error("mask_token_id", f"expected a token from 0 to {vocabulary - 1}. Got {mask_token}.")
    shifted = any(map(flag, SHIFTED)) or SHIFTED_ARCHITECTURE in (content.get("architectures") or [])
    return DFlashConfig(
        layers=_layers(path, content[SPECULATORS] if speculators else content, merged, target),
        layer_ids=_layer_ids(fields, merged, target, speculators=speculators),
        block_tokens=block_tokens,
        mask_token=mask_token,
        shifted=shifted,
        causal=any(map(flag, CAUSAL)),
    )


def default_layer_ids(target_layers: int, head_layers: int) -> tuple[int, ...]:
    """Return the ids that z-lab's heads read if their file lists none: evenly spaced layers.

    >>> default_layer_ids(36, 5), default_layer_ids(8, 2), default_layer_ids(8, 1)
    ((2, 10, 18, 26, 34), (2, 6), (5,))
    """
    if head_layers == 1:
        return (target_layers // 2 + 1,)
    first, last = 1, target_layers - 3
    return tuple(round(first + index * (last - first) / (head_layers - 1)) + 1 for index in range(head_layers))


def _layers(path: Path, sizes: object, merged: dict[str, Any], target: Transformer) -> ModelConfig:
    """Return the sizes of the head's layers, with sliding attention for those that `layer_types` lists."""
    if not isinstance(sizes, dict):
        raise FormatError(path, SPECULATORS, f"expected fields with names. Got {sizes!r:.60}.")
    content = {"vocab_size": target.config.vocabulary, **sizes, "architectures": ["LlamaForCausalLM"]}
    config = parse_config(path, content)
    for name, expected, size in (
        ("hidden_size", target.config.hidden, config.hidden),
        ("vocab_size", target.config.vocabulary, config.vocabulary),
    ):
        if size != expected:
            raise InvalidValueError(
                f"{name}: expected {expected}, which {target.name} has. Got {size}: take a head that was trained on this target."
            )
    kinds = sizes.get("layer_types", merged.get("layer_types"))
    sliding: frozenset[int] = frozenset()
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != config.layers or not all(kind in LAYER_KINDS for kind in kinds):
            raise FormatError(
                path,
                "layer_types",
                f"expected a list of {config.layers} {' and '.join(LAYER_KINDS)}. Got {kinds!r:.80}.",
            )
        sliding = frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    window = Fields(path, content).integer("sliding_window") if sliding else None
    positions = target.config.max_positions  # heads are trained on short sequences and used on longer ones
    return replace(config, max_positions=positions, sliding_layers=sliding, sliding_window=window)


def _layer_ids(fields: Fields, merged: dict[str, Any], target: Transformer, *, speculators: bool) -> tuple[int, ...]:
    """Return hidden-state layer ids: `speculators` lists them, others list layers whose output is read, one less."""
    name = "aux_hidden_state_layer_ids" if speculators else "target_layer_ids"
    listed, layers = merged.get(name), len(target.weights.layers)
    if listed is None:
        count = merged.get("num_hidden_layers", 1)
        return default_layer_ids(layers, count if isinstance(count, int) and count > 0 else 1)
    if not isinstance(listed, list) or not listed or not all(type(layer) is int for layer in listed):
        raise fields.error(name, f"expected a list of layers. Got {listed!r:.60}.")
    ids = tuple(listed) if speculators else tuple(layer + 1 for layer in listed)
    if not all(0 <= layer_id <= layers for layer_id in ids) or len(set(ids)) < len(ids):
        lowest = 0 if speculators else -1
        raise fields.error(
            name,
            f"expected layers from {lowest} to {layers + lowest}, each once, because {target.name} has {layers}. Got "
            f"{listed!s:.60}: take a head that was trained on this target.",
        )
    return ids


def _check_kind(folder: Path, tensors: TensorReader) -> None:
    for name in tensors:
        for prefix, kind in OTHER_HEADS.items():
            if name.startswith(prefix):
                raise FormatError(folder, name, f"expected a DFlash head. Got {kind}: take another checkpoint.")
    for name in tensors:
        if not KNOWN.fullmatch(name):
            raise FormatError(
                folder,
                name,
                "expected tensors of a DFlash head. This one is of another network: take another checkpoint.",
            )


def _build_head(folder: Path, target: Transformer, config: DFlashConfig, tensors: TensorReader) -> DFlashHead:
    layers, hidden, width = config.layers, config.layers.hidden, target.config.hidden
    encoder = "encoder.fc.weight" in tensors
    fuse, norm = ("encoder.fc", "encoder.output_norm_enc") if encoder else ("fc", "hidden_norm")
    embedding = target.weights.embedding
    if "embed_tokens.weight" in tensors:
        embedding = tensors.get("embed_tokens.weight", (tensors.shape("embed_tokens.weight")[0], hidden))
    prefixes = [f"layers.{number}" for number in range(layers.layers)]
    output, head_vocabulary = _output_layer(folder, target, hidden, tensors)
    return DFlashHead(
        name=f"DFlash head {folder.name}",
        target=target,
        config=layers,
        requested_states=RequestedStates(layer_ids=config.layer_ids, all_tokens=True),
        fuse=Linear(tensors.get(f"{fuse}.weight", (hidden, len(config.layer_ids) * width))),
        context_norm=tensors.get(f"{norm}.weight", (hidden,)),
        embedding=embedding,
        mask=_mask_embedding(folder, config, embedding, tensors),
        layers=tuple(load_head_layer(tensors, layers, prefix, hidden) for prefix in prefixes),
        input_norms=tuple(tensors.get(f"{prefix}.input_layernorm.weight", (hidden,)) for prefix in prefixes),
        norm=tensors.get("norm.weight", (hidden,)),
        output=output,
        tokens=head_vocabulary,
        block_tokens=config.block_tokens,
        shifted=config.shifted,
        causal=config.causal,
    )


def _mask_embedding(folder: Path, config: DFlashConfig, embedding: Tensor, tensors: TensorReader) -> Tensor:
    """Return the embedding of a mask token: its own tensor, or a row of the embedding."""
    if "mask_embedding" in tensors:
        shape = tensors.shape("mask_embedding")
        if prod(shape) != config.layers.hidden:
            raise FormatError(folder, "mask_embedding", f"expected {config.layers.hidden} numbers. Got shape {shape}.")
        return tensors.get("mask_embedding", shape).flatten()
    if config.mask_token is None:
        raise FormatError(folder / CONFIG, "mask_token_id", "expected the token of a mask. It is missing: add it.")
    return embedding[config.mask_token]


def _output_layer(folder: Path, target: Transformer, hidden: int, tensors: TensorReader) -> tuple[Any, int]:
    """Return the output layer over the target's tokens, and the number of tokens that it predicts."""
    vocabulary = target.config.vocabulary
    own = "lm_head.weight" in tensors
    head_vocabulary = vocabulary
    if own or "d2t" in tensors:
        head_vocabulary = tensors.shape("lm_head.weight" if own else "d2t")[0]
    ids = target_ids(folder, tensors, head_vocabulary, vocabulary, target.device) if "d2t" in tensors else None
    if ids is None and head_vocabulary != vocabulary:
        raise FormatError(
            folder, "d2t", f"this tensor is missing, and the head predicts {head_vocabulary} of {vocabulary} tokens."
        )
    head = Linear(tensors.get("lm_head.weight", (head_vocabulary, hidden))) if own else target.logits
    if ids is None:
        return head, head_vocabulary

    def predict(states: Tensor) -> Tensor:
        return spread_logits(head(states) if own else head(states)[:, ids], ids, vocabulary)

    return predict, head_vocabulary
