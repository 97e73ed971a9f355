"""The servers of benchmarks/arrivals.py: treeopt's decoder, llama-server, and how much slower a machine is than profiled."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from queue import Empty
from typing import Any, Protocol, cast

import numpy as np
from tqdm import tqdm

from treeopt.arrays import Float64
from treeopt.engines.clients.client import CompletionRequest, EngineClient, EngineConfig, RunningEngine
from treeopt.engines.clients.http import HttpEngine
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import GenerationRequest
from treeopt.runtime.models.model import LanguageModel
from treeopt.simulation.arrivals import Request
from treeopt.simulation.serving import ServedSequence
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.step_times import StepTimes
from treeopt.trees import TokenTree, chain
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

CLIENT_THREADS = 1000
"""Requests to llama-server at a time: each waits in a thread of its own."""
REFERENCE_ARRIVALS_S = {1: (0, 0.2, 0.4, 0.6, 0.8, 1.0), 2: (1.2, 1.5, 1.8), 4: (2.1, 2.6)}
"""Arrival times of the reference requests, by the number of requests that arrive together."""
REFERENCE_TOKENS = 64
"""Prompt tokens, and new tokens, of a reference request."""


class BenchmarkServer(Protocol):
    """A server under benchmark."""

    def serve(self, setting: ServedSetting, requests: Sequence[Request]) -> list[ServedSequence]:
        """Send requests at their arrival times, and return when their tokens were generated."""

    def restart(self) -> None:
        """Restart the server if its speed differs from start to start."""


@dataclass(frozen=True)
class TimedRequests:
    """Requests that arrive in real time, as the queue of `Decoder.stream_all`."""

    requests: Sequence[Request]
    generation_request: Callable[[int], GenerationRequest]
    start_s: float = field(default_factory=time.perf_counter)
    _sent: list[int] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return time.perf_counter() - self.start_s

    def get(self, block: bool, /) -> GenerationRequest | None:
        number = len(self._sent)
        if number == len(self.requests):
            if block:
                return None
            raise Empty
        wait_s = self.requests[number].arrival_s - self.now_s
        if wait_s > 0:
            if not block:
                raise Empty
            time.sleep(wait_s)
        self._sent.append(number)
        return self.generation_request(number)


@dataclass(frozen=True, kw_only=True)
class DecoderServer:
    """treeopt's decoder; every setting has its own."""

    target: LanguageModel
    draft: LanguageModel
    prompts: Sequence[Sequence[int]]
    temperature: float
    batch_size: int
    max_tokens: int
    _decoders: dict[str, Decoder] = field(default_factory=dict)

    def serve(self, setting: ServedSetting, requests: Sequence[Request]) -> list[ServedSequence]:
        decoder, schedule = self._decoder(setting), _schedule(setting)
        source = TimedRequests(requests, lambda number: self._generation_request(number, requests[number]))
        first_s, steps, served = dict[int, float](), dict[int, int](), []
        for step in decoder.stream_all(source, batch_size=self.batch_size, schedule=schedule):
            if step.error is not None:
                raise step.error
            now_s = source.now_s
            first_s.setdefault(step.request, now_s)
            steps[step.request] = steps.get(step.request, 0) + 1
            if step.finished:
                request = requests[step.request]
                times_s = first_s[step.request], now_s
                served.append(ServedSequence(request, *times_s, steps[step.request], request.new_tokens))
        return served

    def restart(self) -> None:
        pass

    def _generation_request(self, number: int, request: Request) -> GenerationRequest:
        prompt = request_prompt(self.prompts, number, request)
        return GenerationRequest(prompt, request.new_tokens, seed=number, ignore_end_tokens=True)

    def _decoder(self, setting: ServedSetting) -> Decoder:
        """Return the setting's decoder, warmed up with a full batch."""
        if setting.name not in self._decoders:
            tree = max(setting.trees, key=lambda tree: tree.nodes)
            drafter = self.draft if setting.draft_tokens else None
            self._decoders[setting.name] = decoder = Decoder(
                self.target, drafter, tree, temperature=self.temperature, max_sequence_tokens=self.max_tokens
            )
            warm_up = [GenerationRequest(prompt[:16], 24, seed=0) for prompt in self.prompts[: self.batch_size]]
            for _ in decoder.stream_all(warm_up, batch_size=self.batch_size, schedule=_schedule(setting)):
                pass
        return self._decoders[setting.name]


def request_prompt(prompts: Sequence[Sequence[int]], number: int, request: Request) -> Sequence[int]:
    """Return the prompt of a request; the same number has different prompts in different loads."""
    return prompts[(number + request.prompt_tokens) % len(prompts)][: request.prompt_tokens]


def _schedule(setting: ServedSetting) -> TreeSchedule | None:
    """Return a setting's trees by batch size; None if they are all the same."""
    if len(set(setting.trees)) == 1:
        return None
    trees, first = [], 1
    for tree, batch_sizes in groupby(setting.trees):
        last = first + len(list(batch_sizes)) - 1
        trees.append(ScheduledTree(first_batch_size=first, last_batch_size=last, tree=tree))
        first = last + 1
    return TreeSchedule(trees=tuple(trees))


@dataclass(frozen=True, kw_only=True)
class LlamaServer:
    """llama-server, one process for each draft length; times are those of its clients."""

    client: EngineClient
    config: EngineConfig
    prompts: Sequence[Sequence[int]]
    _running: dict[int, RunningEngine] = field(default_factory=dict)

    def serve(self, setting: ServedSetting, requests: Sequence[Request]) -> list[ServedSequence]:
        http = self._http(setting.draft_tokens)
        with ThreadPoolExecutor(CLIENT_THREADS) as pool:
            start_s = time.perf_counter()
            completions = []
            for number, request in enumerate(requests):
                time.sleep(max(0.0, start_s + request.arrival_s - time.perf_counter()))
                completions.append(pool.submit(self._complete, http, request, number, start_s))
            return [completion.result() for completion in completions]

    def restart(self) -> None:
        self.close()

    def close(self) -> None:
        while self._running:
            self._running.popitem()[1].close()

    def _complete(self, http: HttpEngine, request: Request, number: int, start_s: float) -> ServedSequence:
        prompt = list(request_prompt(self.prompts, number, request))
        content = {"prompt": prompt, "n_predict": request.new_tokens, "temperature": 0, "ignore_eos": True}
        response = http.post("/completion", {**content, "cache_prompt": False})
        finished_s = time.perf_counter() - start_s
        timings = cast("dict[str, float]", response["timings"])
        tokens, accepted = int(timings["predicted_n"]), int(timings.get("draft_n_accepted", 0))
        if (tokens, int(timings["prompt_n"])) != (request.new_tokens, request.prompt_tokens):
            raise AssertionError(f"llama-server: expected the tokens of {request}. Got {json.dumps(timings)}.")
        first_s = finished_s - timings["predicted_ms"] / 1000
        return ServedSequence(request, first_s, finished_s, tokens - 1 - accepted, tokens - 1)

    def _http(self, draft_tokens: int) -> HttpEngine:
        if draft_tokens not in self._running:
            self._running[draft_tokens] = running = self.client.start(replace(self.config, draft_tokens=draft_tokens))
            running.complete(
                [CompletionRequest("the first passes set up what later ones have", 8, 0.0)] * self.config.slots
            )
        http: HttpEngine = cast("Any", self._running[draft_tokens])._http
        return http


@dataclass(frozen=True)
class Slowdown:
    """Latency of the machine as a multiple of that during profiling."""

    factors: tuple[float, ...]
    """By the batch sizes of `REFERENCE_ARRIVALS_S`."""

    @classmethod
    def of(cls, ratios: Sequence[Float64]) -> "Slowdown":
        """Average several measurements of `Reference.slowdown`."""
        batch_sizes = np.array(
            [batch for batch, arrivals_s in REFERENCE_ARRIVALS_S.items() for _ in range(batch * len(arrivals_s))]
        )
        return cls(
            tuple(float(np.mean([ratio[batch_sizes == batch] for ratio in ratios])) for batch in REFERENCE_ARRIVALS_S)
        )

    def at(self, batch_size: int) -> float:
        """Interpolate linearly."""
        return float(np.interp(batch_size, list(REFERENCE_ARRIVALS_S), self.factors))


NO_SLOWDOWN = Slowdown((1.0,) * len(REFERENCE_ARRIVALS_S))


@dataclass(frozen=True)
class SlowedTimes(StepTimes):
    """The step times of a profile, scaled by a slowdown."""

    slowdown: Slowdown = NO_SLOWDOWN

    def step_s(self, tree: TokenTree, context_tokens: Sequence[int]) -> float:
        return self.slowdown.at(len(context_tokens)) * super().step_s(tree, context_tokens)

    def prefill_s(self, prompt_tokens: int, draft_tokens: int) -> float:
        return self.slowdown.at(1) * super().prefill_s(prompt_tokens, draft_tokens)


@dataclass(frozen=True)
class Reference:
    """A few requests that measure the slowdown: plainly and with a chain, which may be slowed down differently."""

    server: BenchmarkServer
    draft_tokens: int
    """Length of the chain."""
    profiled_s: tuple[Float64, Float64] = (np.ones(1), np.ones(1))
    """Median latency of each request during profiling: plainly, and with the chain."""

    def measure(self) -> tuple[Float64, Float64]:
        """Restart the server, and return the latency of each request, plainly and with the chain."""
        self.server.restart()
        return self._latencies_s(0), self._latencies_s(self.draft_tokens)

    def slowdown(self, setting: ServedSetting) -> Float64:
        """Return the latency of each request over that during profiling; drafting if the setting drafts."""
        drafting = setting.draft_tokens > 0
        return self._latencies_s(self.draft_tokens if drafting else 0) / self.profiled_s[drafting]

    def with_profiled(self, measurements: Sequence[tuple[Float64, Float64]]) -> "Reference":
        """Return a reference with the medians of the measurements during profiling; print their spread."""
        plain_s, drafting_s = (np.array(latencies_s) for latencies_s in zip(*measurements, strict=True))
        spreads = [(latencies_s / np.median(latencies_s, 0)).mean(1) for latencies_s in (plain_s, drafting_s)]
        ranges = " and ".join(f"{spread.min():.2f} to {spread.max():.2f}" for spread in spreads)
        tqdm.write(f"reference latency during profiling, plainly and with a chain: {ranges} times the median")
        return replace(self, profiled_s=(np.median(plain_s, 0), np.median(drafting_s, 0)))

    def _latencies_s(self, draft_tokens: int) -> Float64:
        setting = ServedSetting.fixed(f"reference {draft_tokens}", chain(draft_tokens), batch_size=1)
        requests = [
            Request(arrival_s, REFERENCE_TOKENS, REFERENCE_TOKENS)
            for batch_size, arrivals_s in REFERENCE_ARRIVALS_S.items()
            for arrival_s in arrivals_s
            for _ in range(batch_size)
        ]
        served = sorted(self.server.serve(setting, requests), key=lambda sequence: sequence.request.arrival_s)
        return np.array([sequence.latency_s for sequence in served])
