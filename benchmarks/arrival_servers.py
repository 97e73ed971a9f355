"""The servers that benchmarks/arrivals.py asks for texts: treeopt's own decoder, and llama-server."""

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from queue import Empty
from typing import Any, Protocol, cast

from treeopt.engines.probes.client import EngineClient, Launch, Question, Running
from treeopt.engines.probes.http import HttpEngine
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.batch import TextRequest
from treeopt.runtime.models.model import LanguageModel
from treeopt.simulation.arrivals import Request
from treeopt.simulation.serving import ServedSequence
from treeopt.simulation.settings import ServedSetting
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

MOST_WAITING = 1000
"""Texts that may wait for an answer of llama-server, each with a thread of its own."""


class AskedServer(Protocol):
    """A server that runs."""

    def serve(self, setting: ServedSetting, texts: Sequence[Request]) -> list[ServedSequence]:
        """Ask for texts at their times, and return when their tokens came."""

    def restart(self) -> None:
        """Start anew before the next texts, where one start is faster than another for good."""


@dataclass(frozen=True)
class OnTime:
    """Requests that arrive by the clock, as `Decoder.steps_of_all` takes them."""

    texts: Sequence[Request]
    request: Callable[[int], TextRequest]
    start_s: float = field(default_factory=time.perf_counter)
    _given: list[int] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self.start_s

    def get(self, block: bool, /) -> TextRequest | None:
        number = len(self._given)
        if number == len(self.texts):
            if block:
                return None
            raise Empty
        left_s = self.texts[number].arrival_s - self.now_s
        if left_s > 0:
            if not block:
                raise Empty
            time.sleep(left_s)
        self._given.append(number)
        return self.request(number)


@dataclass(frozen=True, kw_only=True)
class DecoderServer:
    """treeopt's decoder, one for each setting."""

    target: LanguageModel
    draft: LanguageModel
    prompts: Sequence[Sequence[int]]
    temperature: float
    most_texts: int
    longest: int
    _decoders: dict[str, Decoder] = field(default_factory=dict)

    def serve(self, setting: ServedSetting, texts: Sequence[Request]) -> list[ServedSequence]:
        decoder, scheduled = self._decoder(setting), _schedule(setting)
        source = OnTime(texts, lambda number: self._request(number, texts[number]))
        first_s, steps, found = dict[int, float](), dict[int, int](), []
        for step in decoder.steps_of_all(source, batch_size=self.most_texts, schedule=scheduled):
            if step.error is not None:
                raise step.error
            now_s = source.now_s
            first_s.setdefault(step.text, now_s)
            steps[step.text] = steps.get(step.text, 0) + 1
            if step.ended:
                asked = texts[step.text]
                found.append(ServedSequence(asked, first_s[step.text], now_s, steps[step.text], asked.new_tokens))
        return found

    def restart(self) -> None:
        """See `AskedServer`; here nothing is to do."""

    def _request(self, number: int, asked: Request) -> TextRequest:
        prompt = prompt_of(self.prompts, number, asked)
        return TextRequest(prompt, asked.new_tokens, seed=number, ignore_end_tokens=True)

    def _decoder(self, setting: ServedSetting) -> Decoder:
        """Return the setting's decoder, which has decoded as many texts as it ever will at a time."""
        if setting.name not in self._decoders:
            tree = max(setting.trees, key=lambda each: each.nodes)
            drafter = self.draft if setting.draft_tokens else None
            self._decoders[setting.name] = decoder = Decoder(
                self.target, drafter, tree, temperature=self.temperature, max_text_tokens=self.longest
            )
            wanted = [TextRequest(prompt[:16], 24, seed=0) for prompt in self.prompts[: self.most_texts]]
            for _ in decoder.steps_of_all(wanted, batch_size=self.most_texts, schedule=_schedule(setting)):
                pass
        return self._decoders[setting.name]


def prompt_of(prompts: Sequence[Sequence[int]], number: int, asked: Request) -> Sequence[int]:
    """Return how a text begins: another prompt for the same number in another load."""
    return prompts[(number + asked.prompt_tokens) % len(prompts)][: asked.prompt_tokens]


def _schedule(setting: ServedSetting) -> TreeSchedule | None:
    """Return a setting's trees by the number of texts; None where it has one for all."""
    if len(set(setting.trees)) == 1:
        return None
    found, first = [], 1
    for tree, same in groupby(setting.trees):
        last = first + len(list(same)) - 1
        found.append(ScheduledTree(first_texts=first, last_texts=last, tree=tree))
        first = last + 1
    return TreeSchedule(trees=tuple(found))


@dataclass(frozen=True, kw_only=True)
class LlamaServer:
    """llama-server, started for each draft length; its times are those of whoever waits for the answers."""

    client: EngineClient
    launch: Launch
    prompts: Sequence[Sequence[int]]
    _running: dict[int, Running] = field(default_factory=dict)

    def serve(self, setting: ServedSetting, texts: Sequence[Request]) -> list[ServedSequence]:
        http = self._http(setting.draft_tokens)
        with ThreadPoolExecutor(MOST_WAITING) as pool:
            start_s = time.perf_counter()
            answers = []
            for number, asked in enumerate(texts):
                time.sleep(max(0.0, start_s + asked.arrival_s - time.perf_counter()))
                answers.append(pool.submit(self._ask, http, asked, number, start_s))
            return [each.result() for each in answers]

    def restart(self) -> None:
        self.close()

    def close(self) -> None:
        """End all that was started."""
        while self._running:
            self._running.popitem()[1].close()

    def _ask(self, http: HttpEngine, asked: Request, number: int, start_s: float) -> ServedSequence:
        prompt = list(prompt_of(self.prompts, number, asked))
        content = {"prompt": prompt, "n_predict": asked.new_tokens, "temperature": 0, "ignore_eos": True}
        found = http.post("/completion", {**content, "cache_prompt": False})
        finished_s = time.perf_counter() - start_s
        timings = cast("dict[str, float]", found["timings"])
        tokens, accepted = int(timings["predicted_n"]), int(timings.get("draft_n_accepted", 0))
        if (tokens, int(timings["prompt_n"])) != (asked.new_tokens, asked.prompt_tokens):
            raise AssertionError(f"llama-server: another text was decoded. {json.dumps(timings)}")
        first_s = finished_s - timings["predicted_ms"] / 1000
        return ServedSequence(asked, first_s, finished_s, tokens - 1 - accepted, tokens - 1)

    def _http(self, draft_tokens: int) -> HttpEngine:
        if draft_tokens not in self._running:
            self._running[draft_tokens] = running = self.client.start(replace(self.launch, draft_tokens=draft_tokens))
            running.answers([Question("the first passes set up what later ones have", 8, 0.0)] * self.launch.slots)
        http: HttpEngine = cast("Any", self._running[draft_tokens])._http
        return http
