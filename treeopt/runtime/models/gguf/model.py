"""A GGUF model run by llama.cpp: whole trees, of several texts too, in one pass, each leaf a sequence of its own."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeopt.arrays import Bool, Int32
from treeopt.errors import InvalidValueError
from treeopt.runtime.models.gguf.cache import GGUFCache
from treeopt.runtime.models.gguf.context import Context, most_sequences
from treeopt.runtime.models.gguf.file import Sizes
from treeopt.runtime.models.gguf.handle import Handle
from treeopt.runtime.models.gguf.sequences import Placed, SequenceIds
from treeopt.runtime.models.model import NOTHING, Output, RaggedOutputs, States, TextRows, Wants
from treeopt.runtime.models.ragged_grid import positions_of
from treeopt.runtime.models.together import run_by_memory

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

    def new_cache(self, capacity: int, batch_size: int = 1) -> GGUFCache:
        """Return an empty cache for `capacity` tokens of each text, tree nodes included."""
        most = most_sequences()
        context = self._context(capacity * batch_size, most)
        return GGUFCache(context, capacity, batch_size, SequenceIds(most, batch_size))

    def new_caches(self, capacity: int, texts: int) -> list[GGUFCache]:
        """Return empty caches for `capacity` tokens of one text each; up to `SHARED_TEXTS` lie in one context."""
        most, caches = most_sequences(), list[GGUFCache]()
        while len(caches) < texts:
            count = min(texts - len(caches), SHARED_TEXTS)
            context, ids = self._context(capacity * count, most), SequenceIds(most, count)
            caches += [GGUFCache(context, capacity, 1, ids) for _ in range(count)]
        return caches

    def cache_bytes(self, capacity: int, batch_size: int = 1) -> int:
        """Return the bytes of keys and values in a cache for `capacity` tokens of each text."""
        return (4 if self._exact else 2) * self._handle.cached_numbers * capacity * batch_size

    def pass_bytes(self, tokens: int) -> int:  # noqa: ARG002
        """Return 0: what a pass takes is not known."""
        return 0

    def prefill(self, tokens: Tensor, cache: GGUFCache, wants: Wants = NOTHING) -> States | None:
        """Commit a text, int64 (n,) or (batch, n), to an empty cache.

        Raises InvalidValueError where hidden states are wanted.
        """
        self._refuse_states(wants)
        cache.clear()
        length = tokens.shape[-1]
        if length:
            for text, row in enumerate(_int32(tokens.reshape(-1, length))):
                ids = np.full(length, cache.texts[text].text.id, np.int32)
                cache.context.run(row, np.arange(length, dtype=np.int32), np.ones_like(ids), ids, logits=False)
                cache.texts[text].text.held = length
        cache.lengths[:] = [length] * len(cache.lengths)
        return None

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: GGUFCache,
        mask: Tensor | None,
        *,
        start: int = 0,
        wants: Wants = NOTHING,
    ) -> Output:
        """Return logits, tokens.shape + (V,), of tokens that stand behind the committed ones.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text.
            cache: its length does not change.
            mask: (n, length + start + n), 0 where a token sees another, as in a tree; None when each sees every slot.
            start: tree nodes that were fed before in this step.
            wants: none.

        Raises InvalidValueError for a mask that is not of a tree, for more leaves than llama.cpp has sequences, and
        where hidden states are wanted.
        """
        self._refuse_states(wants)
        placed = cache.place(_visible(mask, tokens.shape[-1], cache.length, start), start)
        logits = _run(cache.context, tokens.flatten(), np.tile(_int32(positions), len(placed)), placed)
        return Output(logits.view(*tokens.shape, -1))

    def forward_ragged(self, parts: Sequence[TextRows], wants: Wants = NOTHING) -> list[Output]:
        """Return what `forward` does of each text; from one pass for those whose caches lie in one context."""
        self._refuse_states(wants)
        return run_by_memory(parts, lambda part: part.cache.context, self._together)

    def _together(self, parts: Sequence[TextRows]) -> list[Output]:
        """Return the outputs of texts in one context."""
        placed, sizes = list[Placed](), [len(part.depth) for part in parts]
        for part, size in zip(parts, sizes, strict=True):
            everything = np.ones((size, part.start + size), np.bool_)
            placed += part.cache.place(everything if part.visible is None else part.visible, part.start)
        tokens, positions = torch.cat([part.tokens for part in parts]), positions_of(parts).astype(np.int32)
        return RaggedOutputs(Output(_run(parts[0].cache.context, tokens, positions, placed)), sizes)

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


def _run(context: Context, tokens: Tensor, positions: Int32, placed: Sequence[Placed]) -> Tensor:
    """Return the logits (n, V) after tokens, int64 (n,), of which those of each text were placed."""
    counts, ids = zip(*(each.ids() for each in placed), strict=True)
    found = context.run(_int32(tokens), positions, np.concatenate(counts), np.concatenate(ids), logits=True)
    for each in placed:
        each.stored()
    assert found is not None  # they were asked for
    return found


def _visible(mask: Tensor | None, rows: int, length: int, start: int) -> Bool:
    """Return which nodes, fed before or now, each may attend to."""
    if mask is None:
        return np.ones((rows, start + rows), np.bool_)
    found: Bool = (mask[:, length:] == 0).numpy()
    return found


def _int32(values: Tensor) -> Int32:
    found: Int32 = values.to(torch.int32).numpy()
    return found
