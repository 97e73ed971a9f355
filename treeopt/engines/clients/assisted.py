"""transformers' assisted generation in this process: one loaded pair for all draft lengths, steps seen by a streamer."""

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from treeopt.engines.clients.client import (
    UNREADABLE,
    Completion,
    CompletionRequest,
    EngineClient,
    EngineConfig,
    EngineInfo,
    RunningEngine,
    engine_errors,
    installed_version,
    top_logprobs,
)
from treeopt.errors import EngineError
from treeopt.records.engine import EngineSetting
from treeopt.texts.shared_tokens import compare_tokens

NAME = "transformers"
MAX_LOGPROBS = 10
ERRORS = (OSError, ValueError, RuntimeError, ImportError)


def describe_engine() -> EngineInfo:
    return EngineInfo(
        name=NAME,
        title="transformers' assisted generation",
        version=installed_version("transformers"),
        started="in this process, batch 1",
        reports="seconds, tokens and steps of each sequence, accepted tokens by position",
        install="pip install 'treeopt[hf]'",
    )


class Assisted(EngineClient):
    """Assisted generation with a pair of Hugging Face folders, which are loaded once.

    Raises EngineError if transformers is not installed.
    """

    name = NAME
    device = "cpu"

    def __init__(self) -> None:
        self.version = describe_engine().require_version()
        self._models: tuple[Any, Any, Any] | None = None

    def start(self, config: EngineConfig) -> RunningEngine:
        """Load the models once; raises EngineError for a batch above 1, and for models that do not load."""
        if config.slots > 1:
            raise EngineError(
                f"{NAME}: expected a batch of 1, as assisted generation takes. Got {config.slots}: probe batch 1."
            )
        config.check_models(NAME)
        if self._models is None:
            self._models = self._load_models(config)
        return RunningAssisted(*self._models, config)

    def _load_models(self, config: EngineConfig) -> tuple[Any, Any, Any]:
        """Return tokenizer, target and draft; the draft is None with the method `ngram`."""
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        assert config.target is not None  # check_models
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        dtype, device = getattr(torch, config.dtype or "float32"), config.device or "cpu"
        with engine_errors(NAME, "models that it can load", (*ERRORS, SafetensorError)):
            tokenizer = AutoTokenizer.from_pretrained(config.target)
            shared = None
            if config.draft is not None:
                shared = compare_tokens(
                    _read_tokens(tokenizer), _read_tokens(AutoTokenizer.from_pretrained(config.draft))
                )
            load: Any = AutoModelForCausalLM.from_pretrained  # its own types refuse its own models
            target, draft = (
                None if folder is None else load(folder, dtype=dtype).to(device).eval()
                for folder in (config.target, config.draft)
            )
        for model in filter(None, (target, draft)):
            # no penalties or top_p of the folder, no end token: fixed-length samples of the model
            model.generation_config = GenerationConfig()
        if shared is not None and _vocab_size(target) != _vocab_size(draft):
            logits = f"{_vocab_size(target)}, of the draft model {_vocab_size(draft)}"
            self.settings = (EngineSetting(name="logits", value=logits),)
            limit_assistant(draft, shared.ids, _vocab_size(target))
        return tokenizer, target, draft


class _Tokens(NamedTuple):
    """A tokenizer's tokens, a `treeopt.texts.shared_tokens.Vocabulary`."""

    vocabulary: dict[str, int]
    added_ids: AbstractSet[int]


def _read_tokens(tokenizer: Any) -> _Tokens:
    return _Tokens(tokenizer.get_vocab(), tokenizer.added_tokens_decoder.keys())


def _vocab_size(model: Any) -> int:
    size: int = model.config.get_text_config().vocab_size
    return size


def limit_assistant(draft: Any, ids: Sequence[int], vocabulary: int) -> None:
    """Give a draft model as many logits as its target, -inf for tokens that the models do not share.

    transformers refuses an assistant with another number of logits.  The draft model reads a token without an embedding
    as token 0.

    Args:
        draft: a causal language model of transformers.
        ids: token ids that both models share.
        vocabulary: logits of the target.
    """
    import torch

    embeddings = draft.get_input_embeddings().num_embeddings
    shared = torch.tensor([index for index in ids if index < min(embeddings, vocabulary)], device=draft.device)

    def replace_unknown(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens, *others = inputs
        return (tokens.where(tokens < embeddings, 0), *others)

    def limit_logits(_: Any, __: Any, output: Any) -> Any:
        logits = output.logits
        limited = logits.new_full((*logits.shape[:-1], vocabulary), float("-inf"))
        limited[..., shared] = logits[..., shared]
        output.logits = limited
        return output

    draft.get_input_embeddings().register_forward_pre_hook(replace_unknown)
    draft.register_forward_hook(limit_logits)
    draft.config.get_text_config().vocab_size = vocabulary


class RunningAssisted(RunningEngine):
    """A pair, or a target alone with prompt lookup, with one draft length."""

    def __init__(self, tokenizer: Any, target: Any, draft: Any, config: EngineConfig) -> None:
        super().__init__(NAME, config)
        self._tokenizer, self._target, self._draft = tokenizer, target, draft

    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        return [self._complete_one(request) for request in requests]

    def _complete_one(self, request: CompletionRequest) -> Completion:
        import torch

        prompt = self._tokenizer(request.prompt, return_tensors="pt").to(self._target.device)
        steps = _StepStreamer()
        sampling = (
            {"do_sample": False}
            if request.temperature == 0
            else {"do_sample": True, "temperature": request.temperature, "top_k": 0}
        )
        torch.manual_seed(request.seed)
        requested_s = time.perf_counter()
        with torch.inference_mode(), engine_errors(NAME, "models that it can decode with", ERRORS):
            token_ids = self._target.generate(
                **prompt,
                **self._draft_options(),
                **sampling,
                max_new_tokens=request.max_new_tokens,
                streamer=steps,
            )
        prompt_tokens = prompt["input_ids"].shape[1]
        return self._count_steps(
            self._tokenizer.decode(token_ids[0, prompt_tokens:]),
            steps.tokens,
            steps.ends_s,
            prompt_tokens=prompt_tokens,
            requested_s=requested_s,
        )

    def next_logprobs(self, text: str) -> dict[str, float]:
        import torch

        tokens = self._tokenizer(text, return_tensors="pt").to(self._target.device)
        with torch.inference_mode(), engine_errors(NAME, "models that it can decode with", ERRORS):
            # the last token in a pass of its own, as in plain decoding
            cache = {}
            if tokens["input_ids"].shape[1] > 1:
                output = self._target(tokens["input_ids"][:, :-1], use_cache=True)
                name = "cache" if "cache" in output else "past_key_values"  # renamed in 5.24
                cache = {name: output[name]}
            logits = self._target(tokens["input_ids"][:, -1:], use_cache=True, **cache).logits[0, -1]
        top = logits.float().log_softmax(-1).topk(MAX_LOGPROBS)
        last = int(tokens["input_ids"][0, -1])
        texts = [self._decode_after(last, token) for token in top.indices.tolist()]
        return top_logprobs(NAME, zip(texts, top.values.tolist(), strict=True))

    def _decode_after(self, last: int, token: int) -> str:
        """Return the text of a token after another: decoded alone, some tokenizers drop its leading white space."""
        before, both = self._tokenizer.decode([last]), self._tokenizer.decode([last, token])
        return both.removeprefix(before) if both.startswith(before) and not before.endswith(UNREADABLE) else UNREADABLE

    def _draft_options(self) -> dict[str, Any]:
        if self._config.draft_tokens == 0:
            return {}
        if self._draft is None:
            ngram = self._config.ngram_tokens
            matching = {} if ngram is None else {"max_matching_ngram_size": ngram}
            return {"prompt_lookup_num_tokens": self._config.draft_tokens, **matching}
        generation = self._draft.generation_config
        generation.num_assistant_tokens = self._config.draft_tokens
        generation.num_assistant_tokens_schedule = "constant"
        generation.assistant_confidence_threshold = 0.0
        return {"assistant_model": self._draft}


class _StepStreamer:
    """A streamer of transformers that records the tokens and the end of each step."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends_s: list[float] = []
        self._prompt = True

    def put(self, tokens: Any) -> None:
        if not self._prompt:  # the first call passes the prompt
            self.tokens.append(int(tokens.numel()))
            self.ends_s.append(time.perf_counter())
        self._prompt = False

    def end(self) -> None:
        pass
