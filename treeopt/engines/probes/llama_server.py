"""llama.cpp's server: started for each draft length from the wheel xllamacpp, or asked where it runs."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from treeopt.engines.probes.child import Child, python
from treeopt.engines.probes.client import (
    Answer,
    Availability,
    Counters,
    EngineClient,
    Launch,
    Question,
    Running,
    address_of,
    addresses,
    served_model,
)
from treeopt.engines.probes.http import HttpEngine, number
from treeopt.engines.probes.llama_program import LlamaProgram, on_path
from treeopt.errors import EngineError
from treeopt.records.engine import EngineSetting

NAME = "llama-server"
TITLE = "llama-server"
PACKAGE = "xllamacpp"


def client(name: str, *, url: str | None, threads: int | None, timeout_s: float) -> EngineClient:
    """Return the server at an address, else that of the wheel, else the one on PATH; see `treeopt.engines.probes.named`."""
    del name
    if url is not None:
        return LlamaAtUrl(url, timeout_s=timeout_s)
    program = on_path()
    if _wheel() is None and program is not None:
        return LlamaProgram(program, threads=threads)
    return LlamaServer(threads=threads)


def available(name: str = NAME) -> Availability:
    """Return what is known of it here."""
    return Availability(
        name=name,
        title="llama.cpp's server",
        version=_wheel() or on_path(),
        started="by treeopt, once for each length, from the wheel xllamacpp, or a llama-server on PATH; or --url of one that runs",
        tells="seconds and steps of each text, accepted tokens by position",
        install=f"pip install {PACKAGE}",
    )


def _wheel() -> str | None:
    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return None


class LlamaServer:
    """The server of the wheel, started anew for each draft length.

    Raises EngineError where the wheel is not installed.
    """

    name = NAME

    def __init__(self, *, threads: int | None = None) -> None:
        found = _wheel()
        if found is None:
            raise EngineError(
                f"{NAME}: expected the package {PACKAGE}, or {NAME} on PATH. Neither is installed: pip install {PACKAGE}."
            )
        self.version = found
        self.settings: tuple[EngineSetting, ...] = (
            () if threads is None else (EngineSetting(name="threads", value=str(threads)),)
        )

    def start(self, launch: Launch) -> Running:
        """See `EngineClient`."""
        asked = json.dumps(asdict(launch))
        child = Child(NAME, python("treeopt.engines.probes.llama_process", asked), timeout_s=launch.timeout_s)
        return RunningLlama(child.ready["address"], launch, child)


class LlamaAtUrl:
    """Servers that run already, one for each draft length."""

    name = NAME

    def __init__(self, urls: str, *, timeout_s: float) -> None:
        self._by_length = addresses(urls)
        http = HttpEngine(TITLE, next(iter(self._by_length.values())), timeout_s=timeout_s)
        found = http.get("/props")
        http.close()
        self.version = str(found.get("build_info", "unknown"))
        self.settings = served_model(found.get("model_path"))

    def start(self, launch: Launch) -> Running:
        """See `EngineClient`; it is left running."""
        return RunningLlama(address_of(NAME, self._by_length, launch), launch, None)


class RunningLlama:
    """A server that answers `/completion` with its own times and counts."""

    def __init__(self, url: str, launch: Launch, child: Child | None) -> None:
        self._http = HttpEngine(TITLE, url, timeout_s=launch.timeout_s)
        self._child = child
        self._drafts = launch.draft_tokens > 0
        self._pool = ThreadPoolExecutor(launch.slots)

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """See `Running`."""
        return list(self._pool.map(self._answer, questions))

    def counters(self) -> Counters | None:
        """See `Running`."""
        return self._http.counters()

    def close(self) -> None:
        """See `Running`."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()
        if self._child is not None:
            self._child.close()

    def _answer(self, question: Question) -> Answer:
        content = {
            "prompt": question.prompt,
            "n_predict": question.max_new_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        if question.temperature > 0:  # the whole distribution: samplers that are on by default are not the model's
            content |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        found = self._http.post("/completion", content)
        timings = found.get("timings")
        if not isinstance(timings, dict) or not isinstance(found.get("content"), str):
            raise EngineError(f"{TITLE}: expected content and timings in its answer. Got {sorted(found)!r:.80}.")
        tokens = int(number(TITLE, timings, "predicted_n"))
        if self._drafts and "draft_n" not in timings:
            raise EngineError(f"{TITLE}: expected a server that drafts. It does not: start it with a draft model.")
        drafted, accepted = (
            int(number(TITLE, timings, each)) if each in timings else 0 for each in ("draft_n", "draft_n_accepted")
        )
        if accepted > drafted:
            raise EngineError(
                f"{TITLE}: expected at most {drafted} accepted tokens, as many as were drafted. Got {accepted}: update it."
            )
        return Answer(
            text=found["content"],
            tokens=tokens,
            decode_s=number(TITLE, timings, "predicted_ms") / 1000,
            steps=tokens - 1 - accepted,
            prompt_tokens=int(number(TITLE, found, "tokens_evaluated")),
        )
