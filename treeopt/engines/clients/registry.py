"""The engines that can be measured, by name; the clients are imported when one is used."""

from collections.abc import Callable, Iterator

from treeopt.engines.clients.client import EAGLE3, NGRAM, EngineClient, EngineInfo
from treeopt.errors import EngineError, InvalidValueError
from treeopt.records.engine import AT_URL

NAMES = ("llama-server", "transformers", "openvino", "mlx-lm", *AT_URL)
STARTED_METHODS = {"llama-server": (NGRAM, EAGLE3), "transformers": (NGRAM,)}
"""Draft methods, besides a draft model, of engines that treeopt starts; servers at --url draft as they were started."""
PLACED = ("transformers",)
"""Engines in this process that run on a device and in a dtype of the user's choice."""


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
    from treeopt.engines.clients import assisted, llama_server, mlx_lm, openai_server, openvino_genai

    if program is not None:
        if name != "llama-server" or url is not None:
            raise InvalidValueError(
                "program: expected with llama-server alone, and without --url. Leave it out.", field="program"
            )
        return llama_server.LlamaProgram(program)
    in_process: dict[str, Callable[[], EngineClient]] = {
        "transformers": assisted.Assisted,
        "openvino": openvino_genai.OpenVino,
        "mlx-lm": mlx_lm.MlxLm,
    }
    if name in in_process:
        if url is not None:
            raise EngineError(f"{name}: expected no --url, because it runs in this process. Leave it out.")
        return in_process[name]()
    urls = None if url is None else parse_urls(url)
    if name == llama_server.NAME:
        return llama_server.create_client(urls, timeout_s=timeout_s)
    if name in AT_URL:
        return openai_server.create_client(name, urls, timeout_s=timeout_s)
    raise InvalidValueError(f"ENGINE: expected one of {', '.join(NAMES)}. Got {name!r:.40}.")


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
    """Yield a description of every engine, in the order of `NAMES`."""
    from treeopt.engines.clients import assisted, llama_server, mlx_lm, openai_server, openvino_genai

    for module in (llama_server, assisted, openvino_genai, mlx_lm):
        yield module.describe_engine()
    for name in AT_URL:
        yield openai_server.describe_engine(name)


def is_single_url(url: str) -> bool:
    """Return whether `url` is one address, without a draft length.

    >>> is_single_url("http://a:1"), is_single_url("0=http://a:1")
    (True, False)
    """
    return url.startswith(("http://", "https://"))


def parse_urls(url: str) -> dict[int, str]:
    """Return the address of each draft length.

    Raises InvalidValueError for anything but pairs of a length and an address, and for a length that occurs twice.

    >>> parse_urls("0=http://a:1,3=http://a:2")
    {0: 'http://a:1', 3: 'http://a:2'}
    """
    urls: dict[int, str] = {}
    for pair in url.split(","):
        length, equals, address = pair.partition("=")
        if not equals or not length.strip().isdecimal() or not is_single_url(address):
            raise InvalidValueError(
                "url: expected a server for each length, such as 0=http://localhost:8000,3=http://localhost:8001. "
                f"Got {pair!r:.80}.",
                field="url",
            )
        if int(length) in urls:
            raise InvalidValueError(
                f"url: expected one server for each length. Got several for {int(length)}: leave one out.", field="url"
            )
        urls[int(length)] = address.strip()
    return urls
