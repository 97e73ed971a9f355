"""The engines that can be measured, by name; the clients are imported when one is used."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from treeopt.engines.clients.client import EAGLE3, NGRAM, EngineClient, EngineInfo
from treeopt.errors import EngineError, InvalidValueError
from treeopt.records.engine import AT_URL

NAMES = ("llama-server", "transformers", "openvino", "mlx-lm", "vllm", "openai")
STARTED_METHODS = {"llama-server": (NGRAM, EAGLE3), "transformers": (NGRAM,)}
"""Draft methods, besides a draft model, of engines that treeopt starts; servers at --url draft as they were started."""
PLACED = ("transformers",)
"""Engines in this process that run on a device and in a dtype of the user's choice."""
IN_PROCESS = ("transformers", "openvino", "mlx-lm")


class ClientModule(Protocol):
    """What a module of this package defines for its engines."""

    def create(self, name: str, *, urls: Mapping[int, str] | None, timeout_s: float) -> EngineClient:
        """Return the client of an engine; `urls` are servers by draft length, None starts the engine."""

    def describe_engine(self, name: str) -> EngineInfo:
        """Return whether an engine is installed, and what it reports."""


def create_client(name: str, *, url: str | None, timeout_s: float, program: str | None = None) -> EngineClient:
    """Return the client of an engine.

    Args:
        name: as in `treeopt probe --list`.
        url: addresses of servers that already run, in the form of `parse_urls`; None starts the engine.
        timeout_s: longest wait for a completion.
        program: executable to start, for llama-server only.

    Raises InvalidValueError for an unknown name, or options that the engine does not take; EngineError if it is not
    installed or does not respond.
    """
    if program is not None:
        if name != "llama-server" or url is not None:
            raise InvalidValueError(
                "program: expected with llama-server alone, and without --url. Leave it out.", field="program"
            )
        from treeopt.engines.clients.llama_server import LlamaProgram

        return LlamaProgram(program)
    if url is not None and name in IN_PROCESS:
        raise EngineError(f"{name}: expected no --url, because it runs in this process. Leave it out.")
    urls = None if url is None else parse_urls(url)
    return _load_module(name).create(name, urls=urls, timeout_s=timeout_s)


def check_method(name: str, method: str | None, *, url: str | None) -> None:
    """Raise InvalidValueError for a draft method with which treeopt cannot start an engine."""
    if method is None or url is not None:
        return
    methods = STARTED_METHODS.get(name, ())
    if method not in methods:
        raise InvalidValueError(
            f"method: expected {', '.join((*methods, 'none'))} with {name} that treeopt starts. Got {method}: leave it out, "
            "or start the engine with it and give --url.",
            field="method",
        )


def list_engines() -> Iterator[EngineInfo]:
    """Yield a description of every engine."""
    for name in NAMES:
        yield _load_module(name).describe_engine(name)


def is_single_url(url: str) -> bool:
    """Return whether `url` is one address, without a draft length.

    >>> is_single_url("http://a:1"), is_single_url("0=http://a:1")
    (True, False)
    """
    return url.startswith(("http://", "https://"))


def parse_urls(url: str) -> dict[int, str]:
    """Return the address of each draft length.

    Raises InvalidValueError for anything but pairs of a length and an address.

    >>> parse_urls("0=http://a:1,3=http://a:2")
    {0: 'http://a:1', 3: 'http://a:2'}
    """
    urls = {}
    for pair in url.split(","):
        length, equals, address = pair.partition("=")
        if not equals or not length.strip().isdecimal() or not is_single_url(address):
            raise InvalidValueError(
                "url: expected a server for each length, such as 0=http://localhost:8000,3=http://localhost:8001. "
                f"Got {pair!r:.80}.",
                field="url",
            )
        urls[int(length)] = address.strip()
    return urls


def _load_module(name: str) -> ClientModule:
    from treeopt.engines.clients import assisted, llama_server, mlx_lm, openai_server, openvino_genai

    modules: dict[str, ClientModule] = {
        "llama-server": llama_server,
        "transformers": assisted,
        "openvino": openvino_genai,
        "mlx-lm": mlx_lm,
        **dict.fromkeys(AT_URL, openai_server),
    }
    if name not in modules:
        raise InvalidValueError(f"ENGINE: expected one of {', '.join(NAMES)}. Got {name!r:.40}.")
    return modules[name]
