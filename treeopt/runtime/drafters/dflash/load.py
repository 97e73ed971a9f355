"""Reads DFlash and DSpark heads in the layouts of z-lab, SpecForge, Model-Optimizer, DeepSpec, speculators and transformers.

The tensors determine the kind of head: one with tensors that this network does not have is refused.
"""

from dataclasses import replace
from math import prod
from pathlib import Path

from torch import Tensor

from treeopt.files.fields import Fields
from treeopt.runtime.drafters.dflash.head import DFlashHead, MarkovHead
from treeopt.runtime.drafters.head_files import HeadFolder, HeadVocabulary, stored_rows
from treeopt.runtime.models.config import ModelConfig, parse_sliding_layers
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
NESTED = "dflash_config"
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
    source = HeadFolder(folder, target, NESTED)
    source.refuse_kinds(OTHER_HEADS, "a DFlash or DSpark head", ignored=LEGACY_PREFIX)
    head = _build_head(source)
    source.check_all_read("a DFlash or DSpark head")
    return head


def _build_head(folder: HeadFolder) -> DFlashHead:
    target, tensors, sizes = folder.target, folder.tensors, _read_sizes(folder)
    hidden, layer_ids = sizes.hidden, _layer_ids(folder, sizes.layers)
    fuse, norm = ("fc", "hidden_norm")
    if "encoder.fc.weight" in tensors:
        fuse, norm = ("encoder.fc", "encoder.output_norm_enc")
    embedding, name = target.weights.embedding, "embed_tokens.weight"
    if name in tensors:  # may have a row for the mask token after those of the target
        embedding = tensors.get(name, (max(stored_rows(tensors, name), len(embedding)), hidden))
    prefixes = [f"layers.{number}" for number in range(sizes.layers)]
    vocabulary = HeadVocabulary.read(folder)
    markov = _load_markov(folder, vocabulary)
    _check_confidence(folder, hidden, 0 if markov is None else markov.rank)
    return DFlashHead(
        name=f"DFlash head {folder.path.name}",
        target=target,
        config=sizes,
        requested_states=RequestedStates(layer_ids=layer_ids, all_tokens=True),
        fuse=Linear(tensors.get(f"{fuse}.weight", (hidden, len(layer_ids) * target.config.hidden))),
        context_norm=tensors.get(f"{norm}.weight", (hidden,)),
        embedding=embedding,
        mask=_mask_embedding(folder, embedding),
        layers=tuple(folder.layer(sizes, prefix, hidden) for prefix in prefixes),
        input_norms=tuple(tensors.get(f"{prefix}.input_layernorm.weight", (hidden,)) for prefix in prefixes),
        norm=tensors.get("norm.weight", (hidden,)),
        output=vocabulary.load_output(tensors, hidden),
        tokens=vocabulary.tokens,
        block_tokens=_block_tokens(folder),
        shifted=_is_shifted(folder),
        causal_layers=_causal_layers(folder, sizes),
        markov=markov,
    )


def _read_sizes(folder: HeadFolder) -> ModelConfig:
    """Return the sizes of the head's layers, with sliding attention for those that `layer_types` lists."""
    for name, neutral in UNSUPPORTED.items():
        if folder.get(name) not in (None, neutral):
            reason = f"expected none. Got {folder.get(name)!r:.60}, which is not supported: take another checkpoint."
            raise folder.error(name, reason)
    sizes, config = folder.stored_sizes, folder.read_sizes()
    folder.check_size("hidden_size", config.hidden, folder.target.config.hidden)
    kinds = sizes.get("layer_types") or folder.get("layer_types")
    if kinds is None:
        return config
    fields = Fields(folder.config_path, sizes)
    sliding = parse_sliding_layers(fields, kinds, config.layers)
    window = fields.integer("sliding_window") if sliding else None
    return replace(config, sliding_layers=sliding, sliding_window=window)


def _block_tokens(folder: HeadFolder) -> int:
    size = folder.integer("block_size")
    if size is None or not 2 <= size <= MOST_BLOCK_TOKENS:
        raise folder.error("block_size", f"expected 2 to {MOST_BLOCK_TOKENS}, the root included. Got {size}.")
    return size


def _is_shifted(folder: HeadFolder) -> bool:
    """Return whether slots predict the next token: DeepSpec's, SpecForge's and speculators' DSpark unless a file denies it."""
    if folder.flag("shift_label"):
        return True
    from_anchor = folder.flag("sample_from_anchor")
    if from_anchor is not None:
        return from_anchor
    architectures = folder.get("architectures")
    if isinstance(architectures, list) and any(name in DSPARK_ARCHITECTURES for name in architectures):
        return True
    return "dspark" in (folder.get("speculators_model_type"), folder.get("projector_type"))


def _causal_layers(folder: HeadFolder, sizes: ModelConfig) -> frozenset[int]:
    """Return the layers in which a slot sees earlier slots only: all or none if a field decides, else the sliding ones.

    In transformers' own class, and in files of speculators that deny it, no layer is causal.
    """
    flags = [flag for flag in map(folder.flag, CAUSAL) if flag is not None]
    if flags:
        return frozenset(range(sizes.layers)) if any(flags) else frozenset()
    if folder.flag("sliding_window_non_causal") or folder.get("model_type") == TRANSFORMERS:
        return frozenset()
    return sizes.sliding_layers


def default_layer_ids(target_layers: int, head_layers: int) -> tuple[int, ...]:
    """Return the ids that z-lab's heads read if their file lists none: evenly spaced layers.

    >>> default_layer_ids(36, 5), default_layer_ids(8, 2), default_layer_ids(8, 1)
    ((2, 10, 18, 26, 34), (2, 6), (5,))
    """
    if head_layers == 1:
        return (target_layers // 2 + 1,)
    first, last = 1, target_layers - 3
    return tuple(round(first + index * (last - first) / (head_layers - 1)) + 1 for index in range(head_layers))


def _layer_ids(folder: HeadFolder, head_layers: int) -> tuple[int, ...]:
    """Return hidden-state layer ids, 0 the embedding."""
    name = "aux_hidden_state_layer_ids" if folder.speculators else "target_layer_ids"
    ids, layers = folder.layer_ids(name), len(folder.target.weights.layers)
    if ids is None and folder.speculators:
        raise folder.error(name, "expected a list of layers. Got None.")
    if ids is None:
        return default_layer_ids(layers, head_layers)
    if not all(0 <= layer_id <= layers for layer_id in ids) or len(set(ids)) < len(ids):
        lowest = 0 if folder.speculators else -1
        raise folder.error(
            name,
            f"expected layers from {lowest} to {layers + lowest}, each once, because {folder.target.name} has {layers}. "
            f"Got {folder.get(name)!s:.60}: take a head that was trained on this target.",
        )
    return ids


def _mask_embedding(folder: HeadFolder, embedding: Tensor) -> Tensor:
    """Return the embedding of a mask token: its own tensor, or a row of the embedding."""
    name, tensors = "mask_embedding", folder.tensors
    if name in tensors:
        shape = tensors.shape(name)
        if prod(shape) != embedding.shape[1]:
            raise folder.tensor_error(name, f"expected {embedding.shape[1]} numbers. Got shape {shape}.")
        return tensors.get(name, shape).flatten()
    return embedding[folder.mask_token(len(embedding))]


def _load_markov(folder: HeadFolder, vocabulary: HeadVocabulary) -> MarkovHead | None:
    """Return the Markov head; None without one."""
    tensors, stored_rank = folder.tensors, folder.integer("markov_rank")
    prefix = f"{_name_prefix(tensors)}markov_head.markov"
    if not stored_rank and not any(name.startswith(prefix) for name in tensors):
        return None
    kind = str(folder.get("markov_head_type") or VANILLA)
    if kind.lower() != VANILLA:
        reason = f"expected {VANILLA}. Got {kind!r:.60}, which is not supported: take another checkpoint."
        raise folder.error("markov_head_type", reason)
    target_tokens = folder.target.config.vocabulary
    first, second = f"{prefix}_w1.weight", f"{prefix}_w2.weight"
    rank = stored_rank or prod(tensors.shape(first)) // target_tokens
    output = vocabulary.spread(Linear(tensors.get(second, (vocabulary.tokens, rank))))
    return MarkovHead(tensors.get(first, (target_tokens, rank)), output)


def _check_confidence(folder: HeadFolder, hidden: int, markov_rank: int) -> None:
    """Check the tensors of a confidence head, which predicts the acceptance of a slot from its state and the token before."""
    tensors, name = folder.tensors, f"{_name_prefix(folder.tensors)}confidence_head.proj"
    inputs = hidden if folder.flag("confidence_head_with_markov") is False else hidden + markov_rank
    for stored, shape in ((f"{name}.weight", (1, inputs)), (f"{name}.bias", (1,))):
        if stored in tensors:
            tensors.get(stored, shape)


def _name_prefix(tensors: TensorReader) -> str:
    """Return what precedes the names of a Markov and a confidence head."""
    return LEGACY_PREFIX if any(name.startswith(LEGACY_PREFIX) for name in tensors) else ""
