"""A pass that can be captured as a graph: its tensors, and the models that run it."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from treeopt.runtime.models.attention import BatchedAttention, slots_by_head
from treeopt.runtime.models.model import ForwardModel, Output, RequestedStates
from treeopt.runtime.models.padded_batch import PaddedBatch


class PaddedPass(NamedTuple):
    """A pass over the first sequences of a store, each padded to the same number of rows.

    A replayed graph repeats the operations of the capture on these tensors, whose contents differ by then.  So a pass
    must not read them on the host, and what it takes from the host may depend on `batch` alone.
    """

    store: Any
    """Keys and values of the sequences; each has one more slot than its capacity, to which padding is written."""
    batch: PaddedBatch
    tokens: Tensor
    """int64 (rows,), sequence after sequence; on rows of padding any token."""
    positions: Tensor
    """int64 (rows,); 0 on rows of padding."""
    slots: Tensor
    """int64 (rows,): where each row writes its keys and values, in the slots of its sequence."""
    sequence: Tensor
    """int64 (rows,): index of each row's sequence in the store."""
    lengths: Tensor
    """int64 (sequences,): committed tokens; 0 for sequences that the pass leaves out."""
    mask: Tensor
    """Additive attention mask (sequences, 1, tokens, kv_length)."""
    features: Tensor | None
    """(rows, width): what a drafter's head reads along with the tokens; rows without features hold earlier ones."""

    def attention(self) -> BatchedAttention:
        """Return the attention over a `KVStore`."""
        return BatchedAttention(
            self.store,
            self.store.rotations[self.positions],
            self.batch,
            slots=slots_by_head(self.store, self.sequence, self.slots),
            mask=self.mask,
        )


class CapturableModel(ForwardModel, Protocol):
    """A model whose passes can be captured, unless its `captures` is False."""

    captures: bool

    def run_padded(self, padded: PaddedPass, requested_states: RequestedStates) -> Output:
        """Return logits and states of all rows, padding included."""
