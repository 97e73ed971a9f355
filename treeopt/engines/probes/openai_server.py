"""Any server with OpenAI's completions, vLLM's among them: what can be seen from outside, and counters where it has some.

With `continuous_usage_stats` every chunk contains the number of tokens so far: its growth is one step, of which all but
one token were accepted drafts, unless the server holds steps back and sends several at once.  A server that counts its
drafts is believed where both differ.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from treeopt.engines.probes.client import (
    UNREADABLE,
    Answer,
    Availability,
    Counters,
    EngineClient,
    Launch,
    Question,
    Running,
    address_of,
    addresses,
    likeliest,
    served_model,
)
from treeopt.engines.probes.http import HttpEngine, status_of
from treeopt.errors import EngineError, InvalidValueError
from treeopt.records.profile import UNKNOWN

VLLM = "vllm"
NEUTRAL = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent because servers take what is missing from the model's generation config; OpenAI itself knows the first only."""
BYTES = "bytes:"
"""How tokens begin that are no whole character."""
MOST_LOGPROBS = 5
REFUSED = (400, 422)
"""Status of servers that do not take some of these."""
TITLES = {"openai": "a server with OpenAI's completions", VLLM: "vLLM"}


def client(name: str, *, url: str | None, threads: int | None, timeout_s: float) -> EngineClient:
    """Return the servers at some addresses, one for each draft length; see `treeopt.engines.probes.named`."""
    del threads
    if url is None:
        raise InvalidValueError(
            f"--url: expected the addresses of {TITLES[name]}, such as 0=http://…,3=http://…. Give them."
        )
    return OpenAIServers(name, addresses(url), timeout_s=timeout_s)


def available(name: str) -> Availability:
    """Return what is known of it here."""
    return Availability(
        name=name,
        title=TITLES[name],
        version=None,
        started="by you: --url 0=URL,3=URL, or one length after the other, --url URL --lengths 3",
        tells="tokens as they come; steps and accepted tokens where chunks are steps, or /metrics counts drafts",
        install="run it, and give --url",
    )


class OpenAIServers:
    """Servers that run already, one for each draft length."""

    device = UNKNOWN
    concurrent = True

    def __init__(self, name: str, by_length: Mapping[int, str], *, timeout_s: float) -> None:
        self.name = name
        self._by_length = dict(by_length)
        first = HttpEngine(name, next(iter(self._by_length.values())), timeout_s=timeout_s)
        models = first.get("/v1/models").get("data")
        served = models[0] if isinstance(models, list) and models and isinstance(models[0], dict) else {}
        self._model = str(served.get("id", ""))
        self.settings = served_model(self._model)
        self.version = str(served.get("owned_by", "unknown"))
        if name == VLLM:
            with suppress(EngineError):  # something between it and here may not pass this on
                self.version = str(first.get("/version").get("version", self.version))
        first.close()

    def start(self, launch: Launch) -> Running:
        """See `EngineClient`; raises EngineError for a length that has no server."""
        return RunningServer(self.name, address_of(self.name, self._by_length, launch), self._model, launch)


class _Chunk(NamedTuple):
    text: str
    tokens: int | None
    prompt_tokens: int
    arrived_s: float
    own_tokens: int | None = None
    """Of this chunk alone, where the server sends token ids."""


class RunningServer:
    """One server that streams completions."""

    def __init__(self, name: str, url: str, model: str, launch: Launch) -> None:
        self._http = HttpEngine(name, url, timeout_s=launch.timeout_s)
        self._name, self._model, self._draft_tokens = name, model, launch.draft_tokens
        self._pool = ThreadPoolExecutor(launch.slots)
        self._neutral = NEUTRAL
        self._drafts = False  # until a chunk of several tokens was seen

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        return list(self._pool.map(self._answer, questions))

    def counters(self) -> Counters | None:
        """See `Running`; raises EngineError where vLLM, which counts every position, drafts with another length."""
        found = self._http.counters()
        if found is not None and self._name == VLLM and len(found.accepted_per_position) != self._draft_tokens:
            raise EngineError(
                f"{VLLM}: expected a server with {self._draft_tokens} draft tokens. Got one with "
                f"{len(found.accepted_per_position)}: name its length, or start it with the one named."
            )
        return found

    def next_logprobs(self, text: str) -> dict[str, float]:
        """See `TellsLogprobs`; of as many tokens as OpenAI's own server tells."""
        content = {
            "model": self._model,
            "prompt": text,
            "max_tokens": 1,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": MOST_LOGPROBS,
        }
        try:
            found = self._http.post("/v1/completions", content)
        except EngineError as error:
            if status_of(error) not in REFUSED:
                raise
            found = self._http.post("/v1/completions", {k: v for k, v in content.items() if k != "ignore_eos"})
        return _logprobs(self._name, found)

    def close(self) -> None:
        """See `Running`; the server goes on."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def _answer(self, question: Question) -> Answer:
        content = {
            "model": self._model,
            "prompt": question.prompt,
            "max_tokens": question.max_new_tokens,
            "temperature": question.temperature,
            **self._neutral,
            "seed": question.seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        try:
            chunks = list(self._chunks(content))
        except EngineError as error:
            if self._neutral is not NEUTRAL or status_of(error) not in REFUSED:
                raise
            self._neutral = {"top_p": 1.0}
            chunks = list(
                self._chunks({key: value for key, value in content.items() if key not in NEUTRAL} | self._neutral)
            )
        sizes, ends_s = _growth(chunks)
        if len(sizes) < 2:
            raise EngineError(
                f"{self._name}: expected a text of several chunks. Got {len(sizes)}: update it, or ask for more tokens."
            )
        steps = sizes[1:]
        self._drafts = self._drafts or max(steps) > 1
        told = not self._draft_tokens or self._drafts
        coalesced = max(steps) > 1 + self._draft_tokens
        return Answer(
            text="".join(each.text for each in chunks),
            tokens=1 + sum(steps),
            decode_s=ends_s[-1] - ends_s[0],
            steps=len(steps) if told and not coalesced else None,
            accepted=tuple(sum(size > place for size in steps) for place in range(1, 1 + self._draft_tokens))
            if told
            else (),
            coalesced=coalesced,
            prompt_tokens=max(each.prompt_tokens for each in chunks),
        )

    def _chunks(self, content: Mapping[str, Any]) -> Iterator[_Chunk]:
        for data in self._http.events("/v1/completions", content):
            arrived_s = time.perf_counter()
            if data == "[DONE]":
                continue
            try:
                found = json.loads(data)
                choices, usage = found.get("choices") or [{}], found.get("usage") or {}
                text, tokens, ids = (
                    choices[0].get("text") or "",
                    usage.get("completion_tokens"),
                    choices[0].get("token_ids"),
                )
                prompt = int(usage.get("prompt_tokens") or 0)
            except (ValueError, AttributeError, IndexError, TypeError):
                raise EngineError(f"{self._name}: expected chunks of completions. Got {data[:80]!r}.") from None
            yield _Chunk(
                str(text),
                tokens if isinstance(tokens, int) else None,
                prompt,
                arrived_s,
                len(ids) if isinstance(ids, list) else None,
            )


def _growth(chunks: Sequence[_Chunk]) -> tuple[list[int], list[float]]:
    """Return how many tokens came when: as usage grows, or as token ids, or one in every chunk where neither is there."""
    if len(own := [each for each in chunks if each.own_tokens]) > 1:
        return [each.own_tokens or 0 for each in own], [each.arrived_s for each in own]
    counted = [each for each in chunks if each.tokens]
    if len(counted) < 2:
        texts = [each for each in chunks if each.text]
        return [1] * len(texts), [each.arrived_s for each in texts]
    sizes: list[int] = []
    ends_s: list[float] = []
    for each in counted:
        grown = (each.tokens or 0) - sum(sizes)
        if grown > 0:
            sizes.append(grown)
            ends_s.append(each.arrived_s)
    return sizes, ends_s


def _logprobs(name: str, found: Mapping[str, Any]) -> dict[str, float]:
    """Return the likeliest first tokens of a completion, in the form of completions or that of chats."""
    try:
        told = found["choices"][0]["logprobs"]
        tokens = (
            told["top_logprobs"][0].items()
            if "top_logprobs" in told
            else [(each["token"], each["logprob"]) for each in told["content"][0]["top_logprobs"]]
        )
        return likeliest(name, [(UNREADABLE if text.startswith(BYTES) else text, value) for text, value in tokens])
    except (KeyError, IndexError, TypeError, AttributeError):
        raise EngineError(
            f"{name}: expected log-probabilities of the next token. It does not tell them: start it so that it does."
        ) from None
