"""A GGUF model run by llama.cpp: whole trees, of several texts too, in one pass, each leaf a sequence of its own."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Int32
from treeopt.errors import InvalidValueError
from treeopt.runtime.models.gguf.cache import GGUFCache
from treeopt.runtime.models.gguf.context import Context, most_sequences
from treeopt.runtime.models.gguf.file import Sizes
from treeopt.runtime.models.gguf.handle import Handle
from treeopt.runtime.models.gguf.sequences import SequenceIds
from treeopt.runtime.models.grid import last_outputs, positions_of, run_by_memory
from treeopt.runtime.models.model import NOTHING, Feed, Output, Outputs, States, Wants

EXACT_FORMAT = "f32"
SHARED_TEXTS = 4
"""Most texts in one context, because attention of each goes over the cells of all, and they share its sequences: with 8
texts of the bundled pair in one, prompts took longer than steps gained; see `benchmarks/batches.py --runner llama.cpp`."""


class GGUFModel:
    """A loaded file as a `treeopt.runtime.models.model.LanguageModel`; logits are float32, on the CPU.

    Args:
        handle: the loaded weights.
        sizes: what decoding must know of them.
        name: what it is called in reports and errors.
    """

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, handle: Handle, sizes: Sizes, *, name: str) -> None:
        self.name = name
        self.config = sizes
        self.parameters = handle.parameters
        self._handle = handle
        self._exact = sizes.number_format == EXACT_FORMAT

    def new_caches(self, capacity: int, sequences: int) -> list[GGUFCache]:
        """Return empty caches for `capacity` tokens each, tree nodes included; up to `SHARED_TEXTS` lie in one context."""
        most, caches = most_sequences(), list[GGUFCache]()
        while len(caches) < sequences:
            count = min(sequences - len(caches), SHARED_TEXTS)
            context, ids = self._context(capacity * count, most), SequenceIds(most, count)
            caches += [GGUFCache(context, capacity, ids) for _ in range(count)]
        return caches

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for so many tokens."""
        return (4 if self._exact else 2) * self._handle.cached_numbers * capacity

    def pass_bytes(self, tokens: int) -> int:  # noqa: ARG002
        """Return 0: what a pass takes is not known."""
        return 0

    def prefill(self, tokens: Tensor, cache: GGUFCache, wants: Wants = NOTHING) -> States | None:
        """Commit a text, int64 (n,), to an empty cache; raises InvalidValueError where hidden states are wanted."""
        self._refuse_states(wants)
        cache.clear()
        length = len(tokens)
        if length:
            ids = np.full(length, cache.sequences.text.id, np.int32)
            places = np.arange(length, dtype=np.int32)
            cache.context.run(_int32(tokens), places, np.ones_like(ids), ids, logits=False)
            cache.commit_read(length)
        return None

    def forward(self, feeds: Sequence[Feed], wants: Wants = NOTHING, *, last_only: bool = False) -> Outputs:
        """Return logits of tokens after the committed ones of their sequences; see `LanguageModel`.

        Raises InvalidValueError for a mask that is not of a tree, for more leaves than llama.cpp has sequences, and
        where hidden states are wanted.
        """
        self._refuse_states(wants)
        outputs = run_by_memory(feeds, lambda feed: id(feed.cache.context), _run)
        return last_outputs(outputs) if last_only else outputs

    def text_logits(self, texts: Tensor) -> Tensor:
        """Return logits (batch, n, V) of texts, int64 (batch, n), each alone in a context of one sequence."""
        count = texts.shape[1]
        context = self._context(count, 1)
        found = []
        for row in _int32(texts):
            context.clear()
            places, ids = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
            found.append(context.run(row, places, np.ones_like(ids), ids, logits=True))
        return torch.stack([each for each in found if each is not None])

    def _context(self, capacity: int, sequences: int) -> Context:
        return Context(self._handle, capacity, sequences=sequences, exact=self._exact)

    def _refuse_states(self, wants: Wants) -> None:
        if wants.any:
            raise InvalidValueError(
                f"{self.name}: expected a drafter without hidden states, because a GGUF model tells none. "
                "Got one that wants them: take a draft model, or the target's folder in Hugging Face layout."
            )


def _run(feeds: Sequence[Feed]) -> Outputs:
    """Return the outputs of sequences in one context."""
    placed = [feed.cache.place(feed.nodes.visible, feed.nodes.start) for feed in feeds]
    counts, ids = zip(*(each.ids() for each in placed), strict=True)
    tokens, positions = torch.cat([feed.tokens for feed in feeds]), positions_of(feeds).astype(np.int32)
    logits = feeds[0].cache.context.run(
        _int32(tokens), positions, np.concatenate(counts), np.concatenate(ids), logits=True
    )
    assert logits is not None  # they were asked for
    for each in placed:
        each.stored()
    return Outputs(Output(logits), [feed.nodes.rows for feed in feeds])


def _int32(values: Tensor) -> Int32:
    found: Int32 = values.to(torch.int32).numpy()
    return found
