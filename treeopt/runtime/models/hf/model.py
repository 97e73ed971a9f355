"""A causal language model of transformers, run with a tree mask, positions and a cache of slots.

A pass over several sequences is a batch with a row for each: weights are read once for all of them. Nothing that is
committed moves or is padded: new keys and values are written to each sequence's own slots, and attention goes over as many
slots of each as the longest has, those after a shorter one hidden by the mask. Where sequences have different numbers of
new tokens, rows are padded with tokens that nobody reads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from treeopt.runtime.models.grid import Grid, Span, last_outputs, mask_of, places_in, positions_of, run_by_memory
from treeopt.runtime.models.hf.cache import AdapterCache, AdapterStore, PassCache, PassSlots
from treeopt.runtime.models.hf.sizes import sizes_of
from treeopt.runtime.models.model import (
    NOTHING,
    Feed,
    Output,
    Outputs,
    States,
    Wants,
    check_boundaries,
    concatenate_outputs,
    feed_text,
    joined,
    prefill_in_chunks,
)
from treeopt.runtime.models.nodes import hide_before_window


class AdapterModel:
    """Any `PreTrainedModel` with a language head as a `treeopt.runtime.models.model.LanguageModel`.

    It is set to evaluation and otherwise left as it is: quantised, offloaded or split over devices.

    Args:
        model: the loaded model; `treeopt.runtime.models.hf.tree_check` tells whether it can take a tree mask.
        name: what it is called in reports and errors.

    Raises TreeoptError for a model that cannot go back to an earlier text or whose longest text is not known.
    """

    notes: tuple[str, ...] = ()
    """What a user should know of how it runs: predicates of sentences."""
    batches = True
    """Whether one pass reads several sequences; see `treeopt.runtime.models.hf.batch_check`."""

    def __init__(self, model: Any, *, name: str) -> None:
        self.name = name
        self.config = sizes_of(model, name)
        self.parameters = self.config.parameters
        self.dtype: torch.dtype = model.dtype
        self.device = _input_device(model)
        self._model = model.eval()

    @property
    def places(self) -> tuple[str, ...]:
        """Where its weights lie, such as `cpu` and `disk`; empty where nobody placed them."""
        return tuple(dict.fromkeys(str(place) for place in getattr(self._model, "hf_device_map", {}).values()))

    def new_caches(self, capacity: int, sequences: int) -> list[AdapterCache]:
        """Return empty caches for `capacity` tokens each, tree nodes included; they lie side by side."""
        return AdapterStore(sequences, capacity).caches()

    def cache_bytes(self, capacity: int) -> int:
        """Return the bytes of a cache for so many tokens; 0 where the configuration has no usual attention sizes."""
        return self.dtype.itemsize * self.config.cached_numbers * capacity

    def pass_bytes(self, tokens: int) -> int:  # noqa: ARG002
        """Return 0: what a pass takes is not known."""
        return 0

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, cache: AdapterCache, wants: Wants = NOTHING) -> States | None:
        """Commit a text, int64 (n,), to an empty cache; see `LanguageModel`."""
        return prefill_in_chunks(tokens, cache, partial(self._read_chunk, cache=cache, wants=wants), wants)

    def _read_chunk(self, chunk: Tensor, *, cache: AdapterCache, wants: Wants) -> States | None:
        """Read tokens after the committed ones without computing logits."""
        span = Span.of(feed_text(cache, chunk), 0)
        slots = PassSlots.of([cache.place], [span], Grid.of([span]), None)
        positions = torch.arange(cache.length, cache.length + len(chunk), device=self.device)
        output = self._model.base_model(  # without the head
            input_ids=chunk[None],
            position_ids=positions[None],
            past_key_values=PassCache(cache.store, slots),
            use_cache=True,
            **self._requested(wants),
        )
        return self._states(output, wants).mapped(lambda states: states[0]) if wants.any else None

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Feed], wants: Wants = NOTHING, *, last_only: bool = False) -> Outputs:
        """Return logits and states of tokens after the committed ones of their sequences; see `LanguageModel`.

        Positions past the longest text count as its last one. Raises InvalidValueError for states of layers that the
        model does not have.
        """
        if len(feeds) > 1 and not self.batches:
            outputs = concatenate_outputs([self._run([feed], wants=wants) for feed in feeds])
        else:
            outputs = run_by_memory(feeds, lambda feed: id(feed.cache.store), partial(self._run, wants=wants))
        return last_outputs(outputs) if last_only else outputs

    def _run(self, feeds: Sequence[Feed], *, wants: Wants) -> Outputs:
        """Return the outputs of sequences whose caches lie side by side."""
        rows = sorted(feed.cache.place for feed in feeds)
        places = [feed.cache.place for feed in feeds]
        spans = [Span.of(feed, rows.index(place)) for feed, place in zip(feeds, places, strict=True)]
        grid = Grid.of(spans)
        in_grid, token_at = places_in(grid, spans, self.device)
        positions = torch.from_numpy(positions_of(feeds)).to(self.device).clamp_(max=self.config.max_positions - 1)
        tokens = joined([feed.tokens for feed in feeds])
        if token_at is not None:
            tokens, positions = tokens[token_at], positions[token_at]
        shape = grid.sequences, grid.tokens
        output = self._model(
            input_ids=tokens.view(shape),
            attention_mask=self._mask(feeds, grid, spans),
            position_ids=positions.view(shape),
            past_key_values=PassCache(feeds[0].cache.store, PassSlots.of(places, spans, grid, in_grid)),
            use_cache=True,
            return_dict=True,
            **self._requested(wants),
        )

        def of_tokens(values: Tensor) -> Tensor:
            flat = values.to(self.device).flatten(0, 1)
            return flat if in_grid is None else flat[in_grid]

        states = self._states(output, wants).mapped(of_tokens) if wants.any else None
        return Outputs(Output(of_tokens(output.logits), states), [span.tokens for span in spans])

    def _mask(self, feeds: Sequence[Feed], grid: Grid, spans: Sequence[Span]) -> Tensor | dict[str, Tensor] | None:
        """Return the mask (sequences, 1, tokens, extent) of a pass, one for each kind of layer where they differ.

        None for one token that sees all before it. A model left to itself would hide later tokens from earlier ones.
        """
        if len(feeds) == 1:
            if grid.tokens == 1 and feeds[0].nodes.sees_all:
                return None
            mask = feeds[0].nodes.mask_after(feeds[0].cache.length, dtype=self.dtype, device=self.device)
        else:
            mask = mask_of(grid, spans, dtype=self.dtype, device=self.device)
        if mask is None:
            mask = torch.zeros((1, 1, 1, 1), dtype=self.dtype, device=self.device)
        mask = mask.expand(grid.sequences, 1, grid.tokens, grid.extent)
        window = self.config.sliding_window
        if window is None:
            return mask
        sliding = hide_before_window(mask, window)
        if self.config.every_layer_slides or sliding is mask:
            return sliding
        return {"full_attention": mask, "sliding_attention": sliding}

    @torch.inference_mode()
    def text_logits(self, texts: Tensor) -> Tensor:
        """Return logits (batch, n, V) of texts, int64 (batch, n), as the model computes them with no mask or cache."""
        logits: Tensor = self._model(input_ids=texts, use_cache=False, return_dict=True).logits
        return logits.to(self.device)

    @contextmanager
    def narrowed(self, window: int) -> Iterator[None]:
        """Make the sliding window smaller for a while, so that a short text is longer than it."""
        sizes = self.config
        configs = [module.config for module in self._model.modules() if hasattr(module, "config")]
        changed = {id(each): each for each in configs if getattr(each, "sliding_window", None) == sizes.sliding_window}
        self.config = replace(sizes, sliding_window=window)
        try:
            for each in changed.values():
                each.sliding_window = window
            yield
        finally:
            self.config = sizes
            for each in changed.values():
                each.sliding_window = sizes.sliding_window

    def _requested(self, wants: Wants) -> dict[str, bool]:
        """Return what a pass is asked for beside its logits; raises InvalidValueError for what the model has not."""
        if not wants.any:
            return {}
        # transformers gives the stream before each layer, and after all of them only what the final norm makes of it
        check_boundaries(wants, self._model.config.get_text_config().num_hidden_layers - 1, self.name)
        return {"output_hidden_states": True}

    def _states(self, output: Any, wants: Wants) -> States:
        """Return the states (batch, n, hidden) of what the model returned."""
        found: tuple[Tensor, ...] = output.hidden_states
        last = found[-1].to(self.device) if wants.last else None
        return States(tuple(found[boundary].to(self.device) for boundary in wants.boundaries), last)


def _input_device(model: Any) -> torch.device:
    """Return where tokens go in: the device of the input embeddings, or the one they are brought to when offloaded."""
    embeddings = model.get_input_embeddings()
    offloaded = embeddings.weight.device.type == "meta"
    return torch.device(embeddings._hf_hook.execution_device if offloaded else embeddings.weight.device)
