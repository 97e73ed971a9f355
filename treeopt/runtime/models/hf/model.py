"""A causal language model of transformers, run with treeopt's masks, positions and cache.

A pass over several sequences is a batch with one row per sequence, so weights are read once.  No committed slot moves or
is padded: new keys and values go to each sequence's own slots, and all rows attend over the padded KV length, with the
slots after shorter sequences masked.  Rows with fewer new tokens are padded with tokens that nothing reads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from treeopt.runtime.models.hf.cache import PassCache, PassSlots, cache_argument
from treeopt.runtime.models.hf.sizes import read_adapter_sizes
from treeopt.runtime.models.kv_cache import KVCache, KVStore
from treeopt.runtime.models.model import (
    NO_STATES,
    HiddenStates,
    Output,
    Outputs,
    RequestedStates,
    SequenceInput,
    check_layer_ids,
    concatenate,
    concatenate_outputs,
    prefill_in_chunks,
)
from treeopt.runtime.models.nodes import hide_before_window
from treeopt.runtime.models.padded_batch import (
    PaddedBatch,
    PaddedPass,
    build_mask,
    compute_positions,
    index_padding,
    last_outputs,
    run_by_store,
)


class AdapterModel:
    """A `PreTrainedModel` with a language head as a `treeopt.runtime.models.model.LanguageModel`.

    It is set to evaluation mode and otherwise stays quantised, offloaded or split over devices as it is.
    `treeopt.runtime.models.tree_check` decides whether it can take a tree mask.

    Raises TreeoptError for a model whose cache cannot be rolled back or whose maximum sequence length is unknown.
    """

    notes: tuple[str, ...] = ()
    """How it runs, for the user: predicates of sentences."""
    batches = True
    """Whether one pass takes several sequences."""

    def __init__(self, model: Any, *, name: str) -> None:
        self.name = name
        self.config = read_adapter_sizes(model, name)
        self.parameters = self.config.parameters
        self.weight_bytes: int = model.get_memory_footprint()  # some quantisers keep weights in buffers
        self.dtype: torch.dtype = model.dtype
        self.device = _find_input_device(model)
        self._model = model.eval()
        self.captures = len(self.devices) <= 1 and not _is_offloaded(model)
        """Whether passes may be captured as CUDA graphs: not if weights or activations move between devices."""
        self._cache_argument = cache_argument(model)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices of its weights, such as `cpu` and `disk`; empty without a device map."""
        return tuple(dict.fromkeys(str(device) for device in getattr(self._model, "hf_device_map", {}).values()))

    def new_caches(self, capacity: int, sequences: int) -> list[KVCache]:
        return KVStore(sequences, capacity).caches()

    def cache_bytes(self, capacity: int) -> int:
        return self._slot_bytes * (capacity + 1)

    @cached_property
    def _slot_bytes(self) -> int:
        """Bytes of one token in all layers, whose caches may differ, be compressed or shared."""
        (cache,) = self.new_caches(0, 1)
        self.prefill(torch.zeros(1, dtype=torch.int64, device=self.device), cache)
        return sum(entries.nbytes for entries in cache.store.entries)

    def pass_bytes(self, tokens: int) -> int:  # noqa: ARG002
        return 0  # unknown

    @torch.inference_mode()
    def prefill(
        self, tokens: Tensor, cache: KVCache, requested_states: RequestedStates = NO_STATES
    ) -> HiddenStates | None:
        run_chunk = partial(self._run_chunk, cache=cache, requested_states=requested_states)
        return prefill_in_chunks(tokens, cache, run_chunk, requested_states)

    def _run_chunk(self, chunk: Tensor, *, cache: KVCache, requested_states: RequestedStates) -> HiddenStates | None:
        """Run a pass over tokens after the committed ones without computing logits."""
        inputs = [SequenceInput.causal(cache, chunk)]
        slots = PassSlots.of(inputs, PaddedBatch.of(inputs, 1))
        positions = torch.arange(cache.length, cache.length + len(chunk), device=self.device)
        output = self._model.base_model(  # without the head
            input_ids=chunk[None],
            position_ids=positions[None],
            use_cache=True,
            **{self._cache_argument: PassCache(cache.store, slots)},
            **self._request_options(requested_states),
        )
        if not requested_states.any:
            return None
        return self._read_states(output, requested_states).map(lambda states: states[0])

    @torch.inference_mode()
    def forward(
        self,
        inputs: Sequence[SequenceInput],
        requested_states: RequestedStates = NO_STATES,
        *,
        last_only: bool = False,
    ) -> Outputs:
        """Return logits and states of tokens after the committed ones.

        Positions beyond the maximum sequence length are clamped to the last one.  Raises InvalidValueError if states of
        a layer are requested that the model does not have.
        """
        run = partial(self._run, requested_states=requested_states)
        if len(inputs) > 1 and not self.batches:
            outputs = concatenate_outputs([run([sequence]) for sequence in inputs])
        else:
            outputs = run_by_store(inputs, run)
        return last_outputs(outputs) if last_only else outputs

    def _run(self, inputs: Sequence[SequenceInput], *, requested_states: RequestedStates) -> Outputs:
        """Return the outputs of sequences of one store."""
        ascending = sorted(sequence.cache.index for sequence in inputs)
        numbers = [ascending.index(sequence.cache.index) for sequence in inputs]
        batch = PaddedBatch.of(inputs, len(inputs))
        padded_index, token_index = index_padding(batch, inputs, numbers, self.device)
        positions = torch.from_numpy(compute_positions(inputs)).to(self.device)
        positions.clamp_(max=self.config.max_positions - 1)
        tokens = concatenate([sequence.tokens for sequence in inputs])
        if token_index is not None:
            tokens, positions = tokens[token_index], positions[token_index]
        cache = PassCache(inputs[0].cache.store, PassSlots.of(inputs, batch, padded_index))
        output = self._call(batch, tokens, positions, self._build_mask(inputs, batch, numbers), cache, requested_states)
        if padded_index is not None:
            output = output.map(lambda values: values[padded_index])
        return Outputs(output, [sequence.nodes.rows for sequence in inputs])

    @torch.inference_mode()
    def run_padded(self, padded: PaddedPass, requested_states: RequestedStates) -> Output:
        batch = padded.batch
        mask = self._slide(padded.mask.expand(batch.sequences, 1, batch.tokens, batch.kv_length))
        positions = padded.positions.clamp(max=self.config.max_positions - 1)
        cache = PassCache(padded.store, PassSlots.of_padded(padded))
        return self._call(batch, padded.tokens, positions, mask, cache, requested_states)

    def _call(
        self,
        batch: PaddedBatch,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor | dict[str, Tensor] | None,
        cache: PassCache,
        requested_states: RequestedStates,
    ) -> Output:
        """Return logits and states of all rows of a padded batch."""
        shape = batch.sequences, batch.tokens
        output = self._model(
            input_ids=tokens.view(shape),
            attention_mask=mask,
            position_ids=positions.view(shape),
            use_cache=True,
            return_dict=True,
            **{self._cache_argument: cache},
            **self._request_options(requested_states),
        )
        states = self._read_states(output, requested_states) if requested_states.any else None
        return Output(output.logits, states).map(lambda values: values.to(self.device).flatten(0, 1))

    def _build_mask(
        self, inputs: Sequence[SequenceInput], batch: PaddedBatch, numbers: Sequence[int]
    ) -> Tensor | dict[str, Tensor] | None:
        """Return the mask (sequences, 1, tokens, kv_length) of a pass, or one per kind of layer if they differ.

        None for a single token that attends to all before it.  Otherwise there is always a mask, since without one the
        model would apply a causal mask.
        """
        if len(inputs) == 1:
            if batch.tokens == 1 and inputs[0].nodes.sees_all:
                return None
            mask = inputs[0].nodes.mask_after(inputs[0].cache.length, dtype=self.dtype, device=self.device)
        else:
            mask = build_mask(batch, inputs, numbers, dtype=self.dtype, device=self.device)
        if mask is None:
            mask = torch.zeros((1, 1, 1, 1), dtype=self.dtype, device=self.device)
        return self._slide(mask.expand(batch.sequences, 1, batch.tokens, batch.kv_length))

    def _slide(self, mask: Tensor) -> Tensor | dict[str, Tensor]:
        """Return a mask (sequences, 1, tokens, kv_length), or one per kind of layer if a sliding window hides slots."""
        window = self.config.sliding_window
        if window is None:
            return mask
        sliding = hide_before_window(mask, window)
        if self.config.every_layer_slides or sliding is mask:
            return sliding
        return {"full_attention": mask, "sliding_attention": sliding}

    @torch.inference_mode()
    def reference_logits(self, sequences: Tensor) -> Tensor:
        logits: Tensor = self._model(input_ids=sequences, use_cache=False, return_dict=True).logits
        return logits.to(self.device)

    @contextmanager
    def narrowed(self, window: int) -> Iterator[None]:
        """Temporarily reduce the sliding window, so that a short sequence exceeds it."""
        sizes = self.config
        configs = [module.config for module in self._model.modules() if hasattr(module, "config")]
        sliding = {
            id(config): config for config in configs if getattr(config, "sliding_window", None) == sizes.sliding_window
        }
        self.config = replace(sizes, sliding_window=window)
        try:
            for config in sliding.values():
                config.sliding_window = window
            yield
        finally:
            self.config = sizes
            for config in sliding.values():
                config.sliding_window = sizes.sliding_window

    def _request_options(self, requested_states: RequestedStates) -> dict[str, bool]:
        """Return the options of a pass that returns hidden states; InvalidValueError for layers that do not exist."""
        if not requested_states.any:
            return {}
        # transformers returns the stream before each layer, and after the last layer only its final norm
        check_layer_ids(requested_states, self._model.config.get_text_config().num_hidden_layers - 1, self.name)
        return {"output_hidden_states": True}

    def _read_states(self, output: Any, requested_states: RequestedStates) -> HiddenStates:
        """Return the requested states (batch, n, hidden) in a model output."""
        hidden_states: tuple[Tensor, ...] = output.hidden_states
        layers = tuple(hidden_states[layer_id].to(self.device) for layer_id in requested_states.layer_ids)
        return HiddenStates(layers, hidden_states[-1].to(self.device) if requested_states.last else None)


def _is_offloaded(model: Any) -> bool:
    return bool(model.get_input_embeddings().weight.device.type == "meta")


def _find_input_device(model: Any) -> torch.device:
    """Return the device of the input embeddings, or of their execution if they are offloaded."""
    embeddings = model.get_input_embeddings()
    return torch.device(embeddings._hf_hook.execution_device if _is_offloaded(model) else embeddings.weight.device)
