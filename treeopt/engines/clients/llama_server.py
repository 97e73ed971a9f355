"""llama.cpp's server: of the wheel xllamacpp or a program, started for each draft length, or at an address."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from time import perf_counter
from typing import Any

from treeopt.engines.clients.child import Child
from treeopt.engines.clients.client import (
    NGRAM,
    UNREADABLE,
    Completion,
    CompletionRequest,
    Counters,
    EngineClient,
    EngineConfig,
    EngineInfo,
    RunningEngine,
    installed_version,
    top_logprobs,
)
from treeopt.engines.clients.http import HttpEngine, model_setting, select_url
from treeopt.errors import EngineError, printable
from treeopt.records.profile import UNKNOWN

NAME = "llama-server"
PACKAGE = "xllamacpp"
MAX_LOGPROBS = 10
VOCABULARIES = "vocabs are not compatible"
"""Part of what llama.cpp logs about a draft model with another vocabulary."""
HELP_S = 30.0
"""Longest wait for help or version: a build for a GPU initialises it first."""
METHOD = "--spec-type"
LENGTHS = (
    ("--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"),
    ("--draft-max", "--draft-min", "--draft-p-min"),
)
"""Most and fewest draft tokens, and the probability below which drafting stops; today's names, and the earlier ones."""
DEVICES = "--list-devices"
NGRAM_SIZES = ("--spec-ngram-simple-size-", "--spec-ngram-size-")


def create_client(urls: Mapping[int, str] | None, *, timeout_s: float) -> EngineClient:
    """Return the client of the servers at `urls`, else of the wheel, else of the program on PATH."""
    if urls is not None:
        return LlamaAtUrl(urls, timeout_s=timeout_s)
    program = find_program()
    if wheel_version() is None and program is not None:
        return LlamaProgram(program)
    return LlamaServer()


def describe_engine() -> EngineInfo:
    return EngineInfo(
        name=NAME,
        title="llama.cpp's server",
        version=wheel_version() or find_program(),
        started="by treeopt, once for each length: the package xllamacpp, or llama-server on PATH; or by you: --url URL",
        reports="seconds and steps of each sequence, accepted tokens by position",
        install=f"pip install {PACKAGE}",
    )


def wheel_version() -> str | None:
    version = installed_version(PACKAGE)
    return None if version is None else f"{PACKAGE} {version}"


def find_program() -> str | None:
    """Return the llama-server on PATH; None if there is none."""
    return shutil.which(NAME)


class LlamaServer(EngineClient):
    """The server of the wheel, started again for each draft length.

    Raises EngineError if the wheel is not installed.
    """

    name = NAME
    device = "cpu"
    concurrent = False

    def __init__(self) -> None:
        version = wheel_version()
        if version is None:
            raise EngineError(
                f"{NAME}: expected the package {PACKAGE}, or {NAME} on PATH. Neither is installed: pip install {PACKAGE}."
            )
        self.version = version

    def start(self, config: EngineConfig) -> RunningEngine:
        return _start_process(config, json.dumps(asdict(config)))


class LlamaProgram(EngineClient):
    """A llama-server that is started again for each draft length, on a free local port.

    Args:
        program: path, or name on PATH.

    Raises EngineError if the program does not run, or has no flags for drafting.
    """

    name = NAME
    concurrent = False

    def __init__(self, program: str) -> None:
        path = shutil.which(program)
        if path is None:
            raise EngineError(f"{NAME}: expected a program. Got {program!r:.200}: give the path of one with --program.")
        self._program = path
        version = re.search(r"^version: (.+)$", _run(path, "--version"), re.MULTILINE)
        self.version = printable(version[1].strip()) if version else "unknown"
        self._flags = frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", _run(path, "--help")))
        self._length_flags()
        self.device = self._find_device()

    def _find_device(self) -> str:
        """Return `cpu` if the build lists no accelerator; a build that lists some may use any of them, or none."""
        if DEVICES not in self._flags:
            return UNKNOWN
        return UNKNOWN if re.search(r"^\s+\w+: ", _run(self._program, DEVICES), re.MULTILINE) else "cpu"

    def start(self, config: EngineConfig) -> RunningEngine:
        config.check_models(NAME)
        port = str(_free_port())
        address = ("--host", "127.0.0.1", "--port", port)
        return _start_process(config, port, self._program, *self.flags(config), *address)

    def flags(self, config: EngineConfig) -> tuple[str, ...]:
        """Return the arguments that start it, without its address."""
        slots, context = str(config.slots), str(config.slots * config.context_tokens)
        flags = ["--model", str(config.target), "-np", slots, "-c", context, "--metrics"]
        if config.threads is not None:
            flags += ["-t", str(config.threads)]
        if config.draft_tokens and config.method == NGRAM:
            flags += [METHOD, "ngram-simple", self._ngram_flag("m"), str(config.draft_tokens)]
            if config.ngram_tokens is not None:
                flags += [self._ngram_flag("n"), str(config.ngram_tokens)]
        elif config.draft_tokens:
            most, least, cut = self._length_flags()
            flags += ["--model-draft", str(config.draft), most, str(config.draft_tokens), least, "0", cut, "0"]
            kind = "draft-simple" if config.method is None else f"draft-{config.method}"
            flags += [METHOD, kind] if METHOD in self._flags else []
        return tuple(flags)

    def _ngram_flag(self, size: str) -> str:
        """Return the flag for matching tokens, `n`, or draft tokens, `m`; raises EngineError if help names none."""
        names = [f"{prefix}{size}" for prefix in NGRAM_SIZES]
        for name in names:
            if name in self._flags and METHOD in self._flags:
                return name
        raise EngineError(
            f"{NAME}: expected a program whose --help names {METHOD} and {names[0]}. {self._program} does not: update "
            "llama.cpp, or leave --method out."
        )

    def _length_flags(self) -> tuple[str, str, str]:
        for names in LENGTHS:
            if self._flags.issuperset(names):
                return names
        raise EngineError(
            f"{NAME}: expected a program whose --help names {LENGTHS[0][0]} or {LENGTHS[1][0]}. {self._program} does not: "
            "update llama.cpp."
        )


class LlamaAtUrl(EngineClient):
    """Servers that already run, one for each draft length; they are left running."""

    name = NAME

    def __init__(self, urls: Mapping[int, str], *, timeout_s: float) -> None:
        self._urls = urls
        server = HttpEngine(NAME, next(iter(urls.values())), timeout_s=timeout_s)
        properties = server.get("/props")
        server.close()
        self.version = str(properties.get("build_info", "unknown"))
        self.settings = model_setting(properties.get("model_path"))

    def start(self, config: EngineConfig) -> RunningEngine:
        return RunningLlama(select_url(NAME, self._urls, config), config, None)


class RunningLlama(RunningEngine):
    """A server whose `/completion` reports times and counts."""

    def __init__(self, url: str, config: EngineConfig, child: Child | None) -> None:
        super().__init__(NAME, config)
        self._http = HttpEngine(NAME, url, timeout_s=config.timeout_s)
        self._child = child
        self._drafts = config.draft_tokens > 0 and config.method != NGRAM  # many sequences have no matching n-gram
        self._pool = ThreadPoolExecutor(config.slots)
        self._batches = True  # until the server refuses a list of prompts

    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        if len(requests) > 1 and self._batches:
            completions = self._complete_batch(requests)
            if completions is not None:
                return completions
            self._batches = False
        return list(self._pool.map(self._complete_one, requests))

    def counters(self) -> Counters | None:
        return self._http.counters()

    def next_logprobs(self, text: str) -> dict[str, float]:
        # without the prefix cache, which would change the last digits
        body = _completion_body(CompletionRequest(text, 1, 0.0)) | {"n_probs": MAX_LOGPROBS, "cache_prompt": False}
        response = self._http.post("/completion", body)
        try:
            (first,) = response["completion_probabilities"]
            return top_logprobs(
                NAME,
                [
                    (token["token"] or (UNREADABLE if token.get("bytes") else ""), token["logprob"])
                    for token in first["top_logprobs"]
                ],
            )
        except (KeyError, ValueError, TypeError, AttributeError):
            raise EngineError(f"{NAME}: expected log-probabilities of the next token. Got none: update it.") from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()
        if self._child is not None:
            self._child.close()

    def _complete_batch(self, requests: Sequence[CompletionRequest]) -> list[Completion] | None:
        """Send all prompts in one request, so that no sequence's steps wait for another's prefill.

        None if the requests differ in more than their prompts, or the server does not take a list.
        """
        first = requests[0]
        if any(request._replace(prompt=first.prompt) != first for request in requests):
            return None
        body = {**_completion_body(first), "prompt": [request.prompt for request in requests]}
        responses = self._http.post_for_list("/completion", body)
        if responses is None or len(responses) != len(requests):
            return None
        responses.sort(key=lambda response: _read_number(response, "index"))
        return [self._read_completion(response) for response in responses]

    def _complete_one(self, request: CompletionRequest) -> Completion:
        start_s = perf_counter()
        response = self._http.post("/completion", _completion_body(request))
        return self._read_completion(response, perf_counter() - start_s)

    def _read_completion(self, response: dict[str, Any], response_s: float = 0.0) -> Completion:
        """Return a completion from a response that took `response_s` seconds, part of which the server's own times miss."""
        timings = response.get("timings")
        if not isinstance(timings, dict) or not isinstance(response.get("content"), str):
            raise EngineError(f"{NAME}: expected content and timings in its answer. Got {sorted(response)!r:.80}.")
        tokens = int(_read_number(timings, "predicted_n"))
        if self._drafts and "draft_n" not in timings:
            raise self._not_drafting()
        drafted, accepted = (
            int(_read_number(timings, key)) if key in timings else 0 for key in ("draft_n", "draft_n_accepted")
        )
        if accepted > drafted:
            raise EngineError(
                f"{NAME}: expected at most {drafted} accepted tokens, as many as were drafted. Got {accepted}: update it."
            )
        decode_s, prefill_s = _read_number(timings, "predicted_ms") / 1000, None
        if "prompt_ms" in timings:
            prefill_s = max(_read_number(timings, "prompt_ms") / 1000, response_s - decode_s)
        return Completion(
            text=response["content"],
            tokens=tokens,
            decode_s=decode_s,
            steps=tokens - 1 - accepted,
            prompt_tokens=int(_read_number(response, "tokens_evaluated")),
            prefill_s=prefill_s,
            prefill_tokens=int(_read_number(timings, "prompt_n")) if "prompt_n" in timings else 0,
        )

    def _not_drafting(self) -> EngineError:
        """Return the error for a server that was started to draft and does not."""
        lines = [] if self._child is None else self._child.errors()
        if any(VOCABULARIES in line for line in lines):
            return EngineError(
                f"{NAME}: expected a draft model with the target's vocabulary. llama.cpp reports that they are not "
                "compatible, and decodes without it: choose a draft of the same family."
            )
        if lines:
            return EngineError(f"{NAME}: expected a server that drafts. It does not: {' / '.join(lines)[:300]}")
        return EngineError(
            f"{NAME}: expected a server that drafts. It does not: start it with a draft model of the target's vocabulary, and "
            "read its log for why it uses none."
        )


def _start_process(config: EngineConfig, *arguments: str) -> RunningLlama:
    """Start a server with the arguments of `treeopt.engines.clients.llama_process`."""
    command = [sys.executable, "-m", "treeopt.engines.clients.llama_process", *arguments]
    child = Child(NAME, command, timeout_s=config.timeout_s)
    return RunningLlama(child.ready["address"], config, child)


def _completion_body(request: CompletionRequest) -> dict[str, Any]:
    body = {
        "prompt": request.prompt,
        "n_predict": request.max_new_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "ignore_eos": True,
        "cache_prompt": True,
    }
    if request.temperature > 0:  # the server's default samplers would cut the distribution
        body |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return body


def _read_number(content: Mapping[str, Any], name: str) -> float:
    """Return a number of a response, at least 0; raises EngineError if it is missing or something else."""
    value = content.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise EngineError(f"{NAME}: expected a number {name!r} of at least 0 in its answer. Got {value!r:.60}.")
    return float(value)


def _run(program: str, flag: str) -> str:
    """Return what a program prints, on either stream."""
    try:
        result = subprocess.run(
            [program, flag], capture_output=True, timeout=HELP_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {HELP_S:g} s"
        raise EngineError(
            f"{NAME}: expected {program} {flag} to print something. Got: {why}. Give another --program."
        ) from None
    return (result.stdout + result.stderr).decode(errors="replace")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
