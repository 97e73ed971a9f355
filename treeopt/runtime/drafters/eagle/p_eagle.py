"""P-EAGLE: an EAGLE-3 head that drafts all depths in one pass (arXiv 2602.01469).

The root's slot and those before it are an EAGLE head's.  The slots of deeper levels follow, each at the next position:
they read the embedding of a mask token, and a trained vector in place of the target's hidden states.  Attention is
causal, so a slot does not depend on deeper ones, and a pass over fewer levels predicts the same.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from treeopt.errors import TreeoptWarning
from treeopt.runtime.drafters.drafter import Proposal
from treeopt.runtime.drafters.eagle.head import EagleHead, EagleSequence, StateFusion
from treeopt.runtime.drafters.eagle.load import MASK_HIDDEN, NESTED, EagleLoader
from treeopt.runtime.drafters.head_files import HeadFolder
from treeopt.runtime.drafters.heads import marginal_filler
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter
from treeopt.runtime.models.model import HiddenStates, SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.runner import Runner, make_graph_pool
from treeopt.runtime.models.transformer import Transformer
from treeopt.trees import TokenTree

DEFAULT_LEVELS = 8
"""Levels that speculators trains by default."""
MOST_LEVELS = 1024
MASK_TOKEN = ("mask_token_id", "pard_token", "ptd_token_id")
"""Fields with the mask token, the first that a file has."""


@dataclass(frozen=True, kw_only=True)
class PEagleHead(EagleHead):
    """An EAGLE head with slots for deeper levels; `load_p_eagle` reads it from a folder."""

    levels: int
    """Levels that were trained, each with one draft token."""
    mask_token: int
    mask_input: Tensor
    """(1, hidden): what the slots of deeper levels read in place of the target's hidden states, fused."""

    def mask_slots(self, count: int) -> tuple[Tensor, Tensor]:
        """Return inputs (count, hidden) and mask tokens, int64 (count,), of slots of deeper levels."""
        tokens = torch.full((count,), self.mask_token, device=self.device)
        return self.mask_input.expand(count, -1), tokens

    def append_masks(self, slots: SequenceInput, levels: int) -> SequenceInput:
        """Return the slots up to a root, and those of the other levels below it, as one causal pass."""
        assert slots.features is not None  # an EAGLE head's slots have them
        inputs, tokens = self.mask_slots(levels - 1)
        return SequenceInput(
            slots.cache,
            torch.cat([slots.tokens, tokens]),
            PassNodes.chain(slots.nodes.rows + levels - 1),
            torch.cat([slots.features, inputs]),
        )


class PEagleDrafter(SequenceDrafter[EagleSequence]):
    """Drafts a static tree in one pass: the node of depth d and rank r has the r-th most likely token at d.

    The pass has a slot for each level of the tree, and those of the tokens that the last step accepted, now with
    the target's hidden states.  Arguments are those of `treeopt.runtime.drafters.dflash.DFlashDrafter`.

    Raises InvalidValueError for a tree with more levels than the head was trained for, or more children of a node than
    it predicts tokens, OutOfMemoryError for a cache that does not fit into memory.
    """

    def __init__(self, head: PEagleHead, tree: TokenTree, *, capacity: int, cuda_graphs: bool | None = None) -> None:
        self.head = head
        self.requested_states = head.requested_states
        self.max_tokens = tree.nodes
        self.capacity = capacity
        most_slots = 2 * head.levels  # the root, all levels accepted before it, and the other levels after it
        self._runner = Runner(head, max_nodes=most_slots, pool=make_graph_pool(head.device, cuda_graphs))
        super().__init__(partial(head.new_sequences, capacity, head.levels))
        self.change_tree(tree)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft another tree, of at most `max_tokens` nodes, from the next step on."""
        self._fill_tree = marginal_filler(self.head, tree)
        self.tree = tree

    def _fill(self, sequences: Sequence[EagleSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:  # noqa: ARG002
        levels = max(1, self.tree.max_depth)
        inputs = [self.head.append_masks(slots, levels) for slots in EagleSequence.feed_roots(sequences)]
        outputs = self._runner.forward(inputs)
        for sequence in sequences:
            sequence.commit_pending()
        logits = torch.stack([output.logits[-levels:] for output in outputs])
        return self._fill_tree([sequence.root for sequence in sequences], logits)


def load_p_eagle(folder: Path | str, target: Transformer, *, layer_ids: tuple[int, ...] | None = None) -> PEagleHead:
    """Read a head in the layout of speculators, SpecForge or NeMo AutoModel: an EAGLE-3 head with `mask_hidden`.

    Arguments and errors are those of `load_eagle`; a head without `mask_hidden` raises FormatError.
    """
    source = HeadFolder(folder, target, NESTED)
    if MASK_HIDDEN not in source.tensors:
        raise source.tensor_error(
            MASK_HIDDEN,
            "expected a P-EAGLE head. This tensor is missing: load an EAGLE head with --drafter eagle=DIR, or take "
            "another checkpoint.",
        )
    eagle = EagleLoader(source).load(layer_ids)
    network = {field.name: getattr(eagle, field.name) for field in fields(eagle)}
    head = PEagleHead(
        **{**network, "name": f"P-EAGLE head {source.path.name}"},
        levels=_read_levels(source),
        mask_token=source.mask_token(len(eagle.embedding), MASK_TOKEN),
        mask_input=_fuse_mask(source, eagle.fuse),
    )
    source.check_all_read("a P-EAGLE head")
    return head


def _read_levels(folder: HeadFolder) -> int:
    """Return the levels of the training; a file without them has the default, with a warning."""
    for name, levels in _stored_levels(folder.content):
        if type(levels) is not int or not 1 <= levels <= MOST_LEVELS:
            raise folder.error(name, f"expected 1 to {MOST_LEVELS} draft tokens. Got {levels!r:.60}.")
        return levels
    warnings.warn(
        TreeoptWarning(
            f"{folder.config_path}: num_depths: is missing, and is taken as {DEFAULT_LEVELS}, the default of speculators. "
            "If the head was trained with another number of draft tokens, add it."
        ),
        stacklevel=3,
    )
    return DEFAULT_LEVELS


def _stored_levels(content: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the fields that contain the levels: `num_depths`, or `speculative_tokens` of speculators' first proposal."""
    if content.get("num_depths") is not None:
        yield "num_depths", content["num_depths"]
    outer = content.get("speculators_config")
    proposals = outer.get("proposal_methods") if isinstance(outer, dict) else None
    if isinstance(proposals, list) and proposals and isinstance(proposals[0], dict):
        yield "speculators_config.proposal_methods[0].speculative_tokens", proposals[0].get("speculative_tokens")


def _fuse_mask(folder: HeadFolder, fuse: StateFusion) -> Tensor:
    """Return `mask_hidden` as the head reads it, (1, hidden)."""
    count, width = len(fuse.requested_states.layer_ids), folder.target.config.hidden
    shape, size = folder.tensors.shape(MASK_HIDDEN), max(1, count) * width
    if prod(shape) != size:
        reason = f"expected {size} numbers, as many as the target's hidden states. Got shape {shape}."
        raise folder.tensor_error(MASK_HIDDEN, reason)
    vector = folder.tensors.get(MASK_HIDDEN, shape).reshape(1, size)
    layers: Sequence[Tensor] = vector.split(width, -1)
    with torch.inference_mode():
        return fuse(HiddenStates(tuple(layers), None) if count else HiddenStates((), vector))
