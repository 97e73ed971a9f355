"""A causal language model of transformers, run with a tree mask, positions and a cache of slots."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treeopt.runtime.models.hf.cache import AdapterCache
from treeopt.runtime.models.hf.sizes import sizes_of
from treeopt.runtime.models.mask import hide_before_window
from treeopt.runtime.models.model import NOTHING, Output, States, Wants, check_boundaries

PREFILL_TOKENS = 2048
"""Most tokens of a text that one prefill pass reads."""


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

    def new_cache(self, capacity: int, batch_size: int = 1) -> AdapterCache:
        """Return an empty cache for `capacity` tokens of each text, tree nodes included."""
        return AdapterCache(capacity, batch_size)

    def cache_bytes(self, capacity: int, batch_size: int = 1) -> int:
        """Return the bytes of keys and values in a cache for `capacity` tokens of each text."""
        return self.dtype.itemsize * self.config.cached_numbers * capacity * batch_size

    def pass_bytes(self, tokens: int) -> int:  # noqa: ARG002
        """Return 0: what a pass takes is not known."""
        return 0

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, cache: AdapterCache, wants: Wants = NOTHING) -> States | None:
        """Commit a text, int64 (n,) or (batch, n), to an empty cache.

        Returns the states wanted of every token, or of the last, (1, hidden) or (batch, 1, hidden); None without text
        or where none are.
        """
        if tokens.numel() == 0:
            return None
        rows = tokens.view(-1, tokens.shape[-1])
        found: list[States] = []
        for part in rows.split(PREFILL_TOKENS, dim=1):
            cache.seek()
            places = torch.arange(cache.length, cache.length + part.shape[1], device=self.device)
            output = self._model.base_model(  # without the head
                input_ids=part,
                position_ids=places.expand_as(part),
                past_key_values=cache,
                use_cache=True,
                **self._asked(wants),
            )
            cache.length += part.shape[1]
            if wants.any:
                found.append(self._states(output, wants))
        if not found:
            return None
        if not wants.whole_text:
            found = [found[-1].mapped(lambda states: states[:, -1:])]
        return _shaped(_concatenated(found), tokens)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: AdapterCache,
        mask: Tensor | None,
        *,
        start: int = 0,
        wants: Wants = NOTHING,
    ) -> Output:
        """Return logits, tokens.shape + (V,), and states of tokens that stand behind the committed ones.

        Args:
            tokens: int64 (n,) or (batch, n).
            positions: int64 (n,), place of each token in the text; those past the longest text count as its last one.
            cache: keys and values are written to slots length + start …; its length does not change.
            mask: (n, length + start + n) to add to the attention scores, or None when each token sees every slot.
            start: tree nodes that were fed before in this step.
            wants: hidden states.

        Raises InvalidValueError for a boundary that the model does not tell.
        """
        rows = tokens.view(-1, tokens.shape[-1])
        count = rows.shape[1]
        if mask is None and count > 1:  # a model left to itself would hide later tokens from earlier ones
            mask = torch.zeros((count, cache.length + start + count), dtype=self.dtype, device=self.device)
        cache.seek(start)
        output = self._model(
            input_ids=rows,
            attention_mask=None if mask is None else self._masks(mask.expand(len(rows), 1, -1, -1)),
            position_ids=positions.clamp(max=self.config.max_positions - 1).expand_as(rows),
            past_key_values=cache,
            use_cache=True,
            return_dict=True,
            **self._asked(wants),
        )
        logits: Tensor = output.logits
        states = _shaped(self._states(output, wants), tokens) if wants.any else None
        return Output(logits.to(self.device).view(*tokens.shape, -1), states)

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

    def _masks(self, mask: Tensor) -> Tensor | dict[str, Tensor]:
        """Return what the model takes for a mask (texts, 1, n, extent): one for each kind of layer where they differ."""
        window = self.config.sliding_window
        if window is None:
            return mask
        sliding = hide_before_window(mask, window)
        if self.config.every_layer_slides or sliding is mask:
            return sliding
        return {"full_attention": mask, "sliding_attention": sliding}

    def _asked(self, wants: Wants) -> dict[str, bool]:
        """Return what a pass is asked for beside its logits; raises InvalidValueError for what it cannot tell."""
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


def _concatenated(parts: list[States]) -> States:
    """Return the states of the parts of a text, one after the other."""
    last = [part.last for part in parts if part.last is not None]
    boundaries = zip(*(part.boundaries for part in parts), strict=True)
    return States(tuple(torch.cat(each, 1) for each in boundaries), torch.cat(last, 1) if last else None)


def _shaped(states: States, tokens: Tensor) -> States:
    """Return states (batch, n, hidden) with the leading shape of the tokens: no batch where there is one text."""
    return states if tokens.ndim > 1 else states.mapped(lambda each: each[0])


def _input_device(model: Any) -> torch.device:
    """Return where tokens go in: the device of the input embeddings, or the one they are brought to when offloaded."""
    embeddings = model.get_input_embeddings()
    offloaded = embeddings.weight.device.type == "meta"
    return torch.device(embeddings._hf_hook.execution_device if offloaded else embeddings.weight.device)
