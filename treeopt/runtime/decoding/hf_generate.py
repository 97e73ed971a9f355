"""Decoding inside Hugging Face transformers: its models, its `generate`, this runtime's trees.

transformers prepares a call, as for its own decoding, and decides when the output ends; the tokens come from `Decoder`.
"""

from dataclasses import replace
from functools import partial
from typing import Any
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
from transformers.generation.streamers import BaseStreamer

from treeopt.errors import FormatError, InvalidValueError
from treeopt.records.sampling import Sampling
from treeopt.runtime.decoding.decoder import Decoder
from treeopt.runtime.models.config import parse_config
from treeopt.runtime.models.hf.cache import cache_argument
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.tensor_reader import LoadedTensors, TensorReader
from treeopt.runtime.models.transformer import Transformer
from treeopt.runtime.models.vocabulary import limit_draft
from treeopt.runtime.models.weights import build_model
from treeopt.trees import TokenTree

WARPERS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
"""The supported logits processors, in the order in which `Sampling` applies them."""
MOST_PADDING = 1024
"""Vocabularies of one family differ by padding, which is less than this: by 128 tokens in Qwen2.5."""
CAPACITY_STEP = 1024
"""Cache capacities are multiples of this, in tokens, so that a decoder is reused for sequences of several lengths."""


def generate(
    model: PreTrainedModel,
    inputs: Tensor | None = None,
    *,
    tree: TokenTree,
    assistant_model: PreTrainedModel | None = None,
    rule: str = "sequoia",
    lossy: bool = False,
    streamer: BaseStreamer | None = None,
    stop_strings: str | list[str] | None = None,
    tokenizer: Any = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    **arguments: Any,
) -> Tensor:
    """Return what `model.generate` returns, decoded with a tree.

    Without sampling the tokens are the same, with sampling their distribution. Random numbers follow `torch.manual_seed`.

    Args:
        model: the target, of an architecture that treeopt runs itself, such as Llama or Qwen3.
        inputs: int64 (1, n), the prompt; or pass it as `input_ids`.
        tree: what to draft in every step.
        assistant_model: the draft model; optional if the tree is the root alone.
        rule: verification rule.
        lossy: allow a rule under which the output does not follow the target's distribution.
        streamer: receives the prompt and then each token, as from transformers.
        stop_strings: strings that end the output.
        tokenizer: of the models, for `stop_strings`.
        stopping_criteria: other stopping criteria.
        arguments: other arguments of `model.generate`.

    Returns int64 (1, n + new tokens).

    Raises InvalidValueError for what is not supported: more than one sequence, padding, beams, logits processors other
    than temperature, top-k and top-p, results other than the tokens, sequences longer than the target takes;
    FormatError for a model that this runtime cannot execute.
    """
    custom_generate = partial(
        decode, tree=tree, assistant_model=assistant_model, rule=rule, lossy=lossy, streamer=streamer
    )
    criteria = list(stopping_criteria or ())
    if stop_strings is not None:  # not passed on: transformers needs the tokenizer, which custom generators do not get
        if tokenizer is None:
            raise InvalidValueError("tokenizer: expected the models' tokenizer, for stop_strings. Got None.")
        criteria.append(StopStringCriteria(tokenizer, stop_strings))
    prepare: Any = GenerationMixin.generate  # not the model's, which this function may have replaced
    tokens: Tensor = prepare(
        model,
        inputs,
        custom_generate=custom_generate,
        streamer=streamer,
        stopping_criteria=StoppingCriteriaList(criteria),
        **arguments,
    )
    return tokens


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
    streamer: BaseStreamer | None = None,
    **model_inputs: Any,
) -> Tensor:
    """Decode what `model.generate` has prepared: `custom_generate=partial(decode, tree=tree, assistant_model=draft)`.

    transformers does not pass `assistant_model` and `streamer` to such a function, so they belong into the `partial`.
    The other arguments are those of `generate`.
    """
    _check_call(model, input_ids, generation_config, model_inputs)
    if assistant_model is None and tree.nodes > 1:
        raise InvalidValueError(f"assistant_model: expected a draft model for a tree of {tree.nodes} nodes. Got None.")
    target, drafter = _convert(model), None if assistant_model is None else _convert(assistant_model)
    sampling = _sampling(generation_config, logits_processor)
    capacity = -(-generation_config.max_length // CAPACITY_STEP) * CAPACITY_STEP
    options: dict[str, Any] = {
        "rule": rule,
        "lossy": lossy,
        "sampling": sampling,
        "max_sequence_tokens": min(capacity, target.config.max_positions),
    }
    key = target, drafter, tree, *options.values()
    cached = _decoders.pop(model, None)  # popped, so that no other call begins a sequence on it meanwhile
    if cached is not None and cached[0] == key:
        decoder = cached[1]
    else:
        decoder = Decoder(target, _limit_to_target(drafter, target), tree, **options)
    seed = 0 if sampling.greedy else int(torch.randint(2**63 - 1, ()))
    length, end = input_ids.shape[1], generation_config.max_length
    tokens = torch.empty((1, end), dtype=torch.int64)
    tokens[:, :length] = input_ids
    for token in decoder.generate(input_ids[0].tolist(), end - length, seed=seed):
        tokens[0, length] = token
        length += 1
        if streamer is not None:
            streamer.put(tokens[0, length - 1 : length])
        if stopping_criteria(tokens[:, :length], None).all():
            break
    _decoders[model] = key, decoder
    if streamer is not None:
        streamer.end()
    return tokens[:, :length].to(input_ids.device, copy=True)


def from_transformers(model: PreTrainedModel) -> Transformer:
    """Return a model that transformers has loaded, in its dtype and on its device.

    Embedding and norms share its memory, and on a CUDA device so do the matrices that are not concatenated with others.

    Raises FormatError naming what this runtime cannot execute: another architecture, a field of the configuration, a
    weight that is quantised, has another shape or is on another device than the embedding.
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


_models: WeakKeyDictionary[PreTrainedModel, tuple[object, Transformer]] = WeakKeyDictionary()
_decoders: WeakKeyDictionary[PreTrainedModel, tuple[tuple[object, ...], Decoder]] = WeakKeyDictionary()
"""The arguments and the last decoder of each model, kept for its captured CUDA graphs."""


def _convert(model: PreTrainedModel) -> Transformer:
    """Return a model converted from its current weights; cached until one changes."""
    state = tuple(
        (weight.data_ptr(), weight.dtype, 0 if weight.is_inference() else weight._version)
        for weight in model.parameters()
    )
    cached = _models.get(model)
    if cached is None or cached[0] != state:
        converted = from_transformers(model)
        converted.config = replace(converted.config, end_tokens=())  # transformers decides when the output ends
        cached = _models[model] = state, converted
    return cached[1]


def _limit_to_target(draft: Transformer | None, target: Transformer) -> LanguageModel | None:
    """Return a draft model with the target's number of logits, unless they differ by more than padding."""
    vocabulary = target.config.vocabulary
    if draft is None or abs(draft.config.vocabulary - vocabulary) > MOST_PADDING:
        return draft
    return limit_draft(draft, range(vocabulary), vocabulary)


def _check_call(
    model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, model_inputs: dict[str, Any]
) -> None:
    """Raise InvalidValueError unless the call is greedy decoding or sampling of one sequence from its beginning."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise InvalidValueError(f"generation_config: expected greedy search or sampling. Got {mode.value}.")
    if config.return_dict_in_generate:
        raise InvalidValueError("return_dict_in_generate: expected false: only the tokens are returned.")
    sequences, length = input_ids.shape
    if sequences != 1:
        raise InvalidValueError(f"input_ids: expected one sequence, and one returned. Got {sequences}.")
    if model_inputs.get("inputs_embeds") is not None:
        raise InvalidValueError("inputs_embeds: expected tokens. Give input_ids.")
    if model_inputs.get("attention_mask") is not None:
        raise InvalidValueError("attention_mask: expected ones only. Leave out padding.")
    positions = model_inputs.get("position_ids")
    argument = cache_argument(model)
    if (cache := model_inputs.get(argument)) is not None and cache.get_seq_length() > 0:
        raise InvalidValueError(f"{argument}: expected none: a sequence is decoded from its beginning.")
    if positions is not None and positions.flatten().tolist() != list(range(length)):
        raise InvalidValueError("position_ids: expected 0, 1, 2, and so on. Leave them out.")


def _sampling(config: GenerationConfig, processors: LogitsProcessorList) -> Sampling:
    kinds = [type(processor) for processor in processors]
    min_kept = max((getattr(processor, "min_tokens_to_keep", 1) for processor in processors), default=1)
    if kinds != [kind for kind in WARPERS if kind in kinds] or min_kept > 1:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidValueError(
            f"logits_processor: expected temperature, top_k and top_p, each once and in this order. Got {names}: "
            "leave out the options that add others, and turn off those of the model's generation_config, as with "
            "repetition_penalty=1.0."
        )
    if not config.do_sample:
        return Sampling()
    by_kind = dict(zip(kinds, processors, strict=True))
    temperature, top_k, top_p = (by_kind.get(kind) for kind in WARPERS)
    return Sampling(
        temperature=temperature.temperature if temperature else 1.0,
        top_k=top_k.top_k if top_k else 0,
        top_p=top_p.top_p if top_p else 1.0,
    )
