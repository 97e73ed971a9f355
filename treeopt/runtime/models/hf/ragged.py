"""A model of transformers in one pass over several texts of unlike lengths: a row of the batch for each text.

Weights are read once for all of them.  Nothing that is committed moves or is padded: new keys and values are written to
each text's own slots, and attention goes over as many slots of every text as the longest has, those behind a shorter one
hidden by the mask.  Where texts have unlike numbers of new tokens, rows are filled up with tokens that nobody reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from treeopt.runtime.models.hf.cache import AdapterCache, LayerStore, LayerStores, StoredLayer
from treeopt.runtime.models.hf.model import AdapterModel
from treeopt.runtime.models.model import NOTHING, Output, RaggedOutputs, TextRows, Wants
from treeopt.runtime.models.ragged_grid import Grid, Span, mask_of, places_in, positions_of
from treeopt.runtime.models.together import run_by_memory


class RaggedAdapter(AdapterModel):
    """An `AdapterModel` that reads several texts in one pass, see `treeopt.runtime.models.hf.ragged_check`."""

    def new_caches(self, capacity: int, texts: int) -> list[AdapterCache]:
        """Return empty caches for `capacity` tokens of one text each, which lie side by side."""
        return self.new_cache(capacity, texts).texts()

    @torch.inference_mode()
    def forward_ragged(self, parts: Sequence[TextRows], wants: Wants = NOTHING) -> list[Output]:
        """Return what `forward` does of each text; from one pass for those whose caches lie side by side."""
        return run_by_memory(parts, lambda part: part.cache.stores, partial(self._together, wants=wants))

    def _together(self, parts: Sequence[TextRows], *, wants: Wants) -> list[Output]:
        """Return the outputs of texts whose caches lie side by side."""
        rows = sorted(part.cache.place for part in parts)
        spans = [Span.of(part, rows.index(part.cache.place)) for part in parts]
        grid = Grid.of(spans)
        in_grid, token_at = places_in(grid, spans, self.device)
        positions = torch.from_numpy(positions_of(parts)).to(self.device).clamp_(max=self.config.max_positions - 1)
        tokens = torch.cat([part.tokens for part in parts])
        if token_at is not None:
            tokens, positions = tokens[token_at], positions[token_at]
        shape = grid.texts, grid.tokens
        output = self._model(
            input_ids=tokens.view(shape),
            attention_mask=self._masks(self._ragged_mask(grid, spans)),
            position_ids=positions.view(shape),
            past_key_values=RaggedCache(parts[0].cache.stores, RaggedSlots.of(parts, spans, rows, in_grid), grid),
            use_cache=True,
            return_dict=True,
            **self._asked(wants),
        )

        def of_tokens(values: Tensor) -> Tensor:
            flat = values.to(self.device).flatten(0, 1)
            return flat if in_grid is None else flat[in_grid]

        states = self._states(output, wants).mapped(of_tokens) if wants.any else None
        return RaggedOutputs(Output(of_tokens(output.logits), states), [span.tokens for span in spans])

    def _ragged_mask(self, grid: Grid, spans: Sequence[Span]) -> Tensor:
        """Return the mask (texts, 1, tokens, extent); a model left to itself would hide later tokens from earlier ones."""
        mask = mask_of(grid, spans, dtype=self.dtype, device=self.device)
        if mask is None:
            mask = torch.zeros((1, 1, 1, 1), dtype=self.dtype, device=self.device)
        return mask.expand(grid.texts, 1, grid.tokens, grid.extent)


@dataclass(frozen=True, slots=True)
class RaggedSlots:
    """Where the tokens of several texts are written, one text after the other."""

    texts: slice | Tensor
    """Places in the cache of the texts in the pass, in rising order."""
    text: Tensor
    """int64 (tokens,): the place of each token's text."""
    slot: Tensor
    """int64 (tokens,)."""
    in_grid: Tensor | None
    """int64 (tokens,): the place of each among the rows of the pass; None where they are these rows."""

    @classmethod
    def of(
        cls, parts: Sequence[TextRows], spans: Sequence[Span], places: Sequence[int], in_grid: Tensor | None
    ) -> "RaggedSlots":
        """Return those of some texts, whose places in the cache are given in rising order."""
        side_by_side = places[-1] - places[0] == len(places) - 1
        return cls(
            slice(places[0], places[-1] + 1) if side_by_side else torch.tensor(places),
            torch.tensor([part.cache.place for part, span in zip(parts, spans, strict=True) for _ in span.slots]),
            torch.tensor([slot for span in spans for slot in span.slots]),
            in_grid,
        )

    def write(self, entries: Tensor, new: Tensor, extent: int) -> Tensor:
        """Write what a pass brings, (texts, heads, n, size), and return so many slots of its texts."""
        rows = new.transpose(1, 2).flatten(0, 1)  # (texts * n, heads, size)
        if self.in_grid is not None:
            rows = rows[self.in_grid.to(rows.device)]
        entries[self.text.to(entries.device), :, self.slot.to(entries.device)] = rows
        return entries[self.texts, :, :extent]


class RaggedLayer(StoredLayer):
    """The slots of several texts in one pass."""

    def __init__(self, store: LayerStore, slots: RaggedSlots, grid: Grid) -> None:
        super().__init__(store, grid.extent - grid.tokens)
        self._texts, self._extent = slots, grid.extent

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values behind each text; return those of as many slots of each as the longest has."""
        self.lazy_initialization(key_states, value_states)
        keys, values = (
            self._texts.write(entries, new, self._extent)
            for entries, new in zip(self.store.entries, (key_states, value_states), strict=True)
        )
        return keys, values


class RaggedCache(Cache):
    """Caches of several texts as the one cache that a pass over all of them asks for."""

    def __init__(self, stores: LayerStores, slots: RaggedSlots, grid: Grid) -> None:
        numbers = count()
        super().__init__(
            layer_class_to_replicate=lambda: RaggedLayer(stores.layer(next(numbers)), slots, grid)  # type: ignore[arg-type]
        )
