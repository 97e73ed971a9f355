"""A GGUF model run by llama.cpp: one pass takes whole trees of several sequences, with a sequence id per leaf."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int32
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.runtime.models.gguf.cache import GGUFCache, SequenceIds
from treeopt.runtime.models.gguf.file import GGUFFile, GGUFSizes
from treeopt.runtime.models.gguf.library import Context, Handle, max_sequence_ids
from treeopt.runtime.models.model import NO_STATES, HiddenStates, Output, Outputs, RequestedStates, SequenceInput
from treeopt.runtime.models.padded_batch import compute_positions, last_outputs, run_by_store
from treeopt.runtime.models.tree_check import EXACT, ROUNDED, check_tree_mask

EXACT_DTYPE = "f32"
SHARED_CACHES = 4
"""Most caches in one context: they share its sequence ids, and each sequence attends over the cells of all.  With 8 caches
of the bundled pair, prefill took longer than steps gained; measured by `benchmarks/batches.py --runner llama.cpp`."""


class GGUFModel:
    """A loaded file as a `treeopt.runtime.models.model.LanguageModel`; logits are float32, on the CPU."""

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, handle: Handle, sizes: GGUFSizes, *, name: str) -> None:
        self.name = name
        self.config = sizes
        self.parameters = handle.parameters
        self.weight_bytes = handle.weight_bytes
        self._handle = handle
        self._exact = sizes.weight_dtype == EXACT_DTYPE

    def new_caches(self, capacity: int, sequences: int) -> list[GGUFCache]:
        """Return empty caches for `capacity` tokens each, up to `SHARED_CACHES` in one context."""
        most, caches = max_sequence_ids(), list[GGUFCache]()
        while len(caches) < sequences:
            count = min(sequences - len(caches), SHARED_CACHES)
            context, ids = self._make_context(capacity * count, most), SequenceIds(most, count)
            caches += [GGUFCache(context, capacity, ids) for _ in range(count)]
        return caches

    def cache_bytes(self, capacity: int) -> int:
        return (4 if self._exact else 2) * self._handle.cached_numbers * capacity

    def pass_bytes(self, tokens: int) -> int:  # noqa: ARG002
        return 0  # unknown

    def prefill(
        self, tokens: Tensor, cache: GGUFCache, requested_states: RequestedStates = NO_STATES
    ) -> HiddenStates | None:
        """Commit a prompt, int64 (n,), to an empty cache; raises InvalidValueError if hidden states are requested."""
        self._refuse_states(requested_states)
        cache.clear()
        length = len(tokens)
        if length:
            ids = np.full(length, cache.committed.id, np.int32)
            positions = np.arange(length, dtype=np.int32)
            cache.store.run(_to_int32(tokens), positions, np.ones_like(ids), ids, logits=False)
            cache.commit_prefill(length)
        return None

    def forward(
        self,
        inputs: Sequence[SequenceInput],
        requested_states: RequestedStates = NO_STATES,
        *,
        last_only: bool = False,
    ) -> Outputs:
        """Return logits of tokens after the committed ones.

        Raises InvalidValueError for a mask that is not of a tree, for more leaves than llama.cpp has sequence ids, and if
        hidden states are requested.
        """
        self._refuse_states(requested_states)
        outputs = run_by_store(inputs, _run)
        return last_outputs(outputs) if last_only else outputs

    def reference_logits(self, sequences: Tensor) -> Tensor:
        """Return logits (batch, n, V) of sequences, int64 (batch, n), each alone in a context with one sequence id."""
        count = sequences.shape[1]
        context = self._make_context(count, 1)
        logits = []
        for row in _to_int32(sequences):
            context.clear()
            positions, ids = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
            logits.append(context.run(row, positions, np.ones_like(ids), ids, logits=True))
        return torch.stack(logits)

    def _make_context(self, capacity: int, sequences: int) -> Context:
        return Context(self._handle, capacity, sequences=sequences, exact=self._exact)

    def _refuse_states(self, requested_states: RequestedStates) -> None:
        if requested_states.any:
            raise InvalidValueError(
                f"{self.name}: expected a drafter without hidden states, because a GGUF model returns none. "
                "Got one that reads them: take a draft model, or the target's folder in Hugging Face layout."
            )


def load_gguf(file: GGUFFile | Path | str) -> GGUFModel:
    """Load a file, and check with a small tree that tree passes equal path-by-path passes.

    Raises TreeoptError, in one line, if the model cannot be loaded or cannot take a tree.
    """
    gguf = file if isinstance(file, GGUFFile) else GGUFFile(file)
    sizes = gguf.sizes
    handle = Handle(gguf.path, only_vocabulary=False)
    if handle.has_recurrent_state:
        raise TreeoptError(
            f"{gguf.name}: cannot take a tree: it keeps a recurrent state, or has an encoder. "
            "Use a model whose layers are all causal attention."
        )
    model = GGUFModel(handle, sizes, name=gguf.name)
    check_tree_mask(model, tolerance=EXACT if sizes.weight_dtype == EXACT_DTYPE else ROUNDED)
    return model


def _run(inputs: Sequence[SequenceInput]) -> Outputs:
    """Return the outputs of sequences in one context."""
    node_ids = [sequence.cache.assign_ids(sequence.nodes.visible, sequence.nodes.start) for sequence in inputs]
    counts, ids = zip(*(nodes.ids() for nodes in node_ids), strict=True)
    tokens = torch.cat([sequence.tokens for sequence in inputs])
    positions = compute_positions(inputs).astype(np.int32)
    logits = inputs[0].cache.store.run(
        _to_int32(tokens), positions, np.concatenate(counts), np.concatenate(ids), logits=True
    )
    for nodes in node_ids:
        nodes.mark_stored()
    return Outputs(Output(logits), [sequence.nodes.rows for sequence in inputs])


def _to_int32(values: Tensor) -> Int32:
    array: Int32 = values.to(torch.int32).numpy()
    return array
