"""A server with OpenAI's completions API, such as vLLM: steps from its streamed chunks, and counters if it has any.

With `continuous_usage_stats` every chunk contains the number of tokens so far.  Its growth is one step, of which all but
one token were accepted drafts, unless the server sends several steps in one chunk.  If chunks and counters disagree,
`treeopt.profiler.engine` uses the counters.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from treeopt.engines.clients.client import (
    UNREADABLE,
    Completion,
    CompletionRequest,
    Counters,
    EngineClient,
    EngineConfig,
    EngineInfo,
    RunningEngine,
    top_logprobs,
)
from treeopt.engines.clients.http import HttpEngine, http_status, model_setting, select_url
from treeopt.errors import EngineError, InvalidValueError

VLLM = "vllm"
FIXED_LENGTH = {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent because servers take missing values from the model's generation config."""
OPTIONAL_FIELDS: tuple[dict[str, Any], ...] = (
    {**NEUTRAL, **FIXED_LENGTH},
    {"top_p": 1.0, **FIXED_LENGTH},
    {"top_p": 1.0, "stream_options": {"include_usage": True}},
)
"""Fields for servers that refuse unknown ones, as OpenAI's own does, the most first; without `ignore_eos` a text may end
early."""
BYTES = "bytes:"
"""Prefix of tokens that are not a whole character."""
MAX_LOGPROBS = 5
"""As many as OpenAI's own server reports."""
REFUSED = (400, 422)
"""Status codes of servers that refuse unknown fields."""
TITLES = {"openai": "a server with OpenAI's completions", VLLM: "vLLM"}


def create_client(name: str, urls: Mapping[int, str] | None, *, timeout_s: float) -> EngineClient:
    """Return the client of servers that already run; raises InvalidValueError without addresses."""
    if urls is None:
        raise InvalidValueError(
            f"--url: expected the addresses of {TITLES[name]}, such as 0=http://…,3=http://…. Give them."
        )
    return OpenAIServers(name, urls, timeout_s=timeout_s)


def describe_engine(name: str) -> EngineInfo:
    return EngineInfo(
        name=name,
        title=TITLES[name],
        version=None,
        started="by you: --url 0=URL,3=URL, or one length after the other, --url URL --lengths 3",
        reports="tokens as they arrive; steps and accepted tokens if every chunk is a step, or if /metrics counts drafts",
        install=None,
    )


class OpenAIServers(EngineClient):
    """Servers that already run, one for each draft length."""

    def __init__(self, name: str, urls: Mapping[int, str], *, timeout_s: float) -> None:
        self.name = name
        self._urls = urls
        server = HttpEngine(name, next(iter(urls.values())), timeout_s=timeout_s)
        models = server.get("/v1/models").get("data")
        model = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
        self._model = str(model.get("id", ""))
        self.settings = model_setting(self._model)
        self.version = str(model.get("owned_by", "unknown"))
        if name == VLLM:
            with suppress(EngineError):  # a proxy may not pass this path on
                self.version = str(server.get("/version").get("version", self.version))
        server.close()

    def start(self, config: EngineConfig) -> RunningEngine:
        """Return the server with the configuration's length; raises EngineError if there is none."""
        return RunningServer(self.name, select_url(self.name, self._urls, config), self._model, config)


class _Chunk(NamedTuple):
    """A streamed chunk of a completion."""

    text: str
    total_tokens: int | None
    """New tokens so far; None if the server does not report usage with each chunk."""
    prompt_tokens: int
    arrived_s: float
    tokens: int | None
    """Tokens of this chunk; None if the server does not send token ids."""


class RunningServer(RunningEngine):
    """A server that streams completions."""

    def __init__(self, name: str, url: str, model: str, config: EngineConfig) -> None:
        super().__init__(name, config)
        self._http = HttpEngine(name, url, timeout_s=config.timeout_s)
        self._model = model
        self._pool = ThreadPoolExecutor(config.slots)
        self._refusals = 0
        """Entries of `OPTIONAL_FIELDS` that the server refuses."""
        self._drafts = False  # until a chunk of several tokens arrives

    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        return list(self._pool.map(self._complete_one, requests))

    def counters(self) -> Counters | None:
        """Return the server's counters; raises EngineError if vLLM, which counts every position, has another length."""
        counters = self._http.counters()
        if counters is None or self._name != VLLM:
            return counters
        length = len(counters.accepted_per_position)
        if length != self._config.draft_tokens:
            raise EngineError(
                f"{VLLM}: expected a server with {self._config.draft_tokens} draft tokens. Got one with {length}: name its "
                "length, or start it with the one named."
            )
        return counters

    def next_logprobs(self, text: str) -> dict[str, float]:
        body = {
            "model": self._model,
            "prompt": text,
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": MAX_LOGPROBS,
        }
        try:
            response = self._http.post("/v1/completions", body)
        except EngineError as error:
            if http_status(error) not in REFUSED:
                raise
            del body["ignore_eos"]
            response = self._http.post("/v1/completions", body)
        return _read_logprobs(self._name, response)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def _complete_one(self, request: CompletionRequest) -> Completion:
        body = {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "stream": True,
        }
        chunks = self._complete_with_known_fields(body)
        step_tokens, step_ends_s = _split_steps(chunks)
        if len(step_tokens) < 2:
            raise EngineError(
                f"{self._name}: expected a text of several chunks. Got {len(step_tokens)}: update it, or ask for more tokens."
            )
        completion = self._count_steps(
            "".join(chunk.text for chunk in chunks),
            step_tokens,
            step_ends_s,
            prompt_tokens=max(chunk.prompt_tokens for chunk in chunks),
        )
        largest = max(step_tokens[1:])
        self._drafts = self._drafts or largest > 1
        if self._config.draft_tokens and not self._drafts:  # it may send every token in a chunk of its own
            completion = completion._replace(steps=None, accepted=())
        if largest > 1 + self._config.draft_tokens:
            completion = completion._replace(steps=None, coalesced=True)
        return completion

    def _complete_with_known_fields(self, body: Mapping[str, Any]) -> list[_Chunk]:
        """Return the chunks of a completion, with the most optional fields that the server does not refuse."""
        refusals = self._refusals
        while True:
            try:
                chunks = list(self._stream_chunks({**body, **OPTIONAL_FIELDS[refusals]}))
            except EngineError as error:
                if http_status(error) not in REFUSED or refusals + 1 == len(OPTIONAL_FIELDS):
                    raise
                refusals += 1
            else:
                self._refusals = refusals
                return chunks

    def _stream_chunks(self, body: Mapping[str, Any]) -> Iterator[_Chunk]:
        for data in self._http.events("/v1/completions", body):
            arrived_s = time.perf_counter()
            if data == "[DONE]":
                continue
            try:
                chunk = json.loads(data)
                choices, usage = chunk.get("choices") or [{}], chunk.get("usage") or {}
                text, token_ids = choices[0].get("text") or "", choices[0].get("token_ids")
                total = usage.get("completion_tokens")
                prompt_tokens = int(usage.get("prompt_tokens") or 0)
            except (ValueError, AttributeError, IndexError, TypeError):
                raise EngineError(f"{self._name}: expected chunks of completions. Got {data[:80]!r}.") from None
            yield _Chunk(
                text=str(text),
                total_tokens=total if isinstance(total, int) else None,
                prompt_tokens=prompt_tokens,
                arrived_s=arrived_s,
                tokens=len(token_ids) if isinstance(token_ids, list) else None,
            )


def _split_steps(chunks: Sequence[_Chunk]) -> tuple[list[int], list[float]]:
    """Return the tokens of each chunk and when it arrived: counted token ids, else growing usage, else one per chunk."""
    if len(identified := [chunk for chunk in chunks if chunk.tokens]) > 1:
        return [chunk.tokens or 0 for chunk in identified], [chunk.arrived_s for chunk in identified]
    counted = [chunk for chunk in chunks if chunk.total_tokens]
    if len(counted) < 2:
        written = [chunk for chunk in chunks if chunk.text]
        return [1] * len(written), [chunk.arrived_s for chunk in written]
    step_tokens: list[int] = []
    step_ends_s: list[float] = []
    for chunk in counted:
        growth = (chunk.total_tokens or 0) - sum(step_tokens)
        if growth > 0:
            step_tokens.append(growth)
            step_ends_s.append(chunk.arrived_s)
    return step_tokens, step_ends_s


def _read_logprobs(name: str, response: Mapping[str, Any]) -> dict[str, float]:
    """Return the likeliest first tokens of a completion, in the form of the completions or the chat API."""
    try:
        logprobs = response["choices"][0]["logprobs"]
        tokens = (
            logprobs["top_logprobs"][0].items()
            if "top_logprobs" in logprobs
            else [(token["token"], token["logprob"]) for token in logprobs["content"][0]["top_logprobs"]]
        )
        return top_logprobs(name, [(UNREADABLE if text.startswith(BYTES) else text, value) for text, value in tokens])
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EngineError(
            f"{name}: expected log-probabilities of the next token. It does not report them: start it so that it does."
        ) from None
