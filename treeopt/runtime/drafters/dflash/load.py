"""Reads DFlash and DSpark heads in the layouts of z-lab, SpecForge, Model-Optimizer, DeepSpec, speculators and transformers.

The tensors determine the kind of head: one with tensors that this network does not have is refused.
"""

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from torch import Tensor

from treeopt.errors import FormatError, InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.json_file import read_object
from treeopt.runtime.drafters.dflash.head import DFlashHead, MarkovHead
from treeopt.runtime.drafters.head_files import (
    HeadVocabulary,
    NestedFields,
    check_all_read,
    check_target,
    load_head_layer,
    stored_rows,
)
from treeopt.runtime.models.config import CONFIG, LAYER_KINDS, ModelConfig, parse_config
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.model import RequestedStates
from treeopt.runtime.models.tensor_reader import TensorReader
from treeopt.runtime.models.transformer import Transformer

OTHER_HEADS = {
    "candidate_selector.": "DFlash2",
    "markov_head.gate_proj.": "DSpark with a gated Markov head",
    "markov_head.joint_proj.": "DSpark with a recurrent Markov head",
    "prefix_gru.": "Domino",
    "embed_proj.": "Domino",
    "mask_hidden": "P-EAGLE (--drafter p-eagle=DIR)",
    "midlayer.": "EAGLE",
}
"""Prefixes of tensor names in heads of other kinds."""
LEGACY_PREFIX = "logit_head."
"""Early checkpoints of SpecForge have it before the names of the Markov, confidence and Domino heads."""
NESTED, SPECULATORS = "dflash_config", "transformer_layer_config"
DSPARK_ARCHITECTURES = ("Qwen3DSparkModel", "DSparkDraftModel")
CAUSAL = ("causal_head", "causal", "is_causal")
TRANSFORMERS = "muse_glimmer_assistant"
"""`model_type` of the class in transformers."""
UNSUPPORTED = {"input_embedding_scale": 1, "output_multiplier": 1, "final_logit_softcapping": 0, "use_swa": False}
"""Fields that change what a head predicts, and the value with which they do not."""
MOST_BLOCK_TOKENS = 4096
VANILLA = "vanilla"
"""Kind of a Markov head that reads nothing but the token before."""


def load_dflash(folder: Path | str, target: Transformer) -> DFlashHead:
    """Read a head from a folder with `config.json` and weights; nothing in it is executed.

    Embedding and output layer are the target's if the folder has none.  A confidence head is checked, but not used.

    Raises TreeoptError if a file is missing, FormatError naming the field or tensor that is wrong, InvalidValueError
    for a head of another target, and for a target that treeopt does not run itself.
    """
    check_target(target)
    folder = Path(folder)
    tensors = TensorReader.open_folder(folder, device=target.device, dtype=target.dtype)
    _check_kind(folder, tensors)
    head = _build_head(folder, target, read_config(folder, target), tensors)
    check_all_read(folder, tensors, "a DFlash or DSpark head")
    return head


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig:
    """The fields of `config.json` that are read."""

    layers: ModelConfig
    layer_ids: tuple[int, ...]
    """Hidden-state layer ids of the target, 0 the embedding."""
    block_tokens: int
    mask_token: int | None
    shifted: bool
    causal_layers: frozenset[int]
    """Layers in which a slot sees earlier slots only."""
    markov_rank: int | None
    """None if the file does not contain it."""
    markov_kind: str
    confidence_reads_markov: bool


def read_config(folder: Path, target: Transformer) -> DFlashConfig:
    """Read the configuration of a head; raises as `load_dflash`."""
    path = folder / CONFIG
    content = read_object(path)
    fields = NestedFields(path, content, NESTED)
    speculators = SPECULATORS in content
    block_tokens = fields.integer("block_size")
    if block_tokens is None or not 2 <= block_tokens <= MOST_BLOCK_TOKENS:
        raise fields.error("block_size", f"expected 2 to {MOST_BLOCK_TOKENS}, the root included. Got {block_tokens}.")
    for name, neutral in UNSUPPORTED.items():
        if fields.get(name) not in (None, neutral):
            reason = f"expected none. Got {fields.get(name)!r:.60}, which is not supported: take another checkpoint."
            raise fields.error(name, reason)
    layers = _layers(path, content[SPECULATORS] if speculators else content, fields, target)
    from_anchor, with_markov = fields.flag("sample_from_anchor"), fields.flag("confidence_head_with_markov")
    return DFlashConfig(
        layers=layers,
        layer_ids=_layer_ids(fields, target, layers.layers, speculators=speculators),
        block_tokens=block_tokens,
        mask_token=fields.integer("mask_token_id"),
        shifted=(_is_dspark(fields) if from_anchor is None else from_anchor) or bool(fields.flag("shift_label")),
        causal_layers=_causal_layers(fields, layers),
        markov_rank=fields.integer("markov_rank"),
        markov_kind=str(fields.get("markov_head_type") or VANILLA),
        confidence_reads_markov=with_markov is not False,
    )


def _is_dspark(fields: NestedFields) -> bool:
    """Return whether the slots are shifted unless the file denies it: DeepSpec's, SpecForge's and speculators' DSpark."""
    architectures = fields.get("architectures")
    if isinstance(architectures, list) and any(name in DSPARK_ARCHITECTURES for name in architectures):
        return True
    return "dspark" in (fields.get("speculators_model_type"), fields.get("projector_type"))


def _causal_layers(fields: NestedFields, layers: ModelConfig) -> frozenset[int]:
    """Return the layers in which a slot sees earlier slots only: all or none if a field decides, else the sliding ones.

    In transformers' own class, and in files of speculators that deny it, no layer is causal.
    """
    flags = [flag for flag in map(fields.flag, CAUSAL) if flag is not None]
    if flags:
        return frozenset(range(layers.layers)) if any(flags) else frozenset()
    if fields.flag("sliding_window_non_causal") or fields.get("model_type") == TRANSFORMERS:
        return frozenset()
    return layers.sliding_layers


def default_layer_ids(target_layers: int, head_layers: int) -> tuple[int, ...]:
    """Return the ids that z-lab's heads read if their file lists none: evenly spaced layers.

    >>> default_layer_ids(36, 5), default_layer_ids(8, 2), default_layer_ids(8, 1)
    ((2, 10, 18, 26, 34), (2, 6), (5,))
    """
    if head_layers == 1:
        return (target_layers // 2 + 1,)
    first, last = 1, target_layers - 3
    return tuple(round(first + index * (last - first) / (head_layers - 1)) + 1 for index in range(head_layers))


def _layers(path: Path, sizes: object, fields: NestedFields, target: Transformer) -> ModelConfig:
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
    kinds = sizes.get("layer_types") or fields.get("layer_types")
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


def _layer_ids(fields: NestedFields, target: Transformer, head_layers: int, *, speculators: bool) -> tuple[int, ...]:
    """Return hidden-state layer ids: `speculators` lists them, others list layers whose output is read, one less."""
    name = "aux_hidden_state_layer_ids" if speculators else "target_layer_ids"
    listed, layers = fields.get(name), len(target.weights.layers)
    if listed is None and not speculators:
        return default_layer_ids(layers, head_layers)
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
            if name.removeprefix(LEGACY_PREFIX).startswith(prefix):
                reason = f"expected a DFlash or DSpark head. Got {kind}: take another checkpoint."
                raise FormatError(folder, name, reason)


def _build_head(folder: Path, target: Transformer, config: DFlashConfig, tensors: TensorReader) -> DFlashHead:
    layers, hidden, width = config.layers, config.layers.hidden, target.config.hidden
    encoder = "encoder.fc.weight" in tensors
    fuse, norm = ("encoder.fc", "encoder.output_norm_enc") if encoder else ("fc", "hidden_norm")
    embedding, name = target.weights.embedding, "embed_tokens.weight"
    if name in tensors:  # may have a row for the mask token after those of the target
        embedding = tensors.get(name, (max(stored_rows(tensors, name), len(embedding)), hidden))
    prefixes = [f"layers.{number}" for number in range(layers.layers)]
    vocabulary = HeadVocabulary.read(folder, tensors, target)
    markov = _load_markov(folder, config, vocabulary, tensors)
    _check_confidence(config, tensors, 0 if markov is None else markov.rank)
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
        output=vocabulary.load_output(tensors, hidden),
        tokens=vocabulary.tokens,
        block_tokens=config.block_tokens,
        shifted=config.shifted,
        causal_layers=config.causal_layers,
        markov=markov,
    )


def _mask_embedding(folder: Path, config: DFlashConfig, embedding: Tensor, tensors: TensorReader) -> Tensor:
    """Return the embedding of a mask token: its own tensor, or a row of the embedding."""
    if "mask_embedding" in tensors:
        shape = tensors.shape("mask_embedding")
        if prod(shape) != config.layers.hidden:
            raise FormatError(folder, "mask_embedding", f"expected {config.layers.hidden} numbers. Got shape {shape}.")
        return tensors.get("mask_embedding", shape).flatten()
    token, last = config.mask_token, len(embedding) - 1
    if token is None:
        raise FormatError(folder / CONFIG, "mask_token_id", "expected the token of a mask. It is missing: add it.")
    if not 0 <= token <= last:
        raise FormatError(folder / CONFIG, "mask_token_id", f"expected a token from 0 to {last}. Got {token}.")
    return embedding[token]


def _load_markov(
    folder: Path, config: DFlashConfig, vocabulary: HeadVocabulary, tensors: TensorReader
) -> MarkovHead | None:
    """Return the Markov head; None without one."""
    prefix = f"{_name_prefix(tensors)}markov_head.markov"
    if not config.markov_rank and not any(name.startswith(prefix) for name in tensors):
        return None
    if config.markov_kind.lower() != VANILLA:
        reason = f"expected {VANILLA}. Got {config.markov_kind!r:.60}, which is not supported: take another checkpoint."
        raise FormatError(folder / CONFIG, "markov_head_type", reason)
    target_tokens = vocabulary.target.config.vocabulary
    first, second = f"{prefix}_w1.weight", f"{prefix}_w2.weight"
    rank = config.markov_rank or prod(tensors.shape(first)) // target_tokens
    output = vocabulary.spread(Linear(tensors.get(second, (vocabulary.tokens, rank))))
    return MarkovHead(tensors.get(first, (target_tokens, rank)), output)


def _check_confidence(config: DFlashConfig, tensors: TensorReader, markov_rank: int) -> None:
    """Check the tensors of a confidence head, which predicts the acceptance of a slot from its state and the token before."""
    name = f"{_name_prefix(tensors)}confidence_head.proj"
    inputs = config.layers.hidden + (markov_rank if config.confidence_reads_markov else 0)
    for stored, shape in ((f"{name}.weight", (1, inputs)), (f"{name}.bias", (1,))):
        if stored in tensors:
            tensors.get(stored, shape)


def _name_prefix(tensors: TensorReader) -> str:
    """Return what precedes the names of a Markov and a confidence head."""
    return LEGACY_PREFIX if any(name.startswith(LEGACY_PREFIX) for name in tensors) else ""
