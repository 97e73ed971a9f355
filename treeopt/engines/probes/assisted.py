"""transformers' assisted generation, in this process: one pair for all draft lengths, each step seen by a streamer."""

import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, NamedTuple

from treeopt.engines.probes.client import (
    UNREADABLE,
    Answer,
    Availability,
    EngineClient,
    Launch,
    Question,
    Running,
    likeliest,
)
from treeopt.engines.probes.started import InProcess, installed_version, missing_models, refuse_address, threads_setting
from treeopt.errors import EngineError, TreeoptError
from treeopt.records.engine import EngineSetting
from treeopt.texts.shared_tokens import compare_tokens

NAME = "transformers"
MOST_LOGPROBS = 10


def client(name: str, *, url: str | None, threads: int | None, timeout_s: float) -> EngineClient:
    """Return assisted generation; see `treeopt.engines.probes.named`.  It has no address and no time limit."""
    del name, timeout_s
    refuse_address(NAME, url)
    return Assisted(threads)


def available(name: str = NAME) -> Availability:
    """Return what is known of it here."""
    return Availability(
        name=name,
        title="transformers' assisted generation",
        version=installed_version("transformers"),
        started="in this process, batch 1",
        tells="seconds, tokens and steps of each text, accepted tokens by position",
        install="pip install 'treeopt[hf]'",
    )


class Assisted:
    """Assisted generation with a pair of Hugging Face folders, which are loaded once.

    Raises EngineError where transformers is not installed.
    """

    name = NAME
    device = "cpu"
    concurrent = True

    def __init__(self, threads: int | None) -> None:
        found = available()
        if found.version is None:
            raise EngineError(f"{NAME}: expected the package. It is not installed: {found.install}.")
        self.version = found.version
        self.settings = threads_setting(threads)
        self._threads = threads
        self._models: tuple[Any, Any, Any] | None = None

    def start(self, launch: Launch) -> Running:
        """See `EngineClient`; raises EngineError for several texts at once, and models that do not load."""
        if launch.slots > 1:
            raise EngineError(
                f"{NAME}: expected a batch of 1, as assisted generation takes. Got {launch.slots}: probe batch 1."
            )
        if launch.target is None or not launch.complete:
            raise missing_models(NAME)
        if self._models is None:
            self._models = self._loaded(launch.target, launch.draft, launch.device or "cpu", launch.dtype or "float32")
        return RunningAssisted(*self._models, launch.draft_tokens, launch.ngram_tokens)

    def _loaded(self, target_folder: str, draft_folder: str | None, device: str, dtype: str) -> tuple[Any, Any, Any]:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        if self._threads is not None:
            torch.set_num_threads(self._threads)
        with _failures("models that it can load"):
            tokenizer = AutoTokenizer.from_pretrained(target_folder)
            shared = None if draft_folder is None else compare_tokens(_tokens(target_folder), _tokens(draft_folder))
            load: Any = AutoModelForCausalLM.from_pretrained  # its own types refuse its own models
            target, draft = (
                None if folder is None else load(folder, dtype=getattr(torch, dtype)).to(device).eval()
                for folder in (target_folder, draft_folder)
            )
        for model in filter(None, (target, draft)):
            # no penalties or top_p of the folder, no end token: fixed-length samples of the model
            model.generation_config = GenerationConfig()
        if shared is not None and _logits(target) != _logits(draft):
            self.settings = (
                *self.settings,
                EngineSetting(name="logits", value=f"{_logits(target)}, of the draft model {_logits(draft)}"),
            )
            limit_assistant(draft, shared.ids, _logits(target))
        return tokenizer, target, draft


class _Tokens(NamedTuple):
    """A tokenizer's tokens, see `treeopt.texts.shared_tokens.Vocabulary`."""

    vocabulary: dict[str, int]
    added_ids: AbstractSet[int]


def _tokens(folder: str) -> _Tokens:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return _Tokens(tokenizer.get_vocab(), tokenizer.added_tokens_decoder.keys())


def _logits(model: Any) -> int:
    logits: int = model.config.get_text_config().vocab_size
    return logits


def limit_assistant(draft: Any, ids: Sequence[int], vocabulary: int) -> None:
    """Give a draft model as many logits as its target, those of tokens that the target does not share -inf.

    transformers refuses an assistant with another number of logits.  The target stays as it is.  A token that the
    draft model has no embedding for is read as token 0.

    Args:
        draft: a causal language model of transformers'.
        ids: token ids that both models share.
        vocabulary: logits of the target.
    """
    import torch

    embeddings = draft.get_input_embeddings().num_embeddings
    kept = torch.tensor([index for index in ids if index < min(embeddings, vocabulary)], device=draft.device)

    def replace_unknown(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        tokens, *others = inputs
        return (tokens.where(tokens < embeddings, 0), *others)

    def limit_logits(_: Any, __: Any, output: Any) -> Any:
        logits = output.logits
        limited = logits.new_full((*logits.shape[:-1], vocabulary), float("-inf"))
        limited[..., kept] = logits[..., kept]
        output.logits = limited
        return output

    draft.get_input_embeddings().register_forward_pre_hook(replace_unknown)
    draft.register_forward_hook(limit_logits)
    draft.config.get_text_config().vocab_size = vocabulary


class RunningAssisted(InProcess):
    """A pair, or a target alone that drafts from the text itself, under one draft length."""

    def __init__(
        self, tokenizer: Any, target: Any, draft: Any, draft_tokens: int, ngram_tokens: int | None = None
    ) -> None:
        self._tokenizer, self._target, self._draft = tokenizer, target, draft
        self._draft_tokens, self._ngram_tokens = draft_tokens, ngram_tokens

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        return [self._answer(each) for each in questions]

    def _answer(self, question: Question) -> Answer:
        import torch

        prompt = self._tokenizer(question.prompt, return_tensors="pt").to(self._target.device)
        steps = _Steps()
        sampling = (
            {"do_sample": False}
            if question.temperature == 0
            else {"do_sample": True, "temperature": question.temperature, "top_k": 0}
        )
        torch.manual_seed(question.seed)
        asked_s = time.perf_counter()
        with torch.inference_mode(), _failures("models that it can decode with"):
            found = self._target.generate(
                **prompt,
                **self._drafting(),
                **sampling,
                max_new_tokens=question.max_new_tokens,
                streamer=steps,
            )
        tokens = steps.sizes[1:]  # the first step reads the prompt too
        length = prompt["input_ids"].shape[1]
        return Answer(
            text=self._tokenizer.decode(found[0, length:]),
            tokens=1 + sum(tokens),
            decode_s=steps.ends_s[-1] - steps.ends_s[0],
            steps=len(tokens),
            prompt_tokens=length,
            accepted=tuple(sum(size > place for size in tokens) for place in range(1, 1 + self._draft_tokens)),
            prefill_s=steps.ends_s[0] - asked_s,
            prefill_tokens=length,
        )

    def next_logprobs(self, text: str) -> dict[str, float]:
        """See `TellsLogprobs`."""
        import torch

        tokens = self._tokenizer(text, return_tensors="pt").to(self._target.device)
        with torch.inference_mode(), _failures("models that it can decode with"):
            # the last token by a pass of its own, as plain decoding reads it
            cache = None
            if tokens["input_ids"].shape[1] > 1:
                cache = self._target(tokens["input_ids"][:, :-1], use_cache=True).past_key_values
            logits = self._target(tokens["input_ids"][:, -1:], past_key_values=cache, use_cache=True).logits[0, -1]
        top = logits.float().log_softmax(-1).topk(MOST_LOGPROBS)
        last = int(tokens["input_ids"][0, -1])
        texts = [self._text_after(last, index) for index in top.indices.tolist()]
        return likeliest(NAME, zip(texts, top.values.tolist(), strict=True))

    def _text_after(self, last: int, token: int) -> str:
        """Return the text of a token after another: alone some tokenizers leave out the white space that it begins with."""
        before, both = self._tokenizer.decode([last]), self._tokenizer.decode([last, token])
        return both.removeprefix(before) if both.startswith(before) and not before.endswith(UNREADABLE) else UNREADABLE

    def _drafting(self) -> dict[str, Any]:
        if self._draft_tokens == 0:
            return {}
        if self._draft is None:
            matching = {} if self._ngram_tokens is None else {"max_matching_ngram_size": self._ngram_tokens}
            return {"prompt_lookup_num_tokens": self._draft_tokens, **matching}
        config = self._draft.generation_config
        config.num_assistant_tokens = self._draft_tokens
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        return {"assistant_model": self._draft}


class _Steps:
    """A streamer of transformers' that notes how many tokens came when."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.ends_s: list[float] = []
        self._prompt = True

    def put(self, tokens: Any) -> None:
        """Take the prompt, and then the tokens of each step."""
        if not self._prompt:
            self.sizes.append(int(tokens.numel()))
            self.ends_s.append(time.perf_counter())
        self._prompt = False

    def end(self) -> None:
        """There is nothing to do."""


@contextmanager
def _failures(expected: str) -> Iterator[None]:
    """Raise EngineError of one line in place of transformers' errors; treeopt's own pass."""
    from safetensors import SafetensorError

    try:
        yield
    except TreeoptError:
        raise
    except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
        raise EngineError(f"{NAME}: expected {expected}. Got: {' '.join(str(error).split())[:300]}") from None
