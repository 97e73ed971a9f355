"""Decoding inside Hugging Face transformers: its models, its `generate`, this runtime's trees.

transformers prepares a call, as for its own decoding, and says when the text ends; the tokens come from `Decoder`.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.configuration_utils import GenerationMode

from treeopt.errors import FormatError, InvalidValueError
from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.models.config import parse_config
from treeopt.runtime.models.tensor_reader import LoadedTensors, TensorReader
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.weights import build_model
from treeopt.trees import TokenTree

WARPERS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
"""The logits processors that can be honoured, in the order in which `Sampling` works."""
TEXT_STEP = 1024
"""A decoder's cache holds a multiple of so many tokens, so that it serves texts of several lengths."""


class Streamer(Protocol):
    """What gets tokens as they come; transformers' `BaseStreamer` is one."""

    def put(self, value: Tensor) -> None:
        """Take the prompt, int64 (1, n), or one token, int64 (1,)."""

    def end(self) -> None:
        """Know that the text has ended."""


def generate(
    model: PreTrainedModel,
    inputs: Tensor | None = None,
    *,
    tree: TokenTree,
    assistant_model: PreTrainedModel | None = None,
    rule: str = "sequoia",
    lossy: bool = False,
    streamer: Streamer | None = None,
    stop_strings: str | list[str] | None = None,
    tokenizer: Any = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    **arguments: Any,
) -> Tensor:
    """Return what `model.generate` returns, decoded with a tree.

    Without sampling it is the same text, with sampling the same distribution. Randomness follows `torch.manual_seed`.

    Args:
        model: the target, of Llama architecture.
        inputs: int64 (1, n), the prompt; it may also be given as `input_ids`.
        tree: what to draft in every step.
        assistant_model: the draft model; it may be left out when the tree is the root alone.
        rule: verification rule.
        lossy: allow a rule under which the text does not follow the target's distribution.
        streamer: gets the prompt and then each token, as from transformers.
        stop_strings: what ends the text where it appears in it.
        tokenizer: the models', for `stop_strings`.
        stopping_criteria: what else ends the text.
        arguments: all else that `model.generate` takes.

    Returns int64 (1, n + new tokens).

    Raises InvalidValueError for what cannot be honoured: more than one text, padding, beams, logits processors other
    than temperature, top-k and top-p, results other than the tokens, texts longer than the target takes;
    FormatError for a model that this runtime cannot execute.
    """
    method = partial(decode, tree=tree, assistant_model=assistant_model, rule=rule, lossy=lossy, streamer=streamer)
    ends = list(stopping_criteria or ())
    if stop_strings is not None:  # made here, because transformers keeps the tokenizer from its own making
        if tokenizer is None:
            raise InvalidValueError("tokenizer: expected the models' tokenizer, for stop_strings. Got None.")
        ends.append(StopStringCriteria(tokenizer, stop_strings))
    prepare: Any = GenerationMixin.generate  # not the model's, which this function may have taken the place of
    text: Tensor = prepare(
        model,
        inputs,
        custom_generate=method,
        streamer=streamer,
        stopping_criteria=StoppingCriteriaList(ends),
        **arguments,
    )
    return text


def decode(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    tree: TokenTree,
    assistant_model: PreTrainedModel | None = None,
    rule: str = "sequoia",
    lossy: bool = False,
    streamer: Streamer | None = None,
    **model_inputs: Any,
) -> Tensor:
    """Decode what `model.generate` has prepared: `custom_generate=partial(decode, tree=tree, assistant_model=draft)`.

    transformers keeps `assistant_model` and `streamer` from such a function, so they belong into the `partial`.
    Everything else is as in `generate`.
    """
    _check_call(input_ids, generation_config, model_inputs)
    if assistant_model is None and tree.nodes > 1:
        raise InvalidValueError(f"assistant_model: expected a draft model for a tree of {tree.nodes} nodes. Got None.")
    setting = _Setting(
        target=_converted(model),
        drafter=None if assistant_model is None else _converted(assistant_model),
        tree=tree,
        rule=rule,
        lossy=lossy,
        sampling=_sampling(generation_config, logits_processor),
        text_tokens=-(-generation_config.max_length // TEXT_STEP) * TEXT_STEP,
    )
    kept = _decoders.pop(model, None)  # nobody else may begin a text on it meanwhile
    decoder = kept[1] if kept is not None and kept[0] == setting else setting.decoder()
    seed = 0 if setting.sampling.greedy else int(torch.randint(2**63 - 1, ()))
    length, end = input_ids.shape[1], generation_config.max_length
    text = torch.empty((1, end), dtype=torch.int64)
    text[:, :length] = input_ids
    for token in decoder.generate(input_ids[0].tolist(), end - length, seed=seed):
        text[0, length] = token
        length += 1
        if streamer is not None:
            streamer.put(text[0, length - 1 : length])
        if stopping_criteria(text[:, :length], None).all():
            break
    _decoders[model] = setting, decoder
    if streamer is not None:
        streamer.end()
    return text[:, :length].to(input_ids.device, copy=True)


def from_transformers(model: PreTrainedModel) -> Transformer:
    """Return the model that transformers has loaded, in its dtype and on its device.

    Embedding and norms share its memory, and on a CUDA device so do the products that are not joined with others.

    Raises FormatError naming what this runtime cannot execute: another architecture, a field of the configuration, a
    weight that is quantised, has another shape or lies on another device than the embedding.
    """
    source = model.name_or_path or type(model).__name__
    content = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    config, state = parse_config(source, content), model.state_dict()
    first = next(iter(state.values()))
    for name, tensor in state.items():
        if tensor.device != first.device:
            raise FormatError(
                source,
                name,
                f"expected all weights on one device, {first.device}. Got {tensor.device}: load without device_map.",
            )
    sources = dict.fromkeys(state, LoadedTensors(source, state))
    return build_model(config, TensorReader(source, sources, device=first.device, dtype=first.dtype), name=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """All that a decoder is made of; it can serve again where this is equal."""

    target: Transformer
    drafter: Transformer | None
    tree: TokenTree
    rule: str
    lossy: bool
    sampling: Sampling
    text_tokens: int

    def decoder(self) -> Decoder:
        """Return a decoder whose cache is no larger than needed."""
        return Decoder(
            self.target,
            self.drafter,
            self.tree,
            rule=self.rule,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            lossy=self.lossy,
            max_text_tokens=min(self.text_tokens, self.target.config.max_positions),
        )


_models: WeakKeyDictionary[PreTrainedModel, tuple[object, Transformer]] = WeakKeyDictionary()
_decoders: WeakKeyDictionary[PreTrainedModel, tuple[_Setting, Decoder]] = WeakKeyDictionary()
"""The last decoder of each model, for the graphs that it has captured."""


def _converted(model: PreTrainedModel) -> Transformer:
    """Return a model as it is now: converted before, or again where a weight has changed since."""
    state = tuple(
        (weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version)
        for weight in model.parameters()
    )
    kept = _models.get(model)
    if kept is None or kept[0] != state:
        converted = from_transformers(model)
        converted.config = replace(converted.config, end_tokens=())  # transformers says when a text ends
        kept = _models[model] = state, converted
    return kept[1]


def _check_call(input_ids: Tensor, config: GenerationConfig, model_inputs: dict[str, Any]) -> None:
    """Refuse whatever is neither greedy decoding nor sampling of one text from its beginning."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise InvalidValueError(f"generation_config: expected greedy search or sampling. Got {mode.value}.")
    if config.return_dict_in_generate:
        raise InvalidValueError("return_dict_in_generate: expected false: only the tokens are returned.")
    texts, length = input_ids.shape
    if texts != 1:
        raise InvalidValueError(f"input_ids: expected one text, one sequence returned. Got {texts}.")
    if model_inputs.get("inputs_embeds") is not None:
        raise InvalidValueError("inputs_embeds: expected tokens. Give input_ids.")
    if model_inputs.get("attention_mask") is not None:
        raise InvalidValueError("attention_mask: expected ones only. Leave out padding.")
    cache, positions = model_inputs.get("past_key_values"), model_inputs.get("position_ids")
    if cache is not None and cache.get_seq_length() > 0:
        raise InvalidValueError("past_key_values: expected none: a text is decoded from its beginning.")
    if positions is not None and positions.flatten().tolist() != list(range(length)):
        raise InvalidValueError("position_ids: expected 0, 1, 2, and so on. Leave them out.")


def _sampling(config: GenerationConfig, processors: LogitsProcessorList) -> Sampling:
    """Return the distribution that the processors make of logits."""
    kinds = [type(processor) for processor in processors]
    least = max((getattr(processor, "min_tokens_to_keep", 1) for processor in processors), default=1)
    if kinds != [kind for kind in WARPERS if kind in kinds] or least > 1:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidValueError(
            f"logits_processor: expected temperature, top_k and top_p, each once and in this order. Got {names}: "
            "leave out the options that bring others in."
        )
    if not config.do_sample:
        return Sampling()
    given = dict(zip(kinds, processors, strict=True))
    temperature, top_k, top_p = (given.get(kind) for kind in WARPERS)
    return Sampling(
        temperature=temperature.temperature if temperature else 1.0,
        top_k=top_k.top_k if top_k else 0,
        top_p=top_p.top_p if top_p else 1.0,
    )
